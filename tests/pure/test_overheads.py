"""An engine's terms in a prediction: by hand, and what they may never do."""

from pathlib import Path

import pytest
from conftest import round_profile, write_profile
from hypothesis import given, settings
from hypothesis import strategies as st

from chip import artifact, codec, engine_profile, engines, runs
from chip.engine_profile import TERMS, EngineProfile
from chip.models import library
from chip.predict.overheads import SOURCE, TOGETHER, Overheads, Work, together
from chip.predict.request import composer, predict
from chip.predict.roof import Range
from chip.predict.stages import Stage
from chip.types import Ceiling, Scenario

WORK = Work(
    steps=2,
    kernels=100,
    seqs=8,
    eager_kernels=60,
    graph_layers=6,
    requests=4,
    tokens=64,
)
GRAPHS = WORK._replace(eager_kernels=0, requests=0, tokens=0)  # decode steps, each prepared while the last one runs
RESULTS = Path(__file__).parents[2] / "results" / "h200"
DEVICE = Range(10e-3, 9e-3, 11e-3)
EXTRA = ("gaps", "around_the_model", "waiting_for_host", "before_first_step")


def terms(**values):
    return {name: Ceiling(v, 0.5 * v, 2 * v, "s", "made up for tests") for name, v in values.items()}


def rows(work=WORK, device=DEVICE, **values):
    return {row.role: row for row in Overheads(terms(**values)).extras(work, device)}


# --- by hand
def test_no_terms_no_rows():
    assert not Overheads({})
    assert rows() == {}
    assert rows(kernel_s=0.0, host_step_s=0.0, first_s=0.0) == {}


def test_gaps_and_what_is_around_the_model():
    found = rows(kernel_s=1e-6, step_s=5e-6)
    assert set(found) == {"gaps", "around_the_model"}
    assert found["gaps"].seconds == pytest.approx((100e-6, 50e-6, 200e-6))
    assert found["around_the_model"].seconds == pytest.approx((10e-6, 5e-6, 20e-6))
    assert {row.bound for row in found.values()} == {"launch"}
    assert (found["gaps"].calls, found["around_the_model"].calls) == (100, 2)


@pytest.mark.parametrize(
    ("name", "count"),
    [("host_step_s", 2), ("host_seq_s", 8), ("host_layer_graph_s", 6)],
)
def test_the_host_counts_where_it_is_the_longer(name, count):
    waits = rows(GRAPHS, **{name: 20e-3 / count})["waiting_for_host"]
    assert waits.seconds == pytest.approx((10e-3, 10e-3 - 9e-3, 40e-3 - 11e-3)), "the longer of two, low, middle, high"
    assert waits.bound == "host"
    hidden = rows(GRAPHS, **{name: 10e-3 / count})["waiting_for_host"]
    assert hidden.seconds == pytest.approx((0, 0, 20e-3 - 11e-3)), "it may still be the longer"
    assert rows(GRAPHS, **{name: 1e-3 / count}) == {}, "never the longer"


def test_kernels_launched_one_by_one_take_longer_than_either_queue():
    waits = rows(host_kernel_s=20e-3 / 60)["waiting_for_host"]
    by_hand = (20e-3**TOGETHER + 10e-3**TOGETHER) ** (1 / TOGETHER) - 10e-3
    assert waits.seconds[0] == pytest.approx(by_hand)
    assert (waits.bound, waits.calls) == ("host", 2)


@given(st.floats(0, 1e3), st.floats(0, 1e3))
def test_two_queues_together(host_s, device_s):
    longer, found = max(host_s, device_s), together(host_s, device_s)
    assert longer <= found <= min(host_s + device_s, longer * 2 ** (1 / TOGETHER) * (1 + 1e-9))
    assert found == together(device_s, host_s)
    assert together(2 * host_s, device_s) >= found


