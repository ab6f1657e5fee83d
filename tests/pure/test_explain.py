"""The account of a step: every term from its own measurement, and what is left said plainly."""

import json
import re
from dataclasses import replace

import pytest

from chip.explain import account as explain
from chip.files import traces
from chip.files.traces import Kernel, KernelEvent, Operator, TensorArg, Timing, Trace
from chip.lab.replay import results, signatures
from chip.lab.replay.results import Placed, Replay, Replayed, Sequenced
from chip.show import cli
from chip.types import ChipError

X, W = TensorArg((4, 8), (8, 1), "bfloat16", 0), TensorArg((8, 16), (1, 8), "bfloat16", 1)
MM = Operator("aten::mm", "default", (X, W), ({"tensor": 0}, {"tensor": 1}))
KERNELS = (
    Kernel("nvjet_a", "kernel", (8, 1, 1), (384, 1, 1), 0, 0, 0),
    Kernel("void at::native::add", "kernel", (1, 1, 1), (128, 1, 1), 0, 0, 1),
    Kernel("someone_elses", "kernel"),
)
# ten products of 10 us, ten additions of 2 us, one stranger of 4 us; 5 us of two streams together
EVENTS = tuple(
    [KernelEvent(0, 20_000 * i, 10_000, 7, i) for i in range(10)]
    + [KernelEvent(1, 20_000 * i + 11_000, 2_000, 7, i) for i in range(10)]
    + [KernelEvent(2, 5_000, 4_000, 8, -1)]
)
TIMINGS = {
    "graph": Timing((150_000,) * 20, "events", clock_hz=1.5e9),
    "eager": Timing((900_000,) * 20, "host clock"),
}
TRACE = Trace("m", "hf-graph", "decode", 1, 8, "bf16", "GPU", "graph", (MM,), KERNELS, EVENTS, TIMINGS, {}, 2**20)


def replay_of(**changes):
    keys = {s.kernel.name: s.key for s in signatures.workload_of(TRACE).signatures}
    product = Replayed(
        keys["nvjet_a"], "ok", "", "nvjet_a", "cuBLAS", (10_100,) * 5, 11_000.0, 800.0, 500.0, 2.0e9, 1.5e9
    )
    add = Replayed(
        keys["void at::native::add"], "ok", "", "void at::native::add", "", (1_900,) * 5, 2_400.0, 700.0, 0.0, 2e9, 2e9
    )
    return replace(Replay(TRACE.title, "GPU", "producer", 1, 5, (product, add)), **changes)


def test_terms_add_up_to_the_whole_exactly():
    report = explain.explain(TRACE, replay_of())
    rows = {r["term"]: r["us"] for r in report["breakdown"]}
    assert rows == {
        "isolated": 134.0,  # 10 x (11 + 2.4)
        "cache": -14.0,  # to 10.1 and 1.9
        "spread": 0.0,
        "missing": 4.0,
        "gaps": 15.0,  # 10 x (0.8 + 0.7)
        "clock": 5.0,  # 10 x 0.5: the model ran at the clock of unbroken load
        "overlap": -4.0,
        "unexplained": 10.0,
        "full_model": 150.0,
        "host": 750.0,
        "eager": 900.0,
    }
    assert list(rows)[-3:] == ["full_model", "host", "eager"]
    assert report["predicted_from_kernels_us"] == 140.0
    assert report["error_percent"] == pytest.approx(-6.667)
    assert report["error_percent_eager"] == pytest.approx(-84.444)
    assert report["error_percent_gpu_busy"] == pytest.approx(4.167)  # 120 us and the clock's 5, of 120
    assert report["unexplained_percent"] == pytest.approx(6.667)


def in_places():
    """With a sequence of 20 launches: 127.5 us in kernels, 134.5 us as a whole, so 0.35 us between two. Some products
    are slower than their median, 0.3 us on average."""
    product, add = replay_of().kernels
    places = {product.key: Placed(10_400.0, 10_700.0), add.key: Placed(2_050.0, 2_050.0)}
    return replay_of().with_places(Sequenced(Timing((134_500,) * 5, "events", 1.5e9), 127_500.0, 20), places)


