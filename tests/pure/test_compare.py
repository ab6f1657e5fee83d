"""Two runs: faster, slower, unclear, and an exit code for machines."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from chip.explain.compare import compare, pairs
from chip.files import runs
from chip.show import cli
from chip.types import Scenario

MS = 1_000_000


def run(scale: float = 1.0, noise: float = 0.002, **changes: object) -> runs.Run:
    wobble = [scale * (1 + noise * i) for i in (-2, -1, 0, 1, 2, 1, 0, -1)]
    steps = tuple(tuple(round(w * ms * MS) for ms in (3, 4)) for w in wobble)
    ttft = tuple(round(w * 10 * MS) for w in wobble)
    made = runs.Run(
        "tiny", "hf-eager", "", Scenario(2, 8, 3), "ok", ttft_ns=ttft, step_ns=steps,
        e2e_ns=tuple(t + sum(s) for t, s in zip(ttft, steps)),
        memory={"allocated_peak_bytes": round(scale * 2**30)}, energy=runs.Energy(scale, 2 * scale, 70.0, "made up"),
    )  # fmt: skip
    return replace(made, **changes)


def verdicts(first: runs.Run, second: runs.Run) -> dict[str, str]:
    return {line.metric: line.verdict for line in compare(first, second).lines}


def test_three_answers() -> None:
    assert verdicts(run(), run(0.8)) == {
        "TTFT": "faster", "TPOT": "faster", "end to end": "faster", "peak memory": "less", "J/token": "less",
    }  # fmt: skip
    assert set(verdicts(run(), run(1.2)).values()) == {"slower", "more"}
    assert set(verdicts(run(), run(1.003)).values()) == {"unclear"}
    assert verdicts(run(noise=0.2), run(1.1, noise=0.2))["TTFT"] == "unclear"


def test_the_evidence_is_there() -> None:
    line = compare(run(), run(1.1)).lines[1]
    assert (line.metric, line.first, line.second) == ("TPOT", pytest.approx(3.5e-3), pytest.approx(3.85e-3))
    assert line.ratio == pytest.approx(1.1)
    assert line.low < line.ratio < line.high
    assert line.samples == (8, 8)


def test_only_what_both_have_is_compared() -> None:
    bare = run(energy=None, memory={})
    assert set(verdicts(run(), bare)) == {"TTFT", "TPOT", "end to end"}
    one = replace(bare, scenario=Scenario(2, 8, 1), step_ns=((),) * 8)
    assert set(verdicts(one, one)) == {"TTFT", "end to end"}


def test_points_find_their_partners() -> None:
    eager, flash, graph = run(), run(variant="sdpa=flash"), run(engine="hf-graph")
    far, bad = run(scenario=Scenario(4, 8, 3)), runs.Run("tiny", "vllm", "", Scenario(2, 8, 3), "failed", "no")
    found, alone = pairs([eager, flash, far, bad], [eager, graph])
    assert [(p.first, p.second) for p in found] == [(eager, eager), (flash, graph)]
    assert alone == [far]
    assert pairs([eager, flash], [graph]) == ([], [eager, flash, graph])  # which of the two?


def write(path: Path, *some: runs.Run) -> str:
    runs.write(path, runs.Runs(tuple(some)), {"torch": "2.13.0"})
    return str(path)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = write(tmp_path / "a.json", run()), write(tmp_path / "b.json", run(1.1))
    assert cli.main(["compare", before, after]) == 0
    out = capsys.readouterr().out
    assert "times of the second: 0 faster, 3 slower, 0 unclear" in out
    assert "+10.0%" in out
    assert cli.main(["compare", before, after, "--fail-over", "5%"]) == 1
    assert "chip compare: tiny hf-eager pp8+tg3xb2: TPOT is +10.0%" in capsys.readouterr().err
    assert cli.main(["compare", before, after, "--fail-over", "12"]) == 0
    assert cli.main(["compare", after, before, "--fail-over", "5%"]) == 0


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "a.json", run(), run(0.5, engine="hf-graph"), run(0.7, variant="sdpa=flash"))
    assert cli.main(["compare", f"{file}:hf-eager/", f"{file}:hf-graph", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (pair,) = found["pairs"]
    assert (found["schema"], pair["second"]["engine"]) == ("chip.comparison/1", "hf-graph")
    assert [m["verdict"] for m in pair["metrics"]] == ["faster"] * 3 + ["less"] * 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{a}", "{a}", "--fail-over", "much"], "--fail-over must be a percentage such as 5%, got 'much'"),
        (["{a}:hf-graph", "{a}"], "no run of hf-graph; it has hf-eager"),
        (["nowhere.json", "{a}"], "nowhere.json: no such file"),
        (["nowhere.json:vllm", "{a}"], "nowhere.json: no such file"),
        (["{a}", "{b}"], "have no finished point of the same model and scenario"),
    ],
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    files = {"a": write(tmp_path / "a.json", run()), "b": write(tmp_path / "b.json", run(model="other"))}
    assert cli.main(["compare", *(w.format(**files) for w in words)]) == 2
    assert says in capsys.readouterr().err


def test_models_of_one_name_are_not_compared() -> None:
    first, second = run(identity="aaaa"), run(0.5, identity="bbbb")
    assert pairs([first], [second]) == ([], [first, second])
    assert len(pairs([first], [replace(second, identity="aaaa", model="renamed")])[0]) == 1
    assert len(pairs([first], [replace(second, identity="")])[0]) == 1, "an old record has its label alone"


def drawn(draw: random.Random, repeats: int, shift: float, noise: float) -> runs.Run:
    """A process with an offset of its own, as processes have, and repeats around it."""
    centre = 1 + draw.gauss(0, shift)
    each = [round(1e7 * centre * (1 + abs(draw.gauss(0, noise)))) for _ in range(repeats)]
    steps = tuple((e // 4,) * 2 for e in each)
    return run(ttft_ns=tuple(each), step_ns=steps, e2e_ns=tuple(e + sum(s) for e, s in zip(each, steps)))


@pytest.mark.parametrize(("repeats", "shift", "noise"), [(2, 0.0, 0.02), (3, 0.005, 0.01), (5, 0.005, 0.02)])
def test_equals_are_told_apart_in_at_most_one_of_twenty(repeats: int, shift: float, noise: float) -> None:
    draw = random.Random(1)
    told = [
        line.verdict
        for _ in range(500)
        for line in compare(drawn(draw, repeats, shift, noise), drawn(draw, repeats, shift, noise)).lines[:3]
    ]
    assert sum(word != "unclear" for word in told) <= 0.05 * len(told)


def test_what_differs_is_still_told_apart() -> None:
    draw = random.Random(2)
    for slower in (1.1, 1.3):
        pairs_of = [(drawn(draw, 5, 0.002, 0.005), drawn(draw, 5, 0.002, 0.005)) for _ in range(50)]
        words = [
            compare(a, replace(b, ttft_ns=tuple(round(t * slower) for t in b.ttft_ns))).lines[0].verdict
            for a, b in pairs_of
        ]
        assert words.count("slower") >= 45


def test_too_few_samples_and_disturbed_runs_are_unclear() -> None:
    short = [drawn(random.Random(3), 2, 0, 0.001) for _ in range(2)]
    fast = replace(short[1], ttft_ns=tuple(t // 2 for t in short[1].ttft_ns))
    assert verdicts(short[0], fast)["TTFT"] == "unclear", "two against two fall apart by chance in one of three"
    assert verdicts(run(), run(0.5))["TTFT"] == "faster"
    hit = run(0.5, flags=("disturbed: other processes used 3.0 of 4 CPUs while it was timed",))
    assert verdicts(run(), hit)["TTFT"] == "unclear"
    one = run(ttft_ns=(10,), step_ns=((1, 1),), e2e_ns=(12,))
    json.dumps([(x.low, x.high) for x in compare(one, one).lines], allow_nan=False)


def test_a_host_at_another_speed_is_no_difference_of_what_ran() -> None:
    """Launch latencies beside the repeats tell of it; where the GPU sets the time they do not matter."""
    slow, quick = (4400.0, 4500.0), (4000.0, 4100.0)
    first, second = run(1.1, launch_ns=slow), run(launch_ns=quick)
    assert set(verdicts(first, second).values()) <= {"unclear"} | {"more", "less"}
    assert "faster" in verdicts(run(1.1, launch_ns=quick), second).values()
    busy = {"prefill": 0.99, "decode": 0.99}
    assert "faster" in verdicts(replace(first, busy=busy), replace(second, busy=busy)).values()