def test_the_device_is_idle_until_a_step_is_prepared():
    """Of prompts the first, since the next is prepared meanwhile; of eager decode all: each waits for its token."""
    values = {"host_step_s": 1e-3, "host_seq_s": 0.25e-3}
    prompts, eager = WORK._replace(eager_kernels=0), GRAPHS._replace(eager_kernels=60)
    assert rows(prompts, **values)["waiting_for_host"].seconds[0] == pytest.approx(1e-3 + 4 * 0.25e-3)
    assert rows(eager, **values)["waiting_for_host"].seconds[0] == pytest.approx(2 * (1e-3 + 4 * 0.25e-3))
    assert rows(GRAPHS, host_step_s=1e-3) == {}, "hidden behind the device"
    launching = rows(eager, **values, host_kernel_s=1e-3)["waiting_for_host"].seconds[0]
    assert launching == pytest.approx(2 * 2e-3 + together(60e-3, 10e-3) - 10e-3), (
        "then kernel by kernel, while it works"
    )


def test_a_device_of_a_wide_interval_does_not_hide_the_host():
    waits = rows(GRAPHS, device=Range(10e-3, 9e-3, 50e-3), host_step_s=10e-3)["waiting_for_host"]
    assert waits.seconds == pytest.approx((10e-3, 1e-3, 0.0)), "20 ms in all, though the most of the device is longer"


def test_gaps_hide_the_host_too():
    found = rows(GRAPHS, kernel_s=50e-6, step_s=2.5e-3, host_step_s=11e-3)
    busy = 10e-3 + 5e-3 + 5e-3
    assert found["waiting_for_host"].seconds[0] == pytest.approx(22e-3 - busy)


def test_what_comes_before_the_first_step_hides_nothing():
    found = rows(first_s=1e-3, request_s=1e-4, token_s=1e-5)
    assert found["before_first_step"].seconds[0] == pytest.approx(1e-3 + 4 * 1e-4 + 64 * 1e-5)
    assert found["before_first_step"].bound == "host"
    decode = WORK._replace(requests=0, tokens=0)
    assert rows(decode, first_s=1e-3, request_s=1e-4, token_s=1e-5) == {}


# --- in predictions
def gpu_with(folder, engine, **values):
    gpu = write_profile(folder / "gpu.json", round_profile())
    made = EngineProfile(engine, "1", "Round GPU", "a CPU", ("tiny",), terms(**values))
    artifact.write(folder / f"gpu.{engine}.json", artifact.new(EngineProfile.SCHEMA, codec.to_json(made), {}))
    return gpu


def phases(p):
    return [phase for phase in (p.prefill, p.decode) if phase is not None]


def extra_rows(p):
    return {n.role for phase in phases(p) for n in phase.lines if n.source == SOURCE}


@pytest.mark.parametrize("engine", engines.names())
def test_a_step_bound_by_the_host_says_so(tmp_path, engine):
    gpu = gpu_with(tmp_path, engine, host_step_s=0.5)
    a = predict(library.find("qwen3-0.6b"), gpu, engine, Scenario(4, 64, 8)).json()
    assert a["bound"] == {"ttft": "host", "tpot": "host"}
    assert a["tpot_ms"] == pytest.approx(500, rel=0.01)
    assert a["ttft_ms"] == pytest.approx(500, rel=0.02)
    row = a["breakdown"]["tpot"][0]
    assert (row["role"], row["source"], row["flops"], row["bytes"]) == ("waiting_for_host", "engine", 0, 0)


