"""`chip bench` against independent scripts that timed the same steps on the same machine, minutes apart.

One replays captured graphs of the model back to back between CUDA events; one times vLLM's `generate` for 1 and for 33
tokens from outside and divides the difference by 32. Held to 3 % where the GPU sets the pace.
"""

import json
from pathlib import Path

import pytest

from chip.files import runs

FOLDER = Path(__file__).resolve().parents[2] / "results" / "h200" / "agreement"
WITHIN = 0.03
HOST_BOUND = {("vllm", 1, 128, "ttft")}  # the GPU works for a third of it
# The reference replays prompt after prompt, at the clock that the power limit leads to; `chip bench` decodes between,
# and each prompt finds a GPU that has rested: its first repeat is 1 % from the reference.
MISSED = {("hf-graph", 8, 2048, "ttft"): -0.032}


def compared():
    reference = {}
    for engine, ttft, tpot in (("hf", "ttft_graph_ms", "tpot_graph_ms"), ("vllm", "ttft_ms", "tpot_ms")):
        for row in json.loads((FOLDER / f"reference-{engine}.txt").read_text())["rows"]:
            for metric, name in (("ttft", ttft), ("tpot", tpot)):
                value = row[name]["p50"] if isinstance(row[name], dict) else row[name]
                reference["hf-graph" if engine == "hf" else engine, row["batch"], row["prompt_len"], metric] = value
    found = {}
    for run in runs.read(FOLDER / "runs.json")[1].runs:
        for metric, ours_s in (("ttft", run.ttft_s), ("tpot", run.tpot_s)):
            key = (run.engine, run.scenario.batch, run.scenario.prompt, metric)
            found[key] = 1e3 * ours_s / reference.pop(key) - 1
    assert not reference
    return found


def test_steps_of_the_gpu_take_as_long():
    found = {key: error for key, error in compared().items() if key not in HOST_BOUND}
    assert len(found) == 9
    missed = {key: error for key, error in found.items() if abs(error) > WITHIN}
    assert missed == {key: pytest.approx(error, abs=0.001) for key, error in MISSED.items()}


def test_the_first_repeat_of_what_is_missed_is_as_long():
    run = next(r for r in runs.read(FOLDER / "runs.json")[1].runs if (r.engine, r.scenario.batch) == ("hf-graph", 8))
    row = json.loads((FOLDER / "reference-hf.txt").read_text())["rows"][1]
    assert run.ttft_ns[0] * 1e-6 == pytest.approx(row["ttft_graph_ms"]["p50"], rel=0.01)
    assert max(run.ttft_ns[1:]) < 0.98 * run.ttft_ns[0]
