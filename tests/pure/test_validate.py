"""Predictions against runs. The runs here are synthetic: made from predictions by a known factor, so that every error,
bound and class is known beforehand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from asking import predict
from round_profiles import round_profile, write_profile

from chip.decoders import library
from chip.engines.profile import EngineProfile
from chip.files import artifact, codec, runs
from chip.files.runs import Energy, Run, Runs
from chip.hardware import gpus
from chip.predictor.roof import roof_of
from chip.predictor.stages import ALL, Stage
from chip.types import Ceiling, ChipError, Scenario
from chip.validate import judge, peers
from chip.validate.classes import CLASSES, groups, host_bound, intervals, judge_classes, repeats
from chip.validate.document import document, peer_classes
from chip.validate.points import GPU, HOST, UNKNOWN, Point, bound_of, summarise
from chip.validate.provenance import rests_on

DEVICE = "Round GPU"
BUSY = {"prefill": 1.0, "decode": 1.0}


def synthetic(gpu, model="llama-3.2-1b", engine="vllm", scenario=None, slower=1.0, **changes):
    """A run that took `slower` times what is predicted for it, three times alike."""
    s = scenario or Scenario(1, 1024, 5)
    answer = predict(library.find(model), gpu, engine, s).json()
    ttft = round(answer["ttft_ms"] * slower * 1e6)
    step = round((answer["tpot_ms"] or 0) * slower * 1e6)
    steps = (step,) * (s.output - 1)
    settings = {
        "ttft_ns": (ttft,) * 3, "step_ns": (steps,) * 3, "e2e_ns": (ttft + sum(steps),) * 3, "busy": BUSY,
        "device": DEVICE, "variant": "",
    }  # fmt: skip
    return Run(model, engine, scenario=s, status="ok", **{**settings, **changes})


def source(*these, path=Path("runs.json"), device=DEVICE):
    return judge.RunsSource(path, "file-id", device, Runs(tuple(these)))


def judged(gpu, *these, **options):
    return judge.judge([source(*these)], gpu, **options)


def by_metric(v):
    return {p.metric: p for p in v.points}


# -- points -----------------------------------------------------------------------------------------------------------
def test_errors_have_the_sign_of_the_prediction(round_gpu):
    found = by_metric(judged(round_gpu, synthetic(round_gpu, slower=1.25)))
    assert set(found) == {"ttft", "tpot", "e2e", "tokens_per_s"}
    for metric in ("ttft", "tpot", "e2e"):
        assert found[metric].error == pytest.approx(-0.2, abs=1e-5)
        assert found[metric].inside == (1.25 * found[metric].predicted <= found[metric].high)
    assert found["tokens_per_s"].error == pytest.approx(0.25, abs=1e-5)
    assert found["ttft"].called in ("compute", "memory", "launch", "host")


def test_a_run_as_predicted_is_inside(round_gpu):
    found = judged(round_gpu, synthetic(round_gpu))
    assert all(p.inside for p in found.points)
    assert max(abs(p.error) for p in found.points) < 1e-5
    (busy,) = (
        p for p in judged(round_gpu, synthetic(round_gpu, scenario=Scenario(64, 1024, 5))).points if p.metric == "ttft"
    )
    assert busy.half_width == pytest.approx(math.hypot(0.1, 0.035), rel=0.2)  # its roof, and the card


def test_one_token_has_no_time_per_token(round_gpu):
    assert "tpot" not in by_metric(judged(round_gpu, synthetic(round_gpu, scenario=Scenario(1, 64, 1))))


def test_memory_and_pool(round_gpu):
    memory = {"allocated_peak_bytes": 3 * 2**30, "kv_cache_tokens": 1000}
    hf = by_metric(judged(round_gpu, synthetic(round_gpu, engine="hf-eager", memory=memory)))
    vllm = by_metric(judged(round_gpu, synthetic(round_gpu, memory=memory)))
    assert hf["memory"].measured == 3 * 2**30
    assert hf["memory"].inside is None
    assert "memory" not in vllm  # it fills the card, whatever it is asked
    assert vllm["kv_cache_tokens"].measured == 1000
    assert "kv_cache_tokens" not in hf


def test_energy_compares_what_a_meter_reads(tmp_path):
    """Runs subtract idle power, predictions have it: it is added again."""
    power = {
        "idle_power": Ceiling(50.0, 50.0, 50.0, "W", "made up"),
        "joules_per_byte_copy": Ceiling(1e-11, 1e-11, 1e-11, "J/B", "made up"),
        "joules_per_flop_bf16": Ceiling(1e-12, 1e-12, 1e-12, "J/FLOP", "made up"),
    }
    gpu = write_profile(tmp_path / "metered.json", round_profile(power=power))
    run = synthetic(gpu, energy=Energy(1.0, 2.0, 50.0, "made up"))
    point = by_metric(judged(gpu, run))["joules_per_token"]
    assert point.measured == pytest.approx((3.0 + 50.0 * run.e2e_s) / 5)
    assert point.low < point.predicted < point.high


@pytest.mark.parametrize(
    ("busy", "bounds"),
    [
        ({"prefill": 0.95, "decode": 0.5}, (GPU, HOST, HOST)),
        ({"prefill": 0.2, "decode": 1.0}, (HOST, GPU, HOST)),
        ({"prefill": 0.99}, (GPU, UNKNOWN, UNKNOWN)),
        ({}, (UNKNOWN, UNKNOWN, UNKNOWN)),
    ],
)
def test_who_set_the_pace(round_gpu, busy, bounds):
    run = synthetic(round_gpu, busy=busy, scenario=Scenario(8, 2048, 3))
    assert tuple(bound_of(run, phase) for phase in ("prefill", "decode", "whole")) == bounds


# -- what belongs together --------------------------------------------------------------------------------------------
def point(error=0.0, **changes):
    made = Point(
        "chip", "m", "vllm", "", Scenario(1, 1024, 33), "tpot", 1 + error, 0.9, 1.1, 1.0, GPU, False, "memory", "r"
    )
    return replace(made, **changes)


def test_summary():
    found = summarise([point(e) for e in (-0.2, -0.1, 0.0, 0.1)] + [point(0.3, low=2.0, high=3.0)])
    assert (found.points, found.models) == (5, 1)
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.26)
    assert found.bias == pytest.approx(0.0)
    assert found.worst == pytest.approx(0.3)
    assert found.coverage == pytest.approx(0.8)
    assert found.half_width == pytest.approx(0.1 / 0.9)  # the median of 0.125, 0.111, 0.1, 0.091 and 0.385


@pytest.mark.parametrize(
    ("change", "titles"),
    [
        ({}, {"vLLM TPOT, GPU-bound"}),
        ({"bound": HOST}, set()),
        ({"bound": UNKNOWN}, set()),
        ({"metric": "ttft"}, {"vLLM TTFT, all"}),
        ({"metric": "ttft", "scenario": Scenario(4, 1024, 2)}, {"vLLM TTFT, all", "vLLM TTFT, >= 4096 tokens"}),
        ({"engine": "hf-graph"}, {"hf-graph TPOT and TTFT"}),
        ({"engine": "hf-eager", "metric": "ttft"}, set()),
        ({"engine": "hf-eager", "metric": "ttft", "scenario": Scenario(8, 1024, 2)}, {"hf-eager TTFT, >= 8192 tokens"}),
        ({"engine": "hf-eager"}, set()),
        ({"engine": "hf-eager", "variant": "sdpa=flash", "bound": HOST}, {"hf-eager TPOT, flash"}),
        ({"metric": "ttft", "latency_known": True}, {"vLLM TTFT, all", "vLLM TTFT, launch latency known"}),
        (
            {"engine": "hf-eager", "variant": "sdpa=flash", "latency_known": True},
            {"hf-eager TPOT, flash", "hf-eager TPOT, flash, launch latency known"},
        ),
        ({"metric": "joules_per_token"}, {"energy per token"}),
    ],
)
def test_classes(change, titles):
    assert {c.title for c in CLASSES if c.has(point(**change))} == titles


def test_a_class_is_met_by_both_figures():
    met = {j.wanted.title: j.met for j in judge_classes([point(0.01), point(0.015), point(0.04)])}
    assert met["vLLM TPOT, GPU-bound"] is True
    assert met["vLLM TTFT, launch latency known"] is None
    assert {j.wanted.title: j.met for j in judge_classes([point(metric="ttft")])}["vLLM TTFT, all"] is None, "not asked"
    far = {j.wanted.title: j.met for j in judge_classes([point(0.01)] * 8 + [point(0.3)] * 2)}
    assert far["vLLM TPOT, GPU-bound"] is False


def test_groups_tell_gpu_and_host_apart():
    found = groups([point(0.1), point(0.5, bound=HOST), point(0.2, metric="ttft")])
    assert [(g.metric, g.bound, g.found.points) for g in found] == [
        ("ttft", "all", 1), ("tpot", "all", 2), ("tpot", "gpu", 1), ("tpot", "host", 1),
    ]  # fmt: skip


def test_host_bound_points_are_named():
    waiting = host_bound([point(), point(bound=HOST, called="host"), point(bound=HOST, metric="e2e")])
    assert [(p.metric, p.called) for p in waiting] == [("tpot", "host")]


def test_intervals_are_counted():
    found = intervals([point(), point(measured=2.0), point(bound=HOST, low=None)])
    assert found.pop("metrics")["tpot"] == {"points": 2, "coverage": 0.5, "met": None}
    assert found == {
        "points": 2, "coverage": 0.5, "gpu_bound_points": 2, "gpu_bound_half_width": pytest.approx(0.1),
    }  # fmt: skip


# -- files of runs ----------------------------------------------------------------------------------------------------
def test_what_did_not_run_is_left_out_by_name(round_gpu):
    failed = Run("llama-3.2-1b", "vllm", "", Scenario(1, 8, 2), "failed", reason="out of memory")
    unknown = synthetic(round_gpu)
    unknown = replace(unknown, model="nobody-knows-it")
    found = judged(round_gpu, synthetic(round_gpu), failed, unknown)
    assert found.left_out[0] == "llama-3.2-1b vllm pp8+tg2xb1: failed (out of memory)"
    assert found.left_out[1].startswith("nobody-knows-it vllm pp1024+tg5xb1: cannot be predicted (no model")
    assert {p.model for p in found.points} == {"llama-3.2-1b"}


def test_the_config_that_ran_is_the_one_predicted(round_gpu):
    config = artifact.read_json(library.CONFIGS / "llama-3.2-1b.json")
    half = {**config, "num_hidden_layers": config["num_hidden_layers"] // 2}
    run = replace(synthetic(round_gpu), model="mine")
    found = judge.judge([replace(source(run), held=Runs((run,), {"mine": half}))], round_gpu)
    assert by_metric(found)["ttft"].error < -0.3


def test_only_one_engine(round_gpu):
    both = (synthetic(round_gpu), synthetic(round_gpu, engine="hf-graph"))
    assert {p.engine for p in judged(round_gpu, *both, engine="hf-graph").points} == {"hf-graph"}
    with pytest.raises(ChipError, match="none is ok and of engine hf-eager"):
        judged(round_gpu, *both, engine="hf-eager")


def test_another_device_is_refused(round_gpu):
    with pytest.raises(ChipError, match=r"is Round GPU, the runs are of NVIDIA H200"):
        judge.gpu_of([source(device="NVIDIA H200")], round_gpu)
    with pytest.raises(ChipError, match="the runs are of NVIDIA A100"):
        judge.gpu_of([source(device="NVIDIA A100-SXM4-80GB")], "l4")
    with pytest.raises(ChipError, match="several devices: NVIDIA H200, Round GPU"):
        judge.gpu_of([source(), source(device="NVIDIA H200")], "")
    with pytest.raises(ChipError, match="no GPU is known for runs of Round GPU; give --gpu"):
        judge.gpu_of([source()], "")
    assert judge.gpu_of([source(device="NVIDIA H200")], "") == "h200"
    assert judge.gpu_of([source(device="NVIDIA H200")], "sm_90:141GB") == "sm_90:141GB"  # how good is a stand-in?
    assert judge.gpu_of([source()], round_gpu) == round_gpu


def test_folders_are_read(tmp_path):
    run = synthetic("h200", device="NVIDIA H200")
    for name in ("b", "a"):
        runs.write(tmp_path / f"{name}.json", Runs((run,)), {"device": "NVIDIA H200"})
    assert [s.path.name for s in judge.read([tmp_path])] == ["a.json", "b.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ChipError, match="holds no file of runs"):
        judge.read([tmp_path / "empty"])


# -- what a prediction was made from -----------------------------------------------------------------------------------
def test_what_bundled_predictions_rest_on():
    used = rests_on("h200", "vllm")
    names = [u.path.name for u in used]
    assert names[:2] == ["h200.json", "h200.vllm.json"]
    assert [u.path for u in used[2:]] == [gpus.POINTS / "h200", gpus.IMPORTED / "h200"]
    assert used[0].inputs[0] in used[2].inputs  # our points were fitted with its first calibration
    assert len({u.id for u in used}) == len(used)
    stand_ins = [u.path.name for u in rests_on("a100", "vllm")]  # whose kept share and whose host stand in
    assert stand_ins == ["h200.json", "h200.vllm.json", "a100"]


def artifact_from(path, schema, data, *inputs):
    artifact.write(path, artifact.new(schema, data, {}, inputs))


def test_a_profile_made_from_the_runs_is_refused(tmp_path):
    gpu = tmp_path / "mine.json"
    write_profile(gpu, round_profile())
    run = synthetic(str(gpu))
    profile = codec.to_json(round_profile())
    artifact_from(gpu, gpus.HardwareProfile.SCHEMA, profile, "another", "file-id")
    with pytest.raises(ChipError, match=r"runs\.json: llama-3\.2-1b vllm .* is among the inputs of mine\.json; a pred"):
        judged(str(gpu), run)


def test_an_engine_profile_names_single_runs_and_concerns_its_engine_only(tmp_path):
    """A file of runs grows, and its id changes; the ids of its runs do not."""
    gpu = tmp_path / "mine.json"
    write_profile(gpu, round_profile())
    seen, unseen = synthetic(str(gpu)), synthetic(str(gpu), model="qwen2.5-7b")
    other = synthetic(str(gpu), engine="hf-graph")
    term = Ceiling(1e-3, 1e-3, 1e-3, "s", "made up")
    held = EngineProfile("vllm", "1", DEVICE, "a CPU", (), {"host_step_s": term})
    artifact_from(tmp_path / "mine.vllm.json", held.SCHEMA, codec.to_json(held), runs.id_of(seen))
    assert [u.path.name for u in rests_on(str(gpu), "vllm")] == ["mine.json", "mine.vllm.json"]
    assert judged(str(gpu), unseen, other).points
    with pytest.raises(ChipError, match=r"is among the inputs of mine\.vllm\.json"):
        judged(str(gpu), unseen, seen)


# -- stages -----------------------------------------------------------------------------------------------------------
def test_each_stage_adds_what_it_says():
    h200 = gpus.find("h200")
    sheet, measured = (roof_of(h200, s) for s in (Stage.DATASHEET, Stage.MEASURED))
    assert sheet.weights.value == h200.spec.ceilings["hbm"].value
    assert sheet.launch_s.value == 0
    assert measured.weights.value == h200.profile.ceilings["hbm_read"].value
    decoder, s = library.find("llama-3.1-8b"), Scenario(8, 1024, 16)
    sources = {stage: predict(decoder, "h200", "vllm", s, stage).json()["sources"] for stage in Stage}
    assert set(sources[Stage.DATASHEET]) == {"datasheet"}
    assert set(sources[Stage.MEASURED]) == {"roofline"}
    assert "interpolated" in sources[Stage.POINTS]


def test_all_stages_are_the_default():
    assert Stage.ENGINE == ALL
    decoder, s = library.find("llama-3.1-8b"), Scenario(8, 1024, 16)
    assert predict(decoder, "h200", "vllm", s).line() == predict(decoder, "h200", "vllm", s, ALL).line()


def test_without_a_datasheet_the_first_stage_is_left_out(tmp_path):
    gpu = write_profile(tmp_path / "bare.json", round_profile(spec=""))
    run = synthetic(gpu)
    assert not judged(gpu, run, stage=Stage.DATASHEET).points
    assert "has no datasheet" in judged(gpu, run, stage=Stage.DATASHEET).left_out[0]
    assert judged(gpu, run, stage=Stage.MEASURED).points


def test_stages_stand_side_by_side(round_gpu):
    sources = [source(synthetic(round_gpu))]
    stages = [judge.judge(sources, round_gpu, stage=stage) for stage in Stage]
    made = document(stages[-2], stages=stages)["ablation"]
    assert [m["stage"] for m in made] == ["datasheet", "measured", "calibrated", "points", "engine", "calibrate_only"]
    first, last = ({c["class"]: c for c in m["classes"]} for m in (made[0], made[-2]))
    assert last["vLLM TPOT, GPU-bound"]["median"] == pytest.approx(0, abs=1e-5)
    assert first["vLLM TPOT, GPU-bound"]["median"] > 0.2  # an A100's datasheet promises more than the round GPU keeps


# -- other predictors -------------------------------------------------------------------------------------------------
def said(**changes):
    settings = {
        "peer": "oracle", "model": "llama-3.2-1b", "gpu": "round", "engine": "vllm", "batch": 1, "prompt": 1024,
        "output": 5, "ttft_ms": 1.0, "tpot_ms": 1.0,
    }  # fmt: skip
    return peers.PeerAnswer(**{**settings, **changes})


def test_peers_are_held_against_the_same_runs(round_gpu):
    run = synthetic(round_gpu)
    answers = peers.Answers(
        {"oracle": "1.0"},
        (
            said(ttft_ms=run.ttft_s * 2e3, tpot_ms=None),
            said(prompt=99),
            said(engine="hf-graph"),
            said(gpu="h200"),
        ),
    )
    found = peers.judge(answers, [source(run)], "round")
    assert [(p.who, p.metric, p.inside) for p in found] == [("oracle 1.0", "ttft", None)]
    assert found[0].error == pytest.approx(1.0)
    ours = judged(round_gpu, run, synthetic(round_gpu, scenario=Scenario(1, 64, 5), slower=3)).points
    (row,) = peer_classes(ours, found)
    assert (row["class"], row["peer"], row["points"]) == ("vLLM TTFT, all", "oracle 1.0", 1)
    assert row["median"] == pytest.approx(1.0)
    assert row["chip_median"] == pytest.approx(0.0, abs=1e-5)  # over that one point, not over both


def test_the_recorded_answers():
    """Recorded from the packages themselves, with their versions: see benchmarks/README.md."""
    found = peers.read(Path(__file__).parents[2] / "benchmarks" / "peers" / "answers.json")
    assert {"aiconfigurator", "genz-llm", "llm-analysis"} <= set(found.peers)
    assert all(found.peers.values())
    for peer in found.peers:
        mine = [a for a in found.answers if a.peer == peer]
        answered = [a for a in mine if not a.error]
        assert len(answered) >= 100
        assert all(a.ttft_ms > 0 and a.tpot_ms > 0 for a in answered)
        assert all(a.ttft_ms is None for a in mine if a.error)


def test_answers_without_a_version_are_refused(tmp_path):
    path = tmp_path / "answers.json"
    data = codec.to_json(peers.Answers({}, (said(),)))
    artifact.write(path, artifact.new(peers.Answers.SCHEMA, data, {}))
    with pytest.raises(ChipError, match="gives no version of 'oracle'"):
        peers.read(path)


# -- the same point on several hosts ----------------------------------------------------------------------------------
def test_other_hosts_are_the_least_error_without_knowing_the_host(round_gpu):
    """Each of three hosts against the median of the two others; a point of one host alone tells nothing."""
    lengths = [100 * n for n in range(1, 6)]
    sources = [
        replace(source(*(synthetic(round_gpu, scenario=Scenario(1, n, 5), slower=s) for n in lengths)), id=str(s))
        for s in (1.0, 1.2, 2.0)
    ]
    v = judge.judge([*sources, source(synthetic(round_gpu, scenario=Scenario(2, 64, 5)))], round_gpu)
    (tpot, ttft) = repeats(v)
    assert (tpot["class"], tpot["points"]) == ("vLLM TPOT, GPU-bound", 15)
    assert (ttft["class"], ttft["points"]) == ("vLLM TTFT, all", 15)
    errors = sorted([1.6 / 1 - 1, 1.5 / 1.2 - 1, 1 - 1.1 / 2])
    assert tpot["median"] == pytest.approx(errors[1], rel=1e-4)
    assert tpot["p90"] == pytest.approx(errors[2], rel=1e-4)
    assert repeats(judge.judge(sources[:1], round_gpu)) == []
    assert document(v)["other_hosts"] == [tpot, ttft]


def test_the_length_of_the_answer_does_not_part_first_tokens(round_gpu):
    def of(outputs, slower, name):
        made = [synthetic(round_gpu, scenario=Scenario(1, 100 + n, outputs), slower=slower) for n in range(5)]
        return replace(source(*made), id=name)

    v = judge.judge([of(5, 1.0, "one"), of(9, 1.5, "other")], round_gpu)
    assert [row["class"] for row in repeats(v)] == ["vLLM TTFT, all"]
