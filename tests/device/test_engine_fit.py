"""An engine's terms from runs: runs made from known terms give them back."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numpy")
pytest.importorskip("scipy")
pytest.importorskip("sklearn")

from chip.predict.overheads import TOGETHER
from test_fit import DEVICE, write_profile

from chip import artifact, codec, engine_profile, hardware, runs, stats
from chip.engine_profile import EngineProfile
from chip.measure import engine_fit, engine_points, host_fit
from chip.models import describe
from chip.predict.request import predict
from chip.runs import Run, Runs
from chip.types import Ceiling, ChipError, Scenario

RECORDS = Path(__file__).parents[2] / "results" / "h200" / "engines"
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816,
    "num_attention_heads": 16, "num_key_value_heads": 8, "vocab_size": 8192, "max_position_embeddings": 40960,
    "hidden_act": "silu",
}  # fmt: skip
CONFIGS = {f"tiny-{n}-layers": {**CONFIG, "num_hidden_layers": n} for n in (4, 12)}
HOST_BOUND = tuple(Scenario(b, p, 9) for b, p in ((1, 64), (1, 400), (4, 64), (1, 1024), (2, 700), (16, 30), (8, 128)))
# the GPU waits for most of it, and yet its step is longer than its launch
LONG_BEFORE = (Scenario(32, 512, 9), Scenario(16, 1000, 9))
GPU_BOUND = (Scenario(64, 8192, 9), Scenario(64, 12000, 9))
VLLM = {
    "kernel_s": 0.5e-6, "step_s": 30e-6, "host_step_s": 3e-3, "host_seq_s": 20e-6, "first_s": 2e-3,
    "request_s": 150e-6, "token_s": 1e-6, "host_kernel_s": 30e-6, "host_layer_graph_s": 150e-6,
}  # fmt: skip
HF_GRAPH = {"kernel_s": 0.4e-6, "step_s": 15e-6}
HF_EAGER = {"host_step_s": 700e-6, "host_kernel_s": 16e-6, "first_s": 400e-6}
PACE_NS = 8000.0


@pytest.fixture
def made(tmp_path):
    """Runs as they would be on a GPU and host with these terms."""

    def make(engine, terms, scenarios, configs=CONFIGS):
        known = write_profile(tmp_path / f"known-{engine}-{len(list(tmp_path.iterdir()))}.json")
        held = {name: Ceiling(v, v, v, "s", "made up for tests") for name, v in terms.items()}
        profile = EngineProfile(engine, "1", DEVICE, "a CPU", tuple(configs), held)
        path = known.with_suffix(f".{engine}.json")
        artifact.write(path, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), {}))
        found = [run_of(name, config, str(known), engine, s) for name, config in configs.items() for s in scenarios]
        return Runs(tuple(found), dict(configs))

    return make


def run_of(name, config, gpu, engine, s):
    p = predict(describe(dict(config), name, name), gpu, engine, s)
    ttft, step = (round(phase.seconds * 1e9) for phase in (p.prefill, p.decode))
    busy = {
        phase: sum(n.seconds for n in found.lines if n.bound != "host") / found.seconds
        for phase, found in (("prefill", p.prefill), ("decode", p.decode))
    }
    steps = (step,) * (s.output - 1)
    return Run(
        name, engine, "", s, "ok", ttft_ns=(ttft,) * 2, step_ns=(steps,) * 2, e2e_ns=(ttft + sum(steps),) * 2,
        busy=busy, engine_version="1", device=DEVICE, launch_ns=(PACE_NS,) * 3,
    )  # fmt: skip


@pytest.fixture
def gpu(tmp_path):
    """The same GPU, its engines not measured yet."""
    return str(write_profile(tmp_path / "round.json"))


@pytest.mark.parametrize(
    ("engine", "terms", "scenarios"),
    [
        ("vllm", VLLM, HOST_BOUND + LONG_BEFORE + GPU_BOUND),
        ("hf-graph", HF_GRAPH, HOST_BOUND),
        ("hf-eager", HF_EAGER, HOST_BOUND),
    ],
    ids=("vllm", "hf-graph", "hf-eager"),
)
def test_known_terms_are_found_again(made, gpu, engine, terms, scenarios):
    found = made(engine, terms, scenarios)
    profile, inputs = engine_fit.fit([found], gpu, engine, "a CPU")
    assert {name: profile.terms[name].value for name in terms} == pytest.approx(terms, rel=0.03)
    assert set(profile.terms) == set(terms)
    assert inputs == [runs.id_of(r) for r in found.runs]
    assert (profile.engine, profile.engine_version, profile.device, profile.cpu) == (engine, "1", DEVICE, "a CPU")
    assert profile.models == tuple(CONFIGS)
    for term in profile.terms.values():
        assert 0 <= term.low <= term.value <= term.high
        assert term.unit == "s"


def test_a_busy_host_gives_outliers_not_another_term(made, gpu):
    """One run in ten took three times as long: terms are as before, to a few per cent."""
    found = made("vllm", VLLM, HOST_BOUND + GPU_BOUND)
    slow = replace(
        found.runs[2],
        ttft_ns=tuple(3 * ns for ns in found.runs[2].ttft_ns),
        step_ns=tuple(tuple(3 * ns for ns in each) for each in found.runs[2].step_ns),
    )
    spoiled = replace(found, runs=(*found.runs[:2], slow, *found.runs[3:]))
    clean, _ = engine_fit.fit([found], gpu, "vllm", "a CPU")
    profile, _ = engine_fit.fit([spoiled], gpu, "vllm", "a CPU")
    for name in ("host_step_s", "host_seq_s", "first_s", "host_layer_graph_s", "host_kernel_s"):
        assert profile.terms[name].value == pytest.approx(clean.terms[name].value, rel=0.05), name
    assert profile.terms["host_step_s"].high > 1.5 * profile.terms["host_step_s"].value, "the interval tells"


def test_what_is_read_back_predicts_the_runs(made, gpu, tmp_path):
    """From runs to a file to predictions of those very runs."""
    found = made("vllm", VLLM, HOST_BOUND)
    profile, inputs = engine_fit.fit([found], gpu, "vllm", "a CPU")
    path = tmp_path / "round.vllm.json"
    artifact.write(path, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), {}, inputs))
    for run in found.runs:
        p = predict(describe(dict(CONFIGS[run.model]), run.model, run.model), gpu, "vllm", run.scenario)
        assert p.prefill.seconds == pytest.approx(run.ttft_s, rel=0.05)
        assert p.decode.seconds == pytest.approx(run.tpot_s, rel=0.05)


@pytest.mark.parametrize("engine", ["vllm", "hf-eager"])
def test_one_depth_is_refused_in_one_line(made, gpu, engine):
    name = next(iter(CONFIGS))
    found = made(engine, {}, HOST_BOUND[:2], {name: CONFIGS[name]})
    with pytest.raises(ChipError, match=f"the terms of {engine} need runs of two depths of one model, found 1") as told:
        engine_fit.fit([found], gpu, engine, "a CPU")
    assert "\n" not in str(told.value)


def test_runs_of_other_engines_and_failed_ones_do_not_count(made, gpu):
    found = made("hf-graph", HF_GRAPH, HOST_BOUND[:2])
    with pytest.raises(ChipError, match="found 0"):
        engine_fit.fit([found], gpu, "vllm", "a CPU")
    deep = [replace(r, status="failed", reason="it fell") if "12" in r.model else r for r in found.runs]
    with pytest.raises(ChipError, match="found 1"):
        engine_fit.fit([replace(found, runs=tuple(deep))], gpu, "hf-graph", "a CPU")


def test_steps_after_a_prompt_tell_how_the_clock_comes_back(made, gpu):
    run = made("vllm", VLLM, GPU_BOUND).runs[0]
    point = engine_points.Point(run, "", "", 4, {}, {}, 0.0, 1.0, {}, 0)
    assert engine_fit._recovery(point) == 0.0
    slower_ns = (9e5, 4e5, 2e5, 1e5, 0, 0, 0, 7e5)  # the first and the last are no part of it
    steps = tuple(round(s + more) for s, more in zip(run.step_ns[0], slower_ns))
    assert engine_fit._recovery(point._replace(run=replace(run, step_ns=(steps,)))) == pytest.approx(0.7e-3)
    few = point._replace(run=replace(run, step_ns=(steps,)), lowered=0.1)
    assert engine_fit._recovery(few) == 0.0, "a short prompt lowers no clock: that is noise"
    faster = tuple(2 * s - t for s, t in zip(run.step_ns[0], steps))
    assert engine_fit._recovery(point._replace(run=replace(run, step_ns=(faster,)))) == 0.0


# --- hosts and their paces
def at(found, launch_ns, slower):
    """The same runs on a host that takes so much longer for everything, with or without its pace beside them."""
    paces = (launch_ns * slower,) * 3 if launch_ns else ()
    made = [
        replace(
            r,
            ttft_ns=tuple(round(slower * t) for t in r.ttft_ns),
            step_ns=tuple(tuple(round(slower * t) for t in each) for each in r.step_ns),
            launch_ns=paces,
        )
        for r in found.runs
    ]
    return replace(found, runs=tuple(made))


EAGER = HOST_BOUND[:4]


@pytest.mark.parametrize("seen", [True, False], ids=["its pace seen", "its pace not seen"])
def test_a_slow_host_tells_the_same_terms(made, gpu, seen):
    """The second host is twice as slow: the terms are those of the one between, at the pace between."""
    found = made("hf-eager", HF_EAGER, EAGER)
    hosts = [at(found, 8000.0, 1.0), at(found, 8000.0 if seen else 0.0, 2.0)]
    profile, _ = engine_fit.fit(hosts, gpu, "hf-eager", "a CPU")
    assert profile.launch_ns == pytest.approx(1.5 * 8000, rel=0.02)
    assert {name: t.value / 1.5 for name, t in profile.terms.items()} == pytest.approx(HF_EAGER, rel=0.03)


def test_repeats_in_which_the_host_changed_its_pace_do_not_count(made, gpu):
    found = at(made("hf-eager", HF_EAGER, EAGER), 8000.0, 1.0)
    changed = [
        replace(
            r,
            ttft_ns=(r.ttft_ns[0], 5 * r.ttft_ns[0]),
            step_ns=(r.step_ns[0], tuple(5 * ns for ns in r.step_ns[0])),
            launch_ns=(8000.0, 8000.0, 16000.0),
        )
        for r in found.runs
    ]
    profile, _ = engine_fit.fit([replace(found, runs=tuple(changed))], gpu, "hf-eager", "a CPU")
    assert profile.launch_ns == pytest.approx(3 * 8000), "the pace at which a median repeat would have been as long"
    assert {name: t.value / 3 for name, t in profile.terms.items()} == pytest.approx(HF_EAGER, rel=0.03)


def test_predictions_follow_the_pace(made, gpu, tmp_path):
    found = at(made("hf-eager", HF_EAGER, EAGER), 8000.0, 1.0)
    profile, inputs = engine_fit.fit([found], gpu, "hf-eager", "a CPU")
    path = tmp_path / "round.hf-eager.json"
    artifact.write(path, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), {}, inputs))
    for run in at(found, 8000.0, 1.7).runs:
        model = describe(dict(CONFIGS[run.model]), run.model, run.model)
        p = predict(model, gpu, "hf-eager", run.scenario, launch_ns=run.tpot_launch_ns)
        assert p.decode.seconds == pytest.approx(run.tpot_s, rel=0.05)
        assert p.decode.low_s < run.tpot_s < p.decode.high_s


def test_gaps_are_of_one_host(made, gpu):
    """Shallow models on a slow card, deep ones on another: no pair, and no gap of both."""
    found = made("hf-graph", HF_GRAPH, HOST_BOUND)
    slow = at(found, 0.0, 1.5)
    apart = [
        replace(found, runs=tuple(r for r in found.runs if "-4-" in r.model)),
        replace(slow, runs=tuple(r for r in slow.runs if "-12-" in r.model)),
    ]
    points = [engine_points.point(r, host, dict(CONFIGS), gpu) for host, each in enumerate(apart) for r in each.runs]
    assert engine_points.pairs(points) == []
    assert len(engine_points.pairs([p._replace(host=0) for p in points])) == len(HOST_BOUND)


def test_attention_in_the_engine_by_its_own_kernels(made, gpu):
    terms = {**VLLM, "attention_share": 0.2}
    found = made("vllm", terms, HOST_BOUND + GPU_BOUND)
    told = []
    for r in found.runs:
        point = engine_points.point(r, 0, dict(CONFIGS), gpu)
        alone_us, whole_us = point.attention_s * 1e6, point.device_s["decode"] * 1e6
        rows = [["flash::fwd", 1, 1.2 * alone_us], ["others", 1, whole_us - alone_us + 30]]
        told.append(replace(r, settings={"kernels": {"decode": rows}}))
    profile, _ = engine_fit.fit([replace(found, runs=tuple(told))], gpu, "vllm", "a CPU")
    assert profile.terms["attention_share"].value == pytest.approx(0.2, rel=0.01)
    assert profile.terms["attention_share"].unit == "1"
    assert profile.terms["step_s"].value == pytest.approx(30e-6, rel=0.01)
    assert profile.terms["kernel_s"].value == pytest.approx(VLLM["kernel_s"], rel=0.1)


# --- families
QWEN = {name: {**c, "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"} for name, c in CONFIGS.items()}


def of_both(made, engine, terms, other, scenarios):
    """Runs of two families, the second with terms of its own."""
    second = {f"other-{name}": config for name, config in QWEN.items()}
    one, two = made(engine, terms, scenarios), made(engine, {**terms, **other}, scenarios, second)
    return Runs((*one.runs, *two.runs), {**one.configs, **two.configs})


def test_a_family_has_terms_of_its_own(made, gpu):
    found = of_both(made, "hf-eager", HF_EAGER, {"host_kernel_s": 26e-6}, HOST_BOUND)
    profile, _ = engine_fit.fit([found], gpu, "hf-eager", "a CPU")
    each = {family: profile.terms_of(family)["host_kernel_s"].value for family in profile.families}
    assert each == pytest.approx({"LlamaForCausalLM": 16e-6, "Qwen2ForCausalLM": 26e-6}, rel=0.05)
    assert 16e-6 <= profile.terms["host_kernel_s"].value <= 26e-6
    assert profile.terms_of("Qwen2ForCausalLM")["host_kernel_s"].value == each["Qwen2ForCausalLM"]
    assert profile.terms_of("PhiForCausalLM") == profile.terms, "what all take, where it was not measured"


def test_one_family_needs_none_of_its_own(made, gpu):
    profile, _ = engine_fit.fit([made("hf-eager", HF_EAGER, HOST_BOUND)], gpu, "hf-eager", "a CPU")
    assert profile.families == {}


def watched(*names, engine):
    read = [(host, runs.read(RECORDS / name)[1]) for host, name in enumerate(names)]
    return [
        engine_points.point(r, host, held.configs, "h200")
        for host, held in read
        for r in held.runs
        if r.status == "ok" and r.engine == engine
    ]


@pytest.mark.parametrize(("engine", "name"), [("hf-eager", "hf"), ("vllm", "vllm")])
def test_what_one_host_tells_of_families_holds_on_another(engine, name):
    """At the pace of the other, for what waits for it: the width of intervals rests on it."""
    numbers = (4, 5) if engine == "hf-eager" else (5, 6)
    first, second = (watched(f"{name}-{n}.json", engine=engine) for n in numbers)
    off = []
    for here, there in ((first, second), (second, first)):
        told = host_fit.fit(here)
        for p in there:
            if p.waits("decode"):
                terms = {**told.terms, **told.families.get(p.family, {})}
                step = sum(terms[term].value * row(p) for term, row in host_fit._decode_rows(engine).items())
                off.append(abs(step * p.pace_ns["decode"] / told.launch_ns / p.measured_s["decode"] - 1))
    assert len(off) > 60
    assert stats.quantile(off, 0.9) <= engine_profile.WITHIN_A_FAMILY - 1


@pytest.mark.parametrize(
    ("engine", "name"), [("hf-eager", "hf-5"), ("hf-eager", "hf-4"), ("vllm", "vllm-5"), ("vllm", "vllm-6")]
)
def test_repeats_follow_the_pace_around_them(engine, name):
    """As docs/engines.md says: within a point, where the host kept its pace from before a repeat to after it."""
    off = []
    for p in watched(f"{name}.json", engine=engine):
        if not p.waits("decode"):
            continue
        around = zip(p.run.launch_ns, p.run.launch_ns[1:])
        each = [
            sum(steps) / (before + after)
            for steps, (before, after) in zip(p.run.step_ns, around)
            if max(before, after) <= engine_points.STEADY * min(before, after)
        ]
        off += [abs(e / stats.median(each) - 1) for e in each if len(each) > 2]
    assert len(off) > 90
    assert stats.median(off) <= 0.03


def test_queues_that_are_near_take_longer_than_either():
    """Which norm of the two: over prefills of dummies whose queues are within a factor of four, the host's as long a
    kernel as in their own decode steps, the device's as under the profiler."""
    told = engine_profile.find(hardware.find("h200"), "hf-eager")
    step, first = (told.terms[name].value / told.launch_ns for name in ("host_step_s", "first_s"))
    seen = []
    for p in watched("hf-4.json", "hf-5.json", engine="hf-eager"):
        run, pace = p.run, p.run.ttft_launch_ns
        host_s = (run.tpot_s / run.tpot_launch_ns - step) / p.kernels["decode"] * p.kernels["prefill"] * pace
        device_s = p.busy["prefill"] * run.ttft_s
        if 1 / 4 < device_s / host_s < 4:
            seen.append((host_s, device_s, (step + first) * pace, run.ttft_s))
    assert len(seen) > 30

    def error(norm):
        off = [abs((h**norm + d**norm) ** (1 / norm) + led - whole) / whole for h, d, led, whole in seen]
        return sum(off) / len(off)

    errors = {norm: error(norm) for norm in (3, 4, 5, 6, 8, 12, 60)}
    assert min(errors, key=errors.get) == TOGETHER
    assert errors[60] > 1.02 * errors[TOGETHER], "the longer alone"


