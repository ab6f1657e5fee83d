"""The journal: cut at any byte it gives whole cases back; another device's is refused."""

import pytest

from chip.files import codec
from chip.lab.measure.journal import SCHEMA, Header, Journal, JournalEntry, Outcome, merge
from chip.types import Ceiling, ChipError, Curve

HEADER = Header(SCHEMA, "NVIDIA H200", "quick", "2.11.0")


def entry(i: int) -> JournalEntry:
    c = Ceiling(4.2e12, 4.1e12, 4.3e12, "B/s", "copy_", (4.2e12,), 1.98e9, 600.0, 50.0, ("throttled 1/10",))
    k = Curve("x", "B", "y", "B/s", (1.0, 2.0), (3.0, 4.0), "m")
    return JournalEntry(f"memory/{i}", 0.5, Outcome({f"c{i}": c}, {f"k{i}": k}, missing={f"m{i}": "why"}))


def test_outcomes_survive_json():
    e = entry(0)
    assert codec.from_json(JournalEntry, codec.to_json(e), "journal") == e


def test_merging_keeps_everything():
    total = merge(entry(i).outcome for i in range(3))
    assert list(total.ceilings) == ["c0", "c1", "c2"]
    assert list(total.missing) == ["m0", "m1", "m2"]


def test_cut_at_any_byte_it_resumes_with_the_whole_lines(tmp_path):
    path = tmp_path / "out.json.journal.jsonl"
    journal = Journal(path, HEADER)
    for i in range(3):
        journal.add(entry(i))
    whole = path.read_bytes()
    ends = [i + 1 for i, b in enumerate(whole) if b == 10]
    for cut in {*range(0, len(whole), 37), *ends, *(e - 1 for e in ends), *(e + 1 for e in ends[:-1])}:
        path.write_bytes(whole[:cut])
        again = Journal(path, HEADER)
        kept = max(0, sum(e <= cut for e in ends) - 1)
        assert list(again.done) == [f"memory/{i}" for i in range(kept)], cut
        for i in range(kept, 3):
            again.add(entry(i))
        assert path.read_bytes() == whole, cut


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Header(SCHEMA, "NVIDIA A100", "quick", "2.11.0"), "was begun on NVIDIA A100"),
        (Header(SCHEMA, "NVIDIA H200", "full", "2.11.0"), "(--full"),
        (Header("chip.calibration_journal/2", "NVIDIA H200", "quick", "2.11.0"), "is newer than this chip reads"),
    ],
)
def test_another_journal_is_refused_in_one_line(tmp_path, other, said):
    path = tmp_path / "j.jsonl"
    Journal(path, other)
    with pytest.raises(ChipError) as e:
        Journal(path, HEADER)
    assert said in str(e.value)
    assert "\n" not in str(e.value)
    assert Journal(path, HEADER, restart=True).done == {}


def test_a_restart_forgets_a_journal_and_nothing_else(tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text('{"schema":"chip.measurement/1"}\n')
    for restart in (False, True):
        with pytest.raises(ChipError, match=r"is a chip\.measurement file"):
            Journal(path, HEADER, restart)
    assert path.exists()


def test_rubbish_in_the_middle_names_its_line_and_the_remedy(tmp_path):
    path = tmp_path / "j.jsonl"
    Journal(path, HEADER).add(entry(0))
    path.write_text(path.read_text() + "rubbish\n")
    with pytest.raises(ChipError, match="line 3 is not JSON; start over with --restart"):
        Journal(path, HEADER)
