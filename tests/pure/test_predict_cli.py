"""`chip predict` as people see it: twenty lines for one prediction, a row each for a grid."""

import csv
import io
import json
import re

import pytest

from chip.question import DEFAULTS
from chip.show import cli
from chip.show.cli import grid


@pytest.fixture
def run(capsys):
    """Run `chip predict`: (exit code, stdout, stderr)."""

    def call(*words):
        try:
            code = cli.main(["predict", *(str(w) for w in words)])
        except SystemExit as e:
            code = e.code
        return (code, *capsys.readouterr())

    return call


# --- one prediction
ONE = [
    ["llama-3.1-8b"],
    ["llama-3.1-70b", "--gpu", "l4"],
    ["mixtral-8x7b", "--gpu", "sm_90:80GB", "--tp", 2],
    ["gpt2", "--engine", "hf-eager", "--output", 1],
]


@pytest.mark.parametrize("words", ONE, ids=lambda words: str(words[0]))
def test_it_fits_twenty_lines_and_its_memory_adds_up(run, words):
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= 20
    parts, total = next(line for line in lines if "CUDA context" in line).split(" = ")
    each = [float(x) for x in re.findall(r"(?:weights|cache|activations|context) ([\d.]+)", parts)]
    assert len(each) == 4
    assert sum(each) == pytest.approx(float(total.split()[0]))
    verdict = next(line for line in lines if line.startswith("memory a GPU: "))
    assert verdict.startswith(f"memory a GPU: {total} of ")


@pytest.mark.parametrize("words", ONE, ids=lambda words: str(words[0]))
def test_the_longest_lines_are_those_of_the_breakdown(run, words):
    found = json.loads(run(*words, "--json")[1])["breakdown"]
    _, out, _ = run(*words)
    for phase, title in (("ttft", "TTFT: "), ("tpot", "TPOT: ")):
        shown = [line.removeprefix(title) for line in out.splitlines() if line.startswith(title)]
        assert len(shown) == bool(found[phase])
        for line in shown:
            assert line.startswith(found[phase][0]["role"])
            assert sum(float(share) for share in re.findall(r"([\d.]+) %", line)) == pytest.approx(100, abs=0.3)


def test_breakdown_has_every_line(run):
    asked = ("llama-3.1-70b", "--gpu", "h100", "--tp", 4)
    found = json.loads(run(*asked, "--json")[1])["breakdown"]
    _, out, _ = run(*asked, "--breakdown")
    first, step = out.split("where the time goes: ")[1:]
    for text, phase in ((first, "ttft"), (step, "tpot")):
        roles = [line.split()[0] for line in text.splitlines()[3:] if line and not line.startswith("all rows:")]
        assert roles == [line["role"] for line in found[phase]]
    assert "attn_all_reduce" in first


def test_notes_come_before_the_figures(run):
    _, out, _ = run("llama-3.1-70b", "--gpu", "l4")
    lines = out.splitlines()
    assert lines[1].startswith("note: does not fit: needs 13")
    assert lines[2].startswith("note: l4 was never calibrated: ceilings are the datasheet of")
    assert next(i for i, line in enumerate(lines) if line.startswith("TTFT")) > 2
    _, document, err = run("llama-3.1-70b", "--gpu", "l4", "--json")
    assert [f"note: {note}" for note in json.loads(document)["notes"]] == err.splitlines()


# --- grids
def test_a_note_of_a_grid_names_its_rows():
    def row(gpu, batch, *notes):
        return {**dict.fromkeys(DEFAULTS, 1), "gpu": gpu, "batch": batch, "notes": "\n".join(notes)}

    rows = [row(gpu, batch, "all", f"of {gpu}") for gpu in ("a", "b") for batch in (1, 2, 3)]
    for at, note in {0: "one", 4: "one", 2: "more", 5: "of batch"}.items():
        rows[at]["notes"] += f"\n{note}"
    rows[2]["notes"] += "\nof batch"
    for at in (0, 1, 3, 5):
        rows[at]["notes"] += "\nmany"
    rows.append({**row("b", 4), "error": "it does not fit"})
    told = [line for line in grid.notes(rows) if line.startswith("note: ")]
    assert told == [
        "note: all",
        "note: gpu a: of a",
        "note: gpu a, batch 1; gpu b, batch 2: one",
        "note: gpu a, batch 1; gpu a, batch 2; gpu b, batch 1 and 1 more: many",
        "note: gpu a, batch 3: more",
        "note: batch 3: of batch",
        "note: gpu b: of b",
    ]


