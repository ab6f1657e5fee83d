"""An engine's terms from runs: runs made from known terms give them back."""

from dataclasses import replace

import pytest

pytest.importorskip("numpy")
pytest.importorskip("scipy")

from test_fit import DEVICE, write_profile

from chip.decoders import describe
from chip.engines.profile import EngineProfile
from chip.engines.timeline import ON_HOST
from chip.files import artifact, codec, runs
from chip.files.runs import Run, Runs
from chip.lab.measure import engine_fit
from chip.predictor import request
from chip.question import Question
from chip.types import Ceiling, ChipError, Scenario

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 8192, "max_position_embeddings": 40960,
    "hidden_act": "silu",
}  # fmt: skip
CONFIGS = {f"tiny-{n}-layers": {**CONFIG, "num_hidden_layers": n} for n in (8, 24)}
HOST_BOUND = tuple(Scenario(b, p, 9) for b, p in ((1, 64), (1, 400), (4, 64), (1, 1024), (2, 700), (16, 30), (8, 128)))
# the GPU waits for most of it, and yet its step is longer than its launch
LONG_BEFORE = (Scenario(32, 512, 9), Scenario(16, 1000, 9))
GPU_BOUND = (Scenario(64, 8192, 9), Scenario(64, 12000, 9))
VLLM = {
    "gap_s": 0.5e-6, "step_s": 30e-6, "first_s": 2e-3, "request_s": 150e-6, "host_step_s": 3e-3,
    "host_seq_s": 20e-6, "host_kernel_s": 30e-6, "host_experts_s": 400e-6, "host_piece_s": 200e-6,
}  # fmt: skip
HF_GRAPH = {"gap_s": 0.6e-6, "step_s": 45e-6}
HF_EAGER = {
    "gap_s": 0.5e-6, "first_s": 4e-3, "host_step_s": 700e-6, "host_call_s": 7e-6, "host_kernel_s": 16e-6,
    "host_experts_s": 400e-6,
}  # fmt: skip
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


def predict(model, gpu, engine, s, **more):
    return request.predict(Question.of(model, gpu, engine, s, **more), s)


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
    """Each within what so few runs tell; and with all of them together the runs to a few per cent."""
    found = made(engine, terms, scenarios)
    profile, inputs = engine_fit.fit([found], gpu, engine, "a CPU")
    assert set(profile.terms) == set(terms)
    tells = [name for name in ("host_step_s", "host_kernel_s", "host_piece_s") if name in terms] or ["step_s"]
    assert {n: profile.terms[n].value for n in tells} == pytest.approx({n: terms[n] for n in tells}, rel=0.35)
    assert inputs == [runs.id_of(r) for r in found.runs]
    assert (profile.engine, profile.engine_version, profile.device, profile.cpu) == (engine, "1", DEVICE, "a CPU")
    assert profile.models == tuple(CONFIGS)
    for term in profile.terms.values():
        assert 0 <= term.low <= term.value <= term.high
        assert term.unit == "s"
        assert term.method


def test_a_busy_host_gives_outliers_not_another_term(made, gpu):
    """One run in ten took three times as long: terms are as before, to some per cent."""
    found = made("vllm", VLLM, HOST_BOUND + GPU_BOUND)
    slow = replace(
        found.runs[2],
        ttft_ns=tuple(3 * ns for ns in found.runs[2].ttft_ns),
        step_ns=tuple(tuple(3 * ns for ns in each) for each in found.runs[2].step_ns),
    )
    spoiled = replace(found, runs=(*found.runs[:2], slow, *found.runs[3:]))
    clean, _ = engine_fit.fit([found], gpu, "vllm", "a CPU")
    profile, _ = engine_fit.fit([spoiled], gpu, "vllm", "a CPU")
    for name in ("host_step_s", "host_kernel_s"):
        assert profile.terms[name].value == pytest.approx(clean.terms[name].value, rel=0.15), name
    assert profile.terms["host_step_s"].high >= clean.terms["host_step_s"].high, "the interval tells"


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
    with pytest.raises(ChipError, match=f"no two runs of {engine} differ in their layers") as told:
        engine_fit.fit([found], gpu, engine, "a CPU")
    assert "\n" not in str(told.value)


