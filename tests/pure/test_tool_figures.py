"""ITL and the figures of benchmarking tools: their names, their definitions, and that they agree with the requests."""

import pytest
from test_simulate_engine import Times, poisson, traffic

from chip.engines.timeline import LiveScheduler
from chip.simulator.engine import SimulatedEngine
from chip.simulator.fleet import serve
from chip.simulator.gaps import seconds
from chip.simulator.simulation import simulate
from chip.simulator.surface import Surface
from chip.simulator.tool_figures import spread

ASKED = {"workload": "poisson:prompt=300~0.5,output=60~0.5", "requests": 120, "rate": 12, "draws": 0}


def test_interpolated_percentiles_of_counted_values():
    row = spread("itl", [(0.001, 3), (0.005, 1)])  # 1, 1, 1, 5 ms
    assert row["mean_itl_ms"] == pytest.approx(2.0)
    assert row["std_itl_ms"] == pytest.approx(3**0.5)
    assert row["median_itl_ms"] == 1.0
    assert row["p90_itl_ms"] == pytest.approx(1 + 4 * 0.7)
    assert spread("itl", []) == {}


@pytest.mark.parametrize("merge", [True, False])
def test_gaps_add_up_to_the_time_after_the_first_token(merge):
    rows = poisson(20, 150, seed=3)
    surface, limits = Surface(Times()), LiveScheduler(max_num_seqs=64, max_num_batched_tokens=512)
    done = serve(
        lambda _: SimulatedEngine(surface, limits, 4000, None, merge),
        traffic(rows), 1 << 20,
    )  # fmt: skip
    gaps = seconds(e.gaps for e in done.engines)
    assert sum(n for _, n in gaps) == sum(o - 1 for _, _, o in rows), "one for each token after the first"
    after_first = sum(last - first for first, last in zip(done.first_s, done.last_s))
    assert sum(v * n for v, n in gaps) == pytest.approx(after_first, rel=1e-3)


def test_the_answer_has_the_names_of_vllm_bench_serve():
    a = simulate("llama-3.1-8b", goals="ttft=300ms", **ASKED).json()
    for metric in ("ttft", "tpot", "itl", "e2el"):
        row = [a[f"{p}_{metric}_ms"] for p in ("median", "p90", "p95", "p99")]
        assert row == sorted(row)
        assert a[f"mean_{metric}_ms"] > 0
    assert a["mean_ttft_ms"] == pytest.approx(a["ttft_ms"]["mean"])
    assert a["output_throughput"] == pytest.approx(a["output_tokens_per_s"])
    assert a["total_output_tokens"] == pytest.approx(a["output_throughput"] * a["duration"], rel=1e-4)
    assert a["request_goodput"] == a["goodput"]["requests_per_s"]
    assert a["total_tokens_per_s_per_gpu"] == pytest.approx(a["total_token_throughput"])
    assert a["tokens_per_s_per_user"] >= 1e3 / a["mean_tpot_ms"], "the mean of a rate is not below the rate of the mean"
    assert a["median_itl_ms"] < a["mean_itl_ms"], "others' prompts lengthen some"
    two = simulate("llama-3.1-8b", replicas=2, **ASKED).json()
    assert two["total_tokens_per_s_per_gpu"] == pytest.approx(two["total_token_throughput"] / 2)