def test_what_the_host_launches(tmp_path):
    """hf-eager launches kernel by kernel; vLLM too, while a prefill has no graph; hf-graph nothing."""
    d = library.find("qwen3-0.6b")
    values = {"host_kernel_s": 1e-3, "host_layer_graph_s": 0.1}
    expected = {"hf-eager": (True, 0), "vllm": (True, 0), "hf-graph": (False, 28)}
    for engine, (kernels, pieces) in expected.items():
        (tmp_path / engine).mkdir()
        c, roof = composer(d, gpu_with(tmp_path / engine, engine, **values), engine, "bf16", 1)
        s = Scenario(1, 1024, 8)
        first = c.work(c.engine.prefill(s, roof.memory_bytes), s)
        assert (bool(first.eager_kernels), first.graph_layers) == (kernels, pieces)
        assert (first.steps, first.seqs, first.requests, first.tokens) == (1, 1, 1, 1024)
        step = c.work(c.engine.decode(s, roof.memory_bytes), None)
        assert step.steps == pytest.approx(1)
        assert step.seqs == pytest.approx(1)
        assert (step.graph_layers, step.requests, step.tokens) == (0, 0, 0)
        assert bool(step.eager_kernels) == (engine == "hf-eager")
    short = Scenario(1, 100, 8)
    c, roof = composer(d, str(tmp_path / "vllm" / "gpu.json"), "vllm", "bf16", 1)
    pieces = c.work(c.engine.prefill(short, roof.memory_bytes), short)
    assert (pieces.eager_kernels, pieces.graph_layers) == (0, 28)


def test_kernels_are_counted_as_the_engine_launches_them(tmp_path):
    """Qwen3-0.6B on vLLM: 28 layers of merged projections and fused norms, the embedding, the last norm, the head."""
    c, roof = composer(library.find("qwen3-0.6b"), gpu_with(tmp_path, "vllm", kernel_s=1e-6), "vllm", "bf16", 1)
    s = Scenario(1, 64, 8)
    step = c.work(c.engine.decode(s, roof.memory_bytes), None)
    p = predict(library.find("qwen3-0.6b"), str(tmp_path / "gpu.json"), "vllm", s)
    calls = {n.role: (n.kind, n.calls) for n in p.decode.lines if n.source != SOURCE}
    assert step.kernels == pytest.approx(sum(n * engines.get("vllm").KERNELS.get(k, 1) for k, n in calls.values()))
    gaps = next(n for n in p.decode.lines if n.role == "gaps")
    assert gaps.seconds == pytest.approx(step.kernels * 1e-6)


@pytest.mark.parametrize("engine", engines.names())
@pytest.mark.parametrize("stage", [s for s in Stage if s < Stage.ENGINE])
def test_stages_before_have_none(engine, stage):
    d, s = library.find("qwen3-0.6b"), Scenario(1, 128, 8)
    assert extra_rows(predict(d, "h200", engine, s, stage)) == set()
    assert extra_rows(predict(d, "h200", engine, s, Stage.ENGINE)) & set(EXTRA)


def test_a_gpu_without_engine_profiles_has_none(round_gpu):
    d, s = library.find("qwen3-0.6b"), Scenario(1, 128, 8)
    for engine in engines.names():
        whole, bare = (predict(d, round_gpu, engine, s, stage) for stage in (Stage.ENGINE, Stage.TABLES))
        assert whole.json() == bare.json()


@settings(max_examples=60)
@given(
    st.sampled_from(library.names()),
    st.sampled_from(engines.names()),
    st.builds(Scenario, st.integers(1, 64), st.integers(1, 5000), st.integers(1, 200)),
)
def test_engine_terms_never_make_a_prediction_faster(model, engine, s):
    """Of any bundled model on the H200, whose engines were measured."""
    d = library.find(model)
    with_terms, without = (phases(predict(d, "h200", engine, s, stage)) for stage in (Stage.ENGINE, Stage.TABLES))
    for more, less in zip(with_terms, without, strict=True):
        assert more.seconds >= less.seconds
        assert more.low_s >= less.low_s
        assert more.high_s >= less.high_s
        assert more.low_s <= more.seconds * (1 + 1e-12)
        assert more.seconds <= more.high_s * (1 + 1e-12)
        assert more.matmul_flops == pytest.approx(less.matmul_flops)