def test_runs_of_other_engines_and_failed_ones_do_not_count(made, gpu):
    found = made("hf-graph", HF_GRAPH, HOST_BOUND[:2])
    with pytest.raises(ChipError, match="no two runs of vllm differ in their layers"):
        engine_fit.fit([found], gpu, "vllm", "a CPU")
    deep = [replace(r, status="failed", reason="it fell") if "24" in r.model else r for r in found.runs]
    with pytest.raises(ChipError, match="no two runs of hf-graph differ in their layers"):
        engine_fit.fit([replace(found, runs=tuple(deep))], gpu, "hf-graph", "a CPU")


def test_runs_that_do_not_belong_together_are_refused(made, gpu):
    found = made("hf-graph", HF_GRAPH, HOST_BOUND[:2])
    mixed = (*found.runs[:-1], replace(found.runs[-1], engine_version="5"))
    with pytest.raises(ChipError, match="are of several versions, 1, 5: keep them apart"):
        engine_fit.fit([replace(found, runs=mixed)], gpu, "hf-graph", "a CPU")
    other = replace(found.runs[-1], scenario=replace(found.runs[-1].scenario, dtype="fp16"))
    with pytest.raises(ChipError, match="of several number formats"):
        engine_fit.fit([replace(found, runs=(*found.runs[:-1], other))], gpu, "hf-graph", "a CPU")
    with pytest.raises(ChipError, match="no two runs"):
        engine_fit.fit([replace(found, configs={})], gpu, "hf-graph", "a CPU")


# --- hosts and their launch latencies
def at(found, launch_ns, slower):
    """The same runs on a host that takes so much longer for everything, with its launch latency beside them or not."""
    latencies = (launch_ns * slower,) * 3 if launch_ns else ()
    made = [
        replace(
            r,
            ttft_ns=tuple(round(slower * t) for t in r.ttft_ns),
            step_ns=tuple(tuple(round(slower * t) for t in each) for each in r.step_ns),
            launch_ns=latencies,
        )
        for r in found.runs
    ]
    return replace(found, runs=tuple(made))


EAGER = HOST_BOUND[:4]


def test_a_slow_host_tells_the_same_terms(made, gpu):
    """The second host is twice as slow, and its launches are: at one latency both take as long."""
    found = made("hf-eager", HF_EAGER, EAGER)
    one, _ = engine_fit.fit([at(found, 8000.0, 1.0)], gpu, "hf-eager", "a CPU")
    both, _ = engine_fit.fit([at(found, 8000.0, 1.0), at(found, 8000.0, 2.0)], gpu, "hf-eager", "a CPU")
    assert both.launch_ns == pytest.approx(1.5 * 8000, rel=0.02)
    for name in ("host_step_s", "host_kernel_s"):
        assert both.terms[name].value / both.launch_ns == pytest.approx(
            one.terms[name].value / one.launch_ns, rel=0.2
        )  # fmt: skip


def test_runs_with_a_latency_beside_them_count_alone(made, gpu):
    found = made("hf-eager", HF_EAGER, EAGER)
    mixed = [at(found, 8000.0, 1.0), at(found, 0.0, 9.0)]
    profile, inputs = engine_fit.fit(mixed, gpu, "hf-eager", "a CPU")
    assert len(inputs) == len(found.runs)
    assert profile.launch_ns == pytest.approx(8000)


def test_predictions_follow_the_launch_latency(made, gpu, tmp_path):
    found = at(made("hf-eager", HF_EAGER, EAGER), 8000.0, 1.0)
    profile, inputs = engine_fit.fit([found], gpu, "hf-eager", "a CPU")
    path = tmp_path / "round.hf-eager.json"
    artifact.write(path, artifact.new(EngineProfile.SCHEMA, codec.to_json(profile), {}, inputs))
    for run in at(found, 8000.0, 1.7).runs:
        model = describe(dict(CONFIGS[run.model]), run.model, run.model)
        p = predict(model, gpu, "hf-eager", run.scenario, launch_ns=run.tpot_launch_ns)
        assert p.decode.seconds == pytest.approx(run.tpot_s, rel=0.05)
        assert p.decode.low_s < run.tpot_s < p.decode.high_s


@pytest.mark.parametrize("engine", ["hf-eager", "vllm"])
def test_terms_are_of_the_runs_that_they_matter_to(made, gpu, engine):
    terms = HF_EAGER if engine == "hf-eager" else VLLM
    profile, _ = engine_fit.fit([made(engine, terms, HOST_BOUND)], gpu, engine, "a CPU")
    for name, term in profile.terms.items():
        assert ("not waiting" in term.method) == (name not in ON_HOST)
