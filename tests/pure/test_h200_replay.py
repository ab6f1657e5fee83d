"""Six steps replayed on an H200: their reports are what today's code makes of the records, and keep the bars."""

import json
from pathlib import Path

import pytest

from chip import explain, traces
from chip.cli.explain import REPORT, TIMING, waterfall_text
from chip.replay import results

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "h200" / "replay"
CASES = (
    "bloom-560m-1x5",
    "bloom-560m-8x512",
    "llama-3.1-8b-decode-8x512",
    "llama-3.1-8b-prefill-1x1024",
    "tinyllama-1.1b-decode-8x512",
    "tinyllama-1.1b-prefill-1x1024",
)
# recorded while views of weights did not say that they require grad: the head of a batch is a bmm that no model calls
BEFORE_THE_MEND = "bloom-560m-8x512"
MISSED = {BEFORE_THE_MEND: {"error": 3.10, "unexplained": -3.10}}  # percent


@pytest.fixture(params=CASES)
def case(request):
    return request.param


def document(case, name):
    return json.loads((RECORDS / case / name).read_text())


def records(case):
    return traces.read(RECORDS / case / "trace.json"), results.read(RECORDS / case / "replay.json")


def same(a, b):
    """Equal but for the last digit: sums of floats differ between releases of Python."""
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    return a == (pytest.approx(b, rel=1e-9, abs=1e-3) if isinstance(b, float) else b)


def test_these_are_all():
    assert sorted(p.name for p in RECORDS.iterdir()) == sorted(CASES)


def test_reports_are_what_the_records_give(case):
    (trace_file, trace), (replay_file, replay) = records(case)
    assert trace_file.id in replay_file.inputs
    made = {"environment": trace_file.environment, "inputs": [trace_file.id, replay_file.id]}
    assert same({**explain.explain(trace, replay), **made}, document(case, REPORT))
    assert same({**explain.timing_document(trace), **made}, document(case, TIMING))
    assert trace_file.environment["device"] == "NVIDIA H200"
    assert (replay.rule, replay.warmup, replay.runs) == ("producer", 10, 100), "the defaults"


def bars(case):
    """Of each bar the figure and whether it is met."""
    report, timing = document(case, REPORT), document(case, TIMING)
    graph_us, eager_us = timing["graph"]["median_us"], timing["eager"]["median_us"]
    unexplained_us = next(row["us"] for row in report["breakdown"] if row["term"] == "unexplained")
    share = 100 * unexplained_us / graph_us
    low_us, high_us = timing["eager"]["interval_us"]
    by_host = 100 * unexplained_us / eager_us
    noise = 50 * (high_us - low_us) / eager_us if graph_us < eager_us / 2 else 3.0  # where the host is the longer
    error = 100 * (report["predicted_from_kernels_us"] / graph_us - 1)
    kernels, products = report["kernels"], report["tier_breakdown"]["tier2_cublas"]
    median_percent, median_us = kernels["median_abs_error_percent"], kernels["median_abs_error_us"]
    return {
        "launches": (report["coverage"]["launches"], report["coverage"]["launches"] >= 0.98),
        "GPU time": (report["coverage"]["gpu_time"], report["coverage"]["gpu_time"] >= 0.99),
        "error": (error, abs(error) <= 3.0),
        "median kernel": (median_percent, median_percent <= 4.0 or median_us <= 0.2),
        "same product": (products["same_kernel_share"], products["same_kernel_share"] >= 0.9),
        "unexplained": (share, abs(share) <= 3.0),
        "unexplained, launched by the host": (by_host, abs(by_host) <= noise),
    }


def test_the_bars_are_met_but_where_it_is_said(case):
    found = bars(case)
    assert {name: round(value, 2) for name, (value, met) in found.items() if not met} == MISSED.get(case, {})


def heads_as_batches(trace):
    """Products with one weight for all of a batch, as a bmm."""
    return [o for o in trace.operators if o.name == "aten::bmm" and o.tensors[1].shape[0] > 1 > o.tensors[1].stride[0]]


def test_what_was_recorded_before_the_mend_is_marked(case):
    (_, trace), _ = records(case)
    assert len(heads_as_batches(trace)) == (case == BEFORE_THE_MEND)


def test_its_head_is_all_that_keeps_it_from_the_bars():
    report = document(BEFORE_THE_MEND, REPORT)
    worst = report["worst_kernels"][0]
    assert (round(worst["captured_us"]), round(worst["replayed_us"])) == (133, 962)
    without_us = report["predicted_from_kernels_us"] - worst["error_of_step_us"]
    assert abs(without_us / report["full_model_inference_us"] - 1) < 0.01


def test_every_launch_was_replayed_and_named_the_same(case):
    """Better than asked."""
    report = document(case, REPORT)
    assert report["coverage"] == {"launches": 1.0, "gpu_time": 1.0, "unique_kernels": 1.0}
    assert report["not_replayed"] == []
    assert {t["same_kernel_share"] for t in report["tier_breakdown"].values()} <= {1.0, None}


@pytest.mark.parametrize(
    ("case", "of_kernels", "scaled"),
    [("llama-3.1-8b-decode-8x512", 1.61, 12.61), ("llama-3.1-8b-prefill-1x1024", -12.72, -3.79)],
)
def test_energy_of_kernels_against_the_step(case, of_kernels, scaled):
    """No bar was set: what was found. The rest of the kernels is between nothing and the like of those measured."""
    energy = document(case, REPORT)["energy"]
    assert energy["share_of_gpu_time"] >= 0.9
    found = energy["kernels_error_percent"], energy["error_percent"]
    assert found == (pytest.approx(of_kernels, abs=0.01), pytest.approx(scaled, abs=0.01))


def test_the_readme_prints_an_account_as_it_is():
    printed = waterfall_text(document("tinyllama-1.1b-decode-8x512", REPORT)["breakdown"])
    assert f"```text\n{printed}\n```" in (ROOT / "README.md").read_text()
