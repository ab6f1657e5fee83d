"""Traffic: bundled traces with their notices, files with errors in one line, synthetic traffic that a seed repeats."""

import json

import pytest

from chip.simulator import synthetic, workload
from chip.simulator.simulation import traffic
from chip.types import ChipError

LINE = '{"arrival_s": 1.5, "prompt": 10, "output": 3}'


def test_the_bundled_traces_are_small_and_carry_their_notices():
    notice = (workload.FOLDER / "NOTICE.md").read_text()
    assert workload.names() == ["azure-code", "azure-conversation", "mooncake-conversation"]
    assert sum(p.stat().st_size for p in workload.FOLDER.iterdir()) < 300_000
    for name in workload.names():
        w = workload.named(name)
        assert f"{name}.csv.gz" in notice
        assert f"| {len(w):,}" in notice
        assert list(w.arrival_s) == sorted(w.arrival_s)
        assert min(w.prompt) >= 1
        assert min(w.output) >= 1
    assert "CC-BY-4.0" in notice
    assert "Apache-2.0" in notice


def test_the_traces_are_what_was_published():
    conversation, code = workload.named("azure-conversation"), workload.named("azure-code")
    assert (conversation.prompt[0], conversation.output[0]) == (374, 44)
    assert conversation.arrival_s[1] == pytest.approx(4.315, abs=1e-3)
    assert (code.prompt[0], code.output[0]) == (4808, 10)
    mooncake = workload.named("mooncake-conversation")
    assert mooncake.prompt[0] == 6758
    assert mooncake.blocks[0] == tuple(range(14))
    assert mooncake.blocks[1] == (0, *range(14, 28))
    assert mooncake.block_tokens == 512


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no requests"),
        ("nonsense", "line 1: is not JSON"),
        (LINE + "\n[1]", "line 2: must be an object"),
        ('{"arrival_s": -1, "prompt": 10, "output": 3}', "line 1: arrival_s must be seconds of at least 0, got -1"),
        ('{"arrival_s": NaN, "prompt": 10, "output": 3}', "arrival_s must be seconds of at least 0, got nan"),
        ('{"arrival_s": 1e400, "prompt": 10, "output": 3}', "arrival_s must be seconds of at least 0, got inf"),
        ('{"arrival_s": true, "prompt": 10, "output": 3}', "arrival_s must be seconds"),
        ('{"arrival_s": 0, "prompt": 0, "output": 3}', "prompt must be a whole number between 1 and"),
        ('{"arrival_s": 0, "prompt": 10, "output": 2.5}', "output must be a whole number"),
        ('{"arrival_s": 0, "prompt": 10}', "field 'output' is missing"),
        ('{"arrival_s": 0, "prompt": 10, "output": 3, "promt": 1}', "unknown field 'promt'"),
        ('{"arrival_s": 0, "prompt": 10, "output": 3, "blocks": [1, "a"]}', "blocks must be a list of whole numbers"),
        ('{"arrival_s": 0, "prompt": 10, "output": 3, "blocks": [1, 2]}', "2 blocks for a prompt of 10 tokens"),
    ],
)
def test_bad_lines_are_one_clear_line(text, says):
    with pytest.raises(ChipError) as e:
        workload.parse(text.splitlines(), "my.jsonl")
    assert says in str(e.value)
    assert str(e.value).startswith("my.jsonl")
    assert "\n" not in str(e.value)


def test_arrivals_out_of_order_are_sorted_and_it_is_said():
    rows = [{"arrival_s": t, "prompt": 10 + t, "output": 3} for t in (3, 1, 2)]
    w = workload.parse(map(json.dumps, rows), "my.jsonl")
    assert list(w.arrival_s) == [1, 2, 3]
    assert list(w.prompt) == [11, 12, 13]
    assert w.notes == ["my.jsonl: arrivals were out of order; they were sorted"]


def test_a_workload_survives_its_file():
    w = workload.first(workload.named("mooncake-conversation"), 20)
    again = workload.parse(workload.to_lines(w), "again")
    assert list(again.prompt) == list(w.prompt)
    assert again.blocks == w.blocks
    assert list(again.arrival_s) == pytest.approx(list(w.arrival_s))


def test_a_rate_rescales_and_zero_is_all_at_once():
    w = workload.first(workload.named("azure-code"), 200)
    faster = workload.at_rate(w, 50)
    assert faster.rate_per_s == pytest.approx(50)
    gaps = [b - a for a, b in zip(w.arrival_s, w.arrival_s[1:])]
    new = [b - a for a, b in zip(faster.arrival_s, faster.arrival_s[1:])]
    scale = w.rate_per_s / 50
    assert new == pytest.approx([g * scale for g in gaps], abs=1e-9)
    assert set(workload.at_rate(w, 0).arrival_s) == {0.0}


def test_a_trace_that_is_too_short_starts_again_with_new_blocks():
    w = workload.first(workload.named("mooncake-conversation"), 50)
    twice = workload.first(w, 150)
    assert len(twice) == 150
    assert list(twice.arrival_s) == sorted(twice.arrival_s)
    assert not set(twice.blocks[0]) & set(twice.blocks[50])
    assert "repeated" in twice.notes[-1]
    assert twice.rate_per_s == pytest.approx(w.rate_per_s, rel=0.05)


def test_a_seed_gives_the_same_requests():
    def made(seed):
        w = traffic("gamma:cv=4", 300, 10, seed)
        return list(w.arrival_s), list(w.prompt), list(w.output)

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_bursts_are_burstier_than_poisson():
    def variation(name):
        w = traffic(name, 4000, None, 0)
        gaps = [b - a for a, b in zip(w.arrival_s, w.arrival_s[1:])]
        mean = sum(gaps) / len(gaps)
        return (sum((g - mean) ** 2 for g in gaps) / len(gaps)) ** 0.5 / mean

    assert variation("uniform") == pytest.approx(0, abs=1e-6)
    assert variation("poisson") == pytest.approx(1, rel=0.1)
    assert variation("gamma:cv=3") == pytest.approx(3, rel=0.2)


def test_lengths_are_lognormal_around_a_median_or_fixed():
    w = traffic("poisson:prompt=400~0.9,output=64", 3000, None, 0)
    assert sorted(w.prompt)[1500] == pytest.approx(400, rel=0.1)
    assert set(w.output) == {64}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("poisson:prompt=0", "prompt must be a number between 1"),
        ("poisson:promt=5", "'promt=5' must be prompt=, output="),
        ("gamma:cv=nan", "cv must be a number between"),
        ("closed:users=0", "users must be a number between 1"),
    ],
)
def test_a_description_with_an_error_says_which(text, says):
    with pytest.raises(ChipError, match=says):
        synthetic.parse(text)


def test_unknown_names_list_what_is_there():
    with pytest.raises(ChipError, match="bundled: azure-code, azure-conversation, mooncake-conversation"):
        traffic("azur", None, None, 0)
    with pytest.raises(ChipError, match="--rate does not go with it"):
        traffic("closed:users=2", 10, 5, 0)
    with pytest.raises(ChipError, match="--requests must be between 1"):
        traffic("poisson", 0, 5, 0)