def test_in_their_places_kernels_are_what_the_model_ran_and_the_clock_is_taken_out_of_it():
    report = explain.explain(TRACE, in_places())
    rows = {r["term"]: r["us"] for r in report["breakdown"]}
    assert rows == {
        "isolated": 134.0,
        "cache": -14.0,  # to 10.1 and 1.9, alone
        "switch": -0.5,  # 10 x (10.4 - 10.1 + 2.05 - 1.9), less the clock
        "spread": 3.0,
        "missing": 4.0,
        "gaps": 7.0,  # 20 x 0.35
        "clock": 5.0,
        "overlap": -4.0,
        "unexplained": 15.5,
        "full_model": 150.0,
        "host": 750.0,
        "eager": 900.0,
    }
    assert report["predicted_from_kernels_us"] == 134.5  # 10 x (10.7 + 2.05) and the gaps: the sequence itself
    assert report["error_percent_gpu_busy"] == pytest.approx(6.25)  # 127.5 of 120 us
    assert report["sequence"] == {
        "us": 134.5, "kernels_us": 127.5, "launches": 20, "gap_us": 0.35, "clock_hz": 1.5e9,
    }  # fmt: skip
    worst = report["worst_kernels"][0]
    assert (worst["captured_us"], worst["replayed_us"], worst["alone_us"]) == (10.0, 10.4, 10.1)
    assert report["kernels"]["median_abs_error_percent"] == pytest.approx(3.25)  # of 4 and 2.5
    tier = report["tier_breakdown"]["tier2_cublas"]
    assert (tier["total_us"], tier["alone_us"]) == (107.0, 101.0)


def test_a_sequence_that_ran_at_a_higher_clock_is_taken_to_the_models():
    """At 1.75 GHz the load costs a product 0.25 us, at the model's 1.5 GHz 0.5: ten of them 2.5 us more."""
    whole = in_places()
    faster = replace(whole.sequence, timing=replace(whole.sequence.timing, clock_hz=1.75e9))
    report = explain.explain(TRACE, replace(whole, sequence=faster))
    rows = {r["term"]: r["us"] for r in report["breakdown"]}
    assert (rows["switch"], rows["clock"]) == (2.0, 5.0)
    assert report["predicted_from_kernels_us"] == 137.0
    assert report["error_percent_gpu_busy"] == pytest.approx(8.333)  # 130 of 120 us
    assert sum(rows[term] for term in list(rows)[: list(rows).index("full_model")]) == pytest.approx(150.0)


def test_a_kernel_without_a_place_is_taken_alone():
    whole = in_places()
    product, _ = whole.kernels
    report = explain.explain(TRACE, replace(whole, kernels=(product, replay_of().kernels[1])))
    rows = {r["term"]: r["us"] for r in report["breakdown"]}
    assert rows["switch"] == -2.0  # 10 x (10.4 - 10.1), less the clock
    assert report["predicted_from_kernels_us"] == 133.0  # 10 x (10.7 + 1.9 + 0.7)
    assert sum(rows[term] for term in list(rows)[: list(rows).index("full_model")]) == pytest.approx(150.0)


def test_without_a_graph_of_the_model_a_place_still_counts():
    eager = replace(TRACE, timings={"eager": TIMINGS["eager"]})
    rows = {r["term"]: r["us"] for r in explain.explain(eager, in_places())["breakdown"]}
    assert rows["switch"] == 4.5
    assert "clock" not in rows
    assert sum(us for term, us in rows.items() if term != "full_model") == pytest.approx(900.0)


def test_a_kernel_that_takes_two_times_in_turn_is_seen():
    events = tuple(e._replace(duration_ns=15_000) if e.kernel == 0 and e.call >= 6 else e for e in TRACE.events)
    rows = {r["term"]: r["us"] for r in explain.explain(replace(TRACE, events=events), replay_of())["breakdown"]}
    assert rows["spread"] == 20.0  # four of ten products take 5 us longer than the median
    assert sum(rows[term] for term in list(rows)[: list(rows).index("full_model")]) == pytest.approx(150.0)


def test_a_clock_that_stays_costs_nothing():
    product = replay_of().kernels[0]
    assert explain.at_clock(replace(product, load_hz=1.99e9, load_ns=-170.0), 2.0e9) == 0


def test_the_median_error_of_kernels_is_met_in_percent_or_in_us():
    kernels = explain.explain(TRACE, replay_of())["kernels"]
    assert kernels["median_abs_error_percent"] == 3.0  # of 1 and 5
    assert kernels["median_within_4_percent_or_0.2_us"] is True
    far = [replace(k, samples_ns=tuple(2 * n for n in k.samples_ns)) for k in replay_of().kernels]
    assert (
        explain.explain(TRACE, replay_of(kernels=tuple(far)))["kernels"]["median_within_4_percent_or_0.2_us"] is False
    )