def test_a_grid_has_a_row_for_each_combination(run):
    asked = ("llama-3.1-8b", "--gpu", "h100,h200", "--batch", "1,8,32")
    code, out, err = run(*asked)
    assert (code, err) == (0, "")
    assert out.startswith("note: gpu h100: h100 was never calibrated")
    rows = out.splitlines()[-7:]
    assert [tuple(row.split()[:2]) for row in rows[:-1]] == [(g, b) for g in ("h100", "h200") for b in ("1", "8", "32")]
    assert rows[-1].startswith("all rows: model llama-3.1-8b, engine vllm, prompt 1024, output 128, dtype bf16")
    found = json.loads(run(*asked, "--json")[1])
    one = json.loads(run("llama-3.1-8b", "--gpu", "h200", "--batch", 8, "--json")[1])
    row = next(r for r in found if (r["gpu"], r["batch"]) == ("h200", 8))
    assert row["tpot_ms"] == pytest.approx(one["tpot_ms"], rel=1e-6)
    assert [row["ttft_low_ms"], row["ttft_high_ms"]] == pytest.approx(one["interval"]["ttft_ms"], rel=1e-6)
    table = list(csv.DictReader(io.StringIO(run(*asked, "--csv", "-")[1])))
    assert [float(r["tpot_ms"]) for r in table] == [r["tpot_ms"] for r in found]


@pytest.mark.parametrize(
    ("option", "values"),
    [("prompt", "16,32"), ("output", "1,2"), ("tp", "1,2"), ("engine", "vllm,hf-eager"), ("dtype", "bf16,fp8")],
)
def test_every_axis_takes_commas(run, option, values):
    found = json.loads(run("qwen3-8b", f"--{option}", values, "--json")[1])
    assert [str(row[option]) for row in found] == values.split(",")
    assert len({row["e2e_ms"] for row in found}) == 2


def test_options_hold_for_every_row(run):
    asked = ("qwen3-0.6b", "--engine", "hf-eager", "--batch")
    one = json.loads(run(*asked, 2, "--launch-ns", 20_000, "--json")[1])
    rows = json.loads(run(*asked, "1,2", "--launch-ns", 20_000, "--json")[1])
    assert rows[1]["tpot_ms"] == pytest.approx(one["tpot_ms"], rel=1e-6)
    assert rows[1]["tpot_ms"] > json.loads(run(*asked, "1,2", "--json")[1])[1]["tpot_ms"]


def test_rows_that_cannot_be_predicted_say_why(run):
    code, out, err = run("gpt2", "--tp", "1,7")
    assert code == 1
    assert "not predicted: tp 7: --tp 7 does not divide the 12 attention heads of gpt2\n" in out
    assert err == "chip predict: 1 of 2 rows could not be predicted\n"


@pytest.mark.parametrize("options", [[], ["--dtype", "fp8"], ["--output", 1], ["--kv-dtype", "fp8"]])
def test_the_timeline_of_a_step_is_as_long_as_the_step(run, options, tmp_path):
    file = tmp_path / "step.json"
    code, out, err = run("llama-3.1-8b", "--batch", 8, *options, "--timeline", file, "--json")
    assert code == 0
    assert err.endswith(f"wrote {file}: open it in https://ui.perfetto.dev\n")
    events = [e for e in json.loads(file.read_text())["traceEvents"] if e["ph"] == "X"]
    found = json.loads(out)
    step_ms = found["ttft_ms"] if found["output"] == 1 else found["tpot_ms"]
    busy_ms = sum(e["dur"] for e in events if e["tid"] == events[-1]["tid"]) / 1e3
    assert 0.5 * step_ms < busy_ms < 1.2 * step_ms, (busy_ms, step_ms)


def test_csv_replaces_only_its_own_tables(run, tmp_path):
    mine, other = tmp_path / "mine.csv", tmp_path / "other.csv"
    other.write_text("a,b\n")
    for batch in ("1", "1,2"):
        assert run("gpt2", "--batch", batch, "--csv", mine)[0] == 0
    assert len(mine.read_text().splitlines()) == 3
    assert "and a table of `chip predict` would replace it" in run("gpt2", "--csv", other)[2]
    assert other.read_text() == "a,b\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["gpt2", "--batch", "1,,2"], "argument --batch: an empty value between commas in '1,,2'"),
        (["gpt2", "--batch", "1,2,1"], "argument --batch: 1 is there twice"),
        (["gpt2", "--batch", "1,two"], "argument --batch: invalid int value: 'two'"),
        (["gpt2", "--gpu", "h100", "--gpu", "h200"], "--gpu is given twice; several values go into one option, with"),
        (["gpt2", "--timeline", "a.json", "--timeline", "b.json"], "--timeline is given twice; give it once"),
        (
            ["-", "--batch", "1,2"],
            "--trace, --timeline, --breakdown, --speculative and MODEL - take one value of each",
        ),
        (["gpt2", "--tp", "5,7"], "--tp 5 does not divide the 12 attention heads of gpt2"),
        (["gpt2", "--csv", "-", "--json"], "--csv does not go with --json"),
        (["gpt2", "--batch", ",".join(map(str, range(1, 10_002)))], "more than 10000 combinations; for sweeps of any"),
    ],
)
def test_bad_input_is_told_in_one_line(run, words, told):
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert err.startswith(f"chip predict: {told}")
    assert err.count("\n") == 1
