"""What an engine adds, as a file: where it is looked for, what it may hold, and what is said of a bad one."""

import copy

import pytest
from round_profiles import round_profile, write_profile

from chip import engines
from chip.engines import profile as engine_profile
from chip.engines.profile import ENGINES, KNOWN_LATENCY, OTHER_HOST, SAME_HOST, SUCH_HOST, EngineProfile
from chip.engines.timeline import MEANING, ON_HOST
from chip.files import artifact, codec
from chip.hardware import gpus
from chip.show import cli
from chip.types import Ceiling, ChipError

TERM = {"value": 2e-6, "low": 1e-6, "high": 3e-6, "unit": "s", "method": "made up for tests"}
BUNDLED = sorted(ENGINES.glob("*.json"))


def document(**changes):
    data = {
        "engine": "vllm", "engine_version": "vllm 1", "device": "Round GPU", "cpu": "a CPU", "models": ["tiny"],
        "terms": {"gap_s": dict(TERM), "host_step_s": dict(TERM)},
    }  # fmt: skip
    return {**copy.deepcopy(data), **changes}


def write(path, data, schema=EngineProfile.SCHEMA):
    artifact.write(path, artifact.new(schema, data, {}))
    return path


# --- where
def test_of_a_bundled_gpu_in_the_data_of_another_beside_its_profile(tmp_path):
    assert engine_profile.path_for(gpus.find("h200"), "vllm") == ENGINES / "h200.vllm.json"
    assert engine_profile.path_for(gpus.find("h100"), "hf-eager") == ENGINES / "h100.hf-eager.json"
    mine = gpus.find(write_profile(tmp_path / "my.gpu.json", round_profile()))
    assert engine_profile.path_for(mine, "hf-graph") == tmp_path / "my.gpu.hf-graph.json"


def test_ones_own_are_found_and_those_of_the_reference_host_where_there_are_none(tmp_path):
    mine = gpus.find(write_profile(tmp_path / "my.json", round_profile()))
    reference = engine_profile.read(ENGINES / "h200.vllm.json")
    for h in (mine, gpus.find("h100"), gpus.find("h200")):
        found = engine_profile.find(h, "vllm")
        assert found.host == reference.cpu
        assert found.terms[0].host_step_s == reference.terms["host_step_s"].value
    write(tmp_path / "my.vllm.json", document())
    found = engine_profile.find(mine, "vllm")
    assert found.host == "", "the asker's own"
    value, low, high = found.terms
    assert (value.gap_s, low.gap_s, high.gap_s) == (2e-6, 1e-6, 3e-6), "the device's is as it was measured"
    assert (low.host_step_s, high.host_step_s) == pytest.approx((1e-6 / SAME_HOST, 3e-6 * SAME_HOST))
    assert engine_profile.find(gpus.find("h100"), "vllm").host, "a datasheet has no host"


def test_another_host_is_less_certain_than_ones_own_a_known_latency_more(tmp_path):
    assert 1 < KNOWN_LATENCY < SAME_HOST < SUCH_HOST < OTHER_HOST < 3
    h200 = gpus.find("h200")
    latency = engine_profile.read(ENGINES / "h200.vllm.json").launch_ns
    unknown, known, slow = (engine_profile.find(h200, "vllm", launch_ns=ns) for ns in (0.0, latency, 2 * latency))
    assert (unknown.at_latency, known.at_latency, known.host) == (False, True, "")
    for name in ON_HOST:
        value, low, high = (getattr(t, name) for t in known.terms)
        assert getattr(unknown.terms[0], name) == value
        assert getattr(unknown.terms[1], name) <= low <= value <= high <= getattr(unknown.terms[2], name)
        assert getattr(slow.terms[0], name) == pytest.approx(2 * value), "in proportion"
    assert slow.terms[0].gap_s == known.terms[0].gap_s, "the device does not know the host"
    older = write(tmp_path / "older.json", document(device="NVIDIA H200"))
    found = engine_profile.find(h200, "vllm", str(older), latency)
    assert not found.at_latency, "nobody measured at which latency they hold"


def test_on_a_cpu_the_reference_hosts_terms_hold_at_its_own_latency_and_count_a_launch_once(tmp_path):
    """What it takes to launch a kernel is in the kernel's own time already: a CPU runs what it launches."""
    reference = engine_profile.read(ENGINES / "h200.hf-eager.json")
    floor = Ceiling(2e-6, 1.9e-6, 2.1e-6, "s", "made up for tests")
    ceilings = {**round_profile().ceilings, "launch_stream": floor}
    mine = gpus.find(write_profile(tmp_path / "cpu.json", round_profile(kind="cpu", spec="", ceilings=ceilings)))
    found = engine_profile.find(mine, "hf-eager")
    value, low, high = found.terms
    slower = 2e-6 / (reference.launch_ns * 1e-9)
    call, kernel = (reference.terms[name].value for name in ("host_call_s", "host_kernel_s"))
    assert value.host_call_s == pytest.approx(slower * call)
    assert value.host_kernel_s + 2e-6 == pytest.approx(slower * kernel)
    assert value.gap_s == 0, "nothing waits between two operators"
    assert (low.host_call_s, high.host_call_s) == pytest.approx((value.host_call_s / 2, value.host_call_s * 2))
    write(tmp_path / "cpu.hf-eager.json", document(engine="hf-eager"))
    assert engine_profile.find(mine, "hf-eager").terms[0].gap_s == 2e-6, "its own are as they were measured"