def test_terms_are_all_used():
    """A term that no row answers for would be measured for nothing."""
    work = Work(*[1] * len(Work._fields))
    for name in TERMS:
        assert rows(work, Range(1, 1, 1), **{name: 2.0}), name


def test_hosts_differ_by_as_much_as_the_two_calibrated_ones():
    """The terms of a bundled engine profile are of one host; on another they may be this much off."""
    first, second = (
        artifact.read(RESULTS / f"calibration-{i}.host.json", "chip.host_profile/1").data["terms"] for i in (1, 2)
    )
    handed_over = ("dispatch", "dispatch_linear", "launch", "graph_replay", "sync")
    ratios = [first[name]["value"] / second[name]["value"] for name in handed_over]
    apart = max(max(r, 1 / r) for r in ratios)
    assert apart == pytest.approx(engine_profile.BETWEEN_HOSTS, abs=0.005)


def test_another_host_widens_the_terms_of_the_host_alone():
    made = {name: Ceiling(1.0, 0.9, 1.2, "s", "made up") for name in engine_profile.TERMS}
    wider = engine_profile.elsewhere(made)
    for name, t in wider.items():
        assert t.value == 1.0
        on_host = name not in engine_profile.ON_THE_DEVICE
        assert (t.low, t.high) == (pytest.approx((0.9 / 1.64, 1.2 * 1.64)) if on_host else (0.9, 1.2))


def test_processes_of_one_host_are_apart_too():
    """Dummies of two depths, whose steps a host takes as long for: the factor is the largest ratio in the records."""
    ratios = []
    for path in sorted((RESULTS / "engines").glob("vllm-?.json")):
        steps: dict[str, list[float]] = {}
        for r in runs.read(path)[1].runs:
            if r.busy.get("decode", 1.0) < 0.5:
                steps.setdefault(r.scenario.name, []).append(r.tpot_s)
        ratios += [max(each) / min(each) for each in steps.values() if len(each) == 2]
    assert max(ratios) == pytest.approx(engine_profile.BETWEEN_PROCESSES, abs=0.01)
    term = Ceiling(2.0, 1.9, 2.2, "s", "made up")
    wider = engine_profile.here({"host_step_s": term, "kernel_s": term})
    assert wider["kernel_s"] == term
    assert wider["host_step_s"].low == pytest.approx(1.9 / engine_profile.BETWEEN_PROCESSES)
    assert wider["host_step_s"].high == pytest.approx(2.2 * engine_profile.BETWEEN_PROCESSES)


def test_a_clock_that_comes_back_slows_few_steps_by_little():
    """Its seconds are shared by the steps after a prompt, and are never more than a tenth of them."""
    five_ms = Range(5e-3, 5e-3, 5e-3)
    for lowered, adds_s in ((0.9 / 16, 0.9e-3 / 16), (0.9, 0.5e-3)):
        found = rows(WORK._replace(lowered=lowered), five_ms, recovery_s=1e-3)
        assert found["clock_coming_back"].seconds[0] == pytest.approx(adds_s)


def test_prompts_lower_the_clock_by_their_arithmetic():
    """A long prompt does; short ones and decode alone do not. Of the steps that follow, the first ones pay."""
    model = library.find("llama-3.1-8b")
    c, roof = composer(model, "h200", "vllm", "bf16", 1)
    lowered = [
        c.lowered(c.phase(c.engine.prefill(s, roof.memory_bytes), s))
        for s in (Scenario(1, 16, 17), Scenario(1, 4096, 17), Scenario(32, 512, 17))
    ]
    assert lowered[0] == 0.0
    assert 0.3 < lowered[1] < 0.6 < lowered[2] < 1.0
    few, many = (predict(model, "h200", "vllm", Scenario(32, 512, n)).decode for n in (17, 129))
    one, other = (next(x.seconds for x in p.lines if x.role == "clock_coming_back") for p in (few, many))
    assert one == pytest.approx(8 * other)
