"""What the README and results/h200 say of vLLM's kernels and of its hosts, computed anew from the recorded runs."""

from pathlib import Path

import pytest
from asking import predict

from chip.decoders import library
from chip.files import runs
from chip.predictor.stages import Stage
from chip.types import Scenario
from chip.validate import judge
from chip.validate.classes import COVERAGE, COVERAGE_POINTS, intervals, judge_classes
from chip.validate.points import GPU_BOUND

RESULTS = Path(__file__).parents[2] / "results" / "h200"
ROOT = RESULTS.parents[1]


def recorded(number):
    _, held = runs.read(RESULTS / "runs" / f"vllm-{number}.json")
    return {(r.model, r.scenario): r for r in held.runs if r.status == "ok"}


@pytest.fixture(scope="module")
def both():
    """(model, scenario) -> its runs on host 6 and on host 12."""
    first, second = recorded(1), recorded(2)
    return {key: (first[key], second[key]) for key in first if key in second}


def kernels(run, chosen):
    """Of the decode kernels whose names are chosen: launches a step, and microseconds of them all by the profiler."""
    rows = [row for row in run.settings["kernels"]["decode"] if chosen(row[0])]
    return sum(count for _, count, _ in rows), sum(us for _, _, us in rows)


def test_kernels_of_llama_against_their_predictions():
    """Decode of Llama-3.1-8B at 1 x 1024: durations in the engine, and what is predicted of each alone."""
    run = recorded(2)["llama-3.1-8b", Scenario(1, 1024, 17)]
    decoder = library.find(run.model)
    lines = predict(decoder, "h200", "vllm", run.scenario, Stage.POINTS).decode.lines
    alone_us = {line.role: line.seconds / line.calls * 1e6 for line in lines}
    layers = decoder.layers[0][0]
    norms, norms_us = kernels(run, lambda name: "rms_norm" in name)
    _, rotations_us = kernels(run, lambda name: name.startswith("triton_poi_fused_") and "silu" not in name)
    _, attention_us = kernels(run, lambda name: "flash::" in name)
    _, products_us = kernels(run, lambda name: "nvjet" in name or "splitK" in name)
    predicted_us = sum(x.seconds * 1e6 for x in lines if x.role.endswith("proj") or x.role == "lm_head")
    assert norms_us / norms == pytest.approx(alone_us["attn_norm"], rel=0.2)
    assert rotations_us / layers == pytest.approx(alone_us["q_rope"] + alone_us["k_rope"], rel=0.2)
    assert attention_us / layers == pytest.approx(alone_us["attention"], rel=0.3)
    assert products_us == pytest.approx(predicted_us, rel=0.05)


def test_two_hosts_differ_as_the_page_says(both):
    apart = {"tpot": {}, "ttft": []}
    hosted = {"tpot": [], "ttft": []}
    for (model, s), (first, second) in both.items():
        for metric, phase in (("tpot", "decode"), ("ttft", "prefill")):
            ratio = abs(getattr(second, f"{metric}_s") / getattr(first, f"{metric}_s") - 1)
            if min(first.busy[phase], second.busy[phase]) < GPU_BOUND:
                hosted[metric].append(ratio)
            elif metric == "tpot":
                apart["tpot"].setdefault(model, []).append(ratio)
            elif s.batch * s.prompt >= 4096:
                apart["ttft"].append(ratio)
    llama, others = apart["tpot"]["llama-3.1-8b"], [*apart["tpot"]["phi-3-mini"], *apart["tpot"]["qwen3-14b"]]
    page = (RESULTS / "README.md").read_text()
    for text in (
        f"{100 * min(llama):.1f} to {100 * max(llama):.1f} %",
        f"up to {100 * max(others):.1f} %",
        f"{100 * max(apart['ttft']):.1f} %",
        f"up to {100 * max(hosted['ttft']):.0f} %",
        f"up to {100 * max(hosted['tpot']):.0f} %",
    ):
        assert text in page, text
    assert max(*llama, *others, *apart["ttft"]) < 0.05 < min(max(hosted["tpot"]), max(hosted["ttft"]))


def test_with_the_terms_of_the_very_host():
    sources = judge.read([RESULTS / "runs" / f"vllm-{number}.json" for number in (5, 6)])
    terms = {(f"vllm-{n}", "vllm"): str(RESULTS / "engines" / f"vllm-{n}.terms.json") for n in (5, 6)}
    points = judge.judge(sources, "h200", "vllm", terms=terms).points
    found = next(j.found for j in judge_classes(points) if j.wanted.title.startswith("vLLM TTFT, all"))
    assert found.median < 0.10
    assert found.p90 < 0.40
    held = intervals(points)
    low, high = COVERAGE
    assert held["points"] == 120 >= COVERAGE_POINTS
    assert low <= held["coverage"] <= high