def test_that_of_another_engine_or_gpu_is_refused(tmp_path):
    mine = gpus.find(write_profile(tmp_path / "my.json", round_profile()))
    write(tmp_path / "my.vllm.json", document(engine="hf-eager"))
    with pytest.raises(ChipError, match="holds terms of hf-eager on Round GPU, not of vllm on Round GPU"):
        engine_profile.find(mine, "vllm")
    write(tmp_path / "my.hf-graph.json", document(engine="hf-graph", device="Square GPU"))
    with pytest.raises(ChipError, match="holds terms of hf-graph on Square GPU, not of hf-graph on Round GPU"):
        engine_profile.find(mine, "hf-graph")


@pytest.mark.parametrize("path", BUNDLED, ids=lambda p: p.stem)
def test_bundled_ones_are_whole(path):
    _, engine = path.stem.split(".")
    found = engine_profile.read(path)
    assert engine in engines.names()
    assert set(found.terms) == set(engines.get(engine).TERMS)
    assert found.cpu
    assert len(found.models) >= 2, "of two depths"
    assert {t.unit for t in found.terms.values()} == {"s"}
    assert all(t.method for t in found.terms.values())
    if set(found.terms) & set(ON_HOST):
        assert 5_000 < found.launch_ns < 20_000, "the launch latency of the hosts that it was measured on"
    held = artifact.read(path, EngineProfile.SCHEMA)
    assert f'"id": "{held.id}"' in path.read_text(), "edited by hand"
    assert held.inputs, "it names the runs that it was made from"


def test_every_engine_with_calibration_models_has_one():
    calibrated = [name for name in engines.names() if engines.get(name).CALIBRATION]
    assert [p.stem for p in BUNDLED] == [f"h200.{engine}" for engine in calibrated]


# --- bad files
def term(name="gap_s", **changes):
    return document(terms={name: {**TERM, **changes}})


BAD = {
    "an unknown term": (term("kernels_s"), "unknown term 'kernels_s'; known: gap_s, step_s"),
    "a negative one": (term(value=-1e-6, low=-2e-6), "term 'gap_s' must have 0 <= low <= value <= high"),
    "a negative low": (term(low=-1e-9), "must have 0 <= low <= value <= high"),
    "low above": (term(low=5e-6), "must have 0 <= low <= value <= high"),
    "high below": (term(high=1e-6), "must have 0 <= low <= value <= high"),
    "text": (term(value="2e-6"), "data.terms.gap_s.value: expected a number, got str"),
    "a typo": (term(hihg=1), "unknown field 'hihg'; did you mean 'high'?"),
    "a latency of nothing": (document(launch_ns=-1.0), "launch_ns must be a launch latency in nanoseconds"),
    "a missing field": ({k: v for k, v in document().items() if k != "cpu"}, "field 'cpu' is missing"),
    "a list": ([], "data"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_clear_line(tmp_path, capsys, name):
    data, told = BAD[name]
    gpu = write_profile(tmp_path / "my.json", round_profile())
    path = write(tmp_path / "my.vllm.json", data)
    assert cli.main(["predict", "qwen3-0.6b", "--gpu", gpu, "--engine", "vllm"]) == 2
    out, line = capsys.readouterr()
    assert (out, line.count("\n")) == ("", 1)
    assert line.startswith(f"chip predict: {path}")
    assert told in line


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[: len(text) // 2], "is not JSON or is cut short"),
        (lambda text: "", "is not JSON or is cut short"),
        (lambda text: text.replace("engine_profile/2", "engine_profile/9"), "is newer than this chip reads"),
        (lambda text: text.replace("chip.engine_profile/2", "chip.runs/1"), "is a chip.runs file"),
    ],
    ids=("half", "empty", "newer", "another kind"),
)
def test_a_broken_file_is_one_clear_line(tmp_path, change, told):
    path = write(tmp_path / "my.vllm.json", document())
    path.write_text(change(path.read_text()))
    with pytest.raises(ChipError, match=told) as error:
        engine_profile.read(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_every_term_may_be_there(tmp_path):
    path = write(tmp_path / "all.json", document(terms=dict.fromkeys(MEANING, TERM)))
    assert tuple(engine_profile.read(path).terms) == tuple(MEANING)
    profile = engine_profile.read(path)
    assert codec.from_json(EngineProfile, codec.to_json(profile), "it") == profile