def test_a_model_that_runs_at_the_burst_clock_pays_nothing_for_the_load():
    product = replay_of().kernels[0]
    assert explain.at_clock(product, 2.0e9) == 0
    assert explain.at_clock(product, 1.75e9) == 250
    assert explain.at_clock(product, 1.2e9) == 500  # no further than what was measured
    assert explain.at_clock(product, None) == 500


def test_coverage_tiers_and_single_kernels():
    report = explain.explain(TRACE, replay_of())
    assert report["coverage"]["launches"] == pytest.approx(20 / 21)
    assert report["coverage"]["gpu_time"] == pytest.approx(120 / 124)
    product, add = (report["tier_breakdown"][t] for t in ("tier2_cublas", "tier3_framework"))
    assert (product["unique_kernels"], product["total_us"], product["same_kernel_share"]) == (1, 101.0, 1.0)
    assert (add["total_us"], add["captured_us"]) == (19.0, 20.0)
    assert report["kernels"]["median_abs_error_percent"] == pytest.approx(3.0)  # 1 % and 5 %
    assert report["kernels"]["within_4_percent_or_0.2_us"] == 1.0  # 0.1 us of 2
    assert [w["kernel"] for w in report["worst_kernels"]] == ["nvjet_a", "void at::native::add"]
    assert report["not_replayed"][0]["kernel"] == "someone_elses"
    assert "no operator launched it" in report["not_replayed"][0]["reason"]


def test_another_kernel_in_its_place_is_not_the_same():
    product, add = replay_of().kernels
    report = explain.explain(TRACE, replay_of(kernels=(replace(product, name="nvjet_b"), add)))
    assert report["tier_breakdown"]["tier2_cublas"]["same_kernel_share"] == 0.0


def test_a_fill_is_the_same_whether_or_not_the_profiler_knew_its_memory():
    product, add = replay_of().kernels
    fill = Kernel("Memset (Device)", "memset", size_bytes=4, operator=0)
    trace = replace(TRACE, kernels=(fill, *KERNELS[1:]))
    key = signatures.workload_of(trace).signatures[0].key
    again = replay_of(kernels=(replace(product, key=key, name="Memset (Unknown)"), add))
    assert explain.explain(trace, again)["tier_breakdown"]["tier1_cuda_runtime"]["same_kernel_share"] == 1.0


def test_without_a_graph_the_host_is_what_no_kernel_covers():
    eager = replace(TRACE, timings={"eager": TIMINGS["eager"]}, missing={"graph": "it synchronises"})
    rows = {r["term"]: r["us"] for r in explain.explain(eager, replay_of())["breakdown"]}
    assert "gaps" not in rows
    assert rows["host"] == 780.0  # 900 less 120 busy
    assert rows["full_model"] == 900.0
    assert sum(us for term, us in rows.items() if term != "full_model") == pytest.approx(900.0)


@pytest.mark.parametrize(
    ("timings", "says"),
    [
        (
            {"eager": Timing((100_000,) * 20, "host clock")},
            "0.1 ms, less than the 0.12 ms of its operators",
        ),
        ({**TIMINGS, "eager": Timing((140_000,) * 20, "host clock")}, "0.14 ms, less than the 0.15 ms as a graph"),
    ],
)
def test_a_host_that_would_take_less_than_no_time_is_not_shown(timings, says):
    """On a CPU operators are timed one by one, each within its dispatch: their sum may exceed the step."""
    report = explain.explain(replace(TRACE, timings=timings), replay_of())
    assert "host" not in {r["term"] for r in report["breakdown"]}
    assert [n for n in report["notes"] if n.startswith("host: its part cannot be told") and says in n]
    eager = timings["eager"].samples_ns[0] / 1e3
    assert {r["us"] for r in report["breakdown"] if r.get("total")} >= {eager}


def test_a_machine_that_others_used_is_said_first():
    flag = "disturbed: other processes used 1.5 of 2 CPUs while it was timed"
    trace = replace(TRACE, timings={n: replace(t, flags=(flag,)) for n, t in TIMINGS.items()})
    product, add = replay_of().kernels
    report = explain.explain(trace, replay_of(kernels=(replace(product, flags=(flag,)), add)))
    first, second, *_ = cli.command("explain").render(report).splitlines()
    assert first.startswith("DISTURBED: the capture: other processes used 1.5 of 2 CPUs")
    assert second.startswith("DISTURBED: the replay: other processes used 1.5 of 2 CPUs while it was timed (1 of 2")
    assert "DISTURBED" not in cli.command("explain").render(explain.explain(TRACE, replay_of()))