def test_how_far_processes_and_hosts_are_apart_at_one_pace():
    """As the README and docs/engines.md say."""
    each = {}
    for p in watched("vllm-6.json", engine="vllm"):
        if p.run.scenario.batch == 1 and p.run.model in ("llama-20-layers", "qwen3-20-layers"):
            each.setdefault(p.run.model, []).append(p.measured_s["decode"] / p.pace_ns["decode"])
    slow, fast = (stats.median(each[model]) for model in ("llama-20-layers", "qwen3-20-layers"))
    assert slow / fast == pytest.approx(1.25, abs=0.02), "two processes, alike in what they launch"
    first, second = (engine_profile.read(RECORDS / f"hf-{n}.terms.json") for n in (4, 5))
    kernel = [found.terms["host_kernel_s"].value / found.launch_ns for found in (first, second)]
    assert kernel[1] / kernel[0] == pytest.approx(0.88, abs=0.02)


def test_attention_in_the_engine_takes_longer_with_more_sequences():
    """As the README says, of the dummies that it is learned from."""
    shares = {}
    for p in watched("vllm-3.json", "vllm-4.json", "vllm-5.json", engine="vllm"):
        if p.run.model.startswith("mistral") and p.busy["decode"] >= engine_fit.DEVICE_BOUND:
            inside = p.kernel_time_s("decode", engine_fit.ATTENTION)
            shares.setdefault(p.run.scenario.batch, []).append(inside / p.attention_s - 1)
    found = {batch: stats.median(each) for batch, each in shares.items()}
    assert found == {
        1: pytest.approx(0.15, abs=0.01),
        8: pytest.approx(0.35, abs=0.01),
        32: pytest.approx(0.25, abs=0.01),
    }