def test_energy_is_scaled_by_the_share_that_was_measured():
    product, add = replay_of().kernels
    timings = {**TIMINGS, "graph": replace(TIMINGS["graph"], joules=0.05)}
    report = explain.explain(replace(TRACE, timings=timings), replay_of(kernels=(replace(product, joules=0.004), add)))
    assert report["energy"]["kernels_j"] == pytest.approx(0.04)
    assert report["energy"]["share_of_gpu_time"] == pytest.approx(100 / 124, abs=1e-4)
    assert report["energy"]["kernels_scaled_j"] == pytest.approx(0.0496)
    assert report["energy"]["kernels_error_percent"] == pytest.approx(-20.0)  # had the rest drawn nothing
    assert report["energy"]["error_percent"] == pytest.approx(-0.8)
    said = cli.command("explain").render(report)
    assert "energy: 0.04 J in kernels of 80.7 % of GPU time, 0.0496 J if the rest draws as much" in said
    assert "0.05 J in the whole step: -20.00 % to -0.80 %" in said


@pytest.fixture
def files(tmp_path):
    traces.write(tmp_path / "trace.json", TRACE, {"torch": "2.11"})
    results.write(tmp_path / "replay.json", replay_of(), {}, ())
    return str(tmp_path / "trace.json"), str(tmp_path / "replay.json")


def test_explain_prints_the_account_and_writes_it(files, tmp_path, capsys):
    assert cli.main(["explain", *files]) == 0
    out = capsys.readouterr().out
    assert "from its kernels      140 us, -6.67 % (of GPU-busy time +4.17 %, of eager wall time -84.44 %)" in out
    assert "replayed              95.2 % of launches, 96.8 % of GPU time" in out
    assert re.search(r"unexplained +\+10\.0 us +\+6\.7 %", out)
    assert "not replayed: someone_elses x1: no operator launched it" in out
    report = json.loads((tmp_path / "comparison_report.json").read_text())
    assert report["error_percent"] == pytest.approx(-6.667)
    timing = json.loads((tmp_path / "full_model_timing.json").read_text())
    assert timing["graph"]["median_us"] == 150.0
    assert timing["gpu_busy_us"] == 120.0


def test_explain_draws(files, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli.main(["explain", *files, "--plot", str(tmp_path / "w.svg"), "--json"]) == 0
    drawn = (tmp_path / "w.svg").read_text()
    assert "gaps between kernels" in drawn
    assert "launched by the host, it takes 0.90 ms" in drawn, "in words: as a bar it would hide all others"
    assert "the axis does not begin at 0" in drawn
    (tmp_path / "comparison_report.json").unlink()
    assert cli.main(["explain", *files, "--plot", str(tmp_path / "w.txt")]) == 2
    assert not (tmp_path / "comparison_report.json").exists(), "said before anything is written"


def test_a_replay_of_another_step_is_refused(files, tmp_path, capsys):
    results.write(tmp_path / "replay.json", replay_of(title="m hf-graph decode 8 x 8"), {}, ())
    assert cli.main(["explain", *files]) == 2
    assert "is of m hf-graph decode 8 x 8; " in capsys.readouterr().err


def test_a_run_of_another_model_is_refused(files, tmp_path):
    from chip.files import runs

    runs.write(tmp_path / "runs.json", runs.Runs(()), {})
    with pytest.raises(ChipError, match="holds no run of m hf-graph decode 1 x 8"):
        cli.command("explain").run(cli.parser("explain").parse_args([*files, str(tmp_path / "runs.json")]))


def test_a_sequence_without_launches_is_refused(files, tmp_path, capsys):
    results.write(tmp_path / "replay.json", in_places(), {}, ())
    assert cli.main(["explain", *files]) == 0
    assert "in the model's order  134.5 us for 20 launches as one graph, 0.35 us between two" in capsys.readouterr().out
    raw = json.loads((tmp_path / "replay.json").read_text())
    raw["data"]["sequence"]["launches"] = 0
    (tmp_path / "replay.json").write_text(json.dumps(raw))
    assert cli.main(["explain", *files]) == 2
    assert "sequence needs launches and samples" in capsys.readouterr().err


def test_a_replay_that_says_ok_without_samples_is_refused(files, tmp_path, capsys):
    path = tmp_path / "replay.json"
    raw = json.loads(path.read_text())
    raw["data"]["kernels"][0]["samples_ns"] = []
    path.write_text(json.dumps(raw))
    assert cli.main(["explain", *files]) == 2
    assert "kernels[0]: ok means samples" in capsys.readouterr().err
