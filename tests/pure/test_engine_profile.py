"""What an engine adds, as a file: where it is looked for, what it may hold, and what is said of a bad one."""

import copy
import math

import pytest
from conftest import round_profile, write_profile

from chip import artifact, cli, codec, engine_profile, engines, hardware
from chip.engine_profile import ENGINES, TERMS, EngineProfile
from chip.types import Ceiling, ChipError

TERM = {"value": 2e-6, "low": 1e-6, "high": 3e-6, "unit": "s", "method": "made up for tests"}
BUNDLED = sorted(ENGINES.glob("*.json"))


def document(**changes):
    data = {
        "engine": "vllm", "engine_version": "vllm 1", "device": "Round GPU", "cpu": "a CPU", "models": ["tiny"],
        "terms": {"kernel_s": dict(TERM), "host_step_s": dict(TERM)},
    }  # fmt: skip
    return {**copy.deepcopy(data), **changes}


def write(path, data, schema=EngineProfile.SCHEMA):
    artifact.write(path, artifact.new(schema, data, {}))
    return path


# --- where
def test_of_a_bundled_gpu_in_the_data_of_another_beside_its_profile(tmp_path):
    assert engine_profile.path_for(hardware.find("h200"), "vllm") == ENGINES / "h200.vllm.json"
    assert engine_profile.path_for(hardware.find("h100"), "hf-eager") == ENGINES / "h100.hf-eager.json"
    mine = hardware.find(write_profile(tmp_path / "my.gpu.json", round_profile()))
    assert engine_profile.path_for(mine, "hf-graph") == tmp_path / "my.gpu.hf-graph.json"


def test_it_is_found_only_where_it_is(tmp_path):
    mine = hardware.find(write_profile(tmp_path / "my.json", round_profile()))
    assert engine_profile.find(mine, "vllm") is None
    write(tmp_path / "my.vllm.json", document())
    found = engine_profile.find(mine, "vllm")
    assert found.terms["kernel_s"] == Ceiling(2e-6, 1e-6, 3e-6, "s", "made up for tests")
    assert engine_profile.find(mine, "hf-eager") is None
    assert engine_profile.find(hardware.find("h100"), "vllm") is None, "a datasheet has no host"


def test_that_of_another_engine_or_gpu_is_refused(tmp_path):
    mine = hardware.find(write_profile(tmp_path / "my.json", round_profile()))
    write(tmp_path / "my.vllm.json", document(engine="hf-eager"))
    with pytest.raises(ChipError, match="holds terms of hf-eager on Round GPU, not of vllm on Round GPU"):
        engine_profile.find(mine, "vllm")
    write(tmp_path / "my.hf-graph.json", document(engine="hf-graph", device="Square GPU"))
    with pytest.raises(ChipError, match="holds terms of hf-graph on Square GPU, not of hf-graph on Round GPU"):
        engine_profile.find(mine, "hf-graph")


@pytest.mark.parametrize("path", BUNDLED, ids=lambda p: p.stem)
def test_bundled_ones_are_whole(path):
    gpu, engine = path.stem.split(".")
    found = engine_profile.find(hardware.find(gpu), engine)
    assert engine in engines.names()
    assert found.terms
    assert found.cpu
    assert len(found.models) == 2 or len(found.families) >= 7, "of two depths, and of families where the host counts"
    for own in found.families.values():
        assert set(own) <= set(found.terms)
    assert {name: t.unit for name, t in found.terms.items() if t.unit != "s"} == (
        {"attention_share": "1"} if engine == "vllm" else {}
    )
    assert 5_000 < found.launch_ns < 20_000, "the pace of the hosts that it was measured on"
    held = artifact.read(path, EngineProfile.SCHEMA)
    assert f'"id": "{held.id}"' in path.read_text(), "edited by hand"
    assert held.inputs, "it names the runs that it was made from"


def test_families_are_as_far_apart_as_intervals_take_them_to_be():
    """In what a kernel takes the host; where the family of a model was not measured, that may be its own."""
    apart = []
    for path in BUNDLED:
        found = engine_profile.read(path)
        if found.families:
            all_take = found.terms["host_kernel_s"].value
            ratios = [found.terms_of(family)["host_kernel_s"].value / all_take for family in found.families]
            apart += [max(r, 1 / r) for r in ratios]
    assert len(apart) > 15
    assert round(max(apart), 2) == engine_profile.AT_ONE_PACE


def test_terms_of_a_family_stand_before_those_of_all(tmp_path):
    own = {"PhiForCausalLM": {"kernel_s": {**TERM, "value": 3e-6}}}
    found = engine_profile.read(write(tmp_path / "my.vllm.json", document(families=own)))
    assert found.terms_of("PhiForCausalLM")["kernel_s"].value == 3e-6
    assert found.terms_of("LlamaForCausalLM") == found.terms


def test_every_engine_of_the_h200_has_one():
    assert [p.stem for p in BUNDLED] == [f"h200.{engine}" for engine in engines.names()]


# --- bad files
def term(name="kernel_s", **changes):
    return document(terms={name: {**TERM, **changes}})


BAD = {
    "an unknown term": (term("kernels_s"), "unknown term 'kernels_s'; known: kernel_s, attention_share"),
    "a negative one": (term(value=-1e-6, low=-2e-6), "term 'kernel_s' must have 0 <= low <= value <= high"),
    "a negative low": (term(low=-1e-9), "must have 0 <= low <= value <= high"),
    "low above": (term(low=5e-6), "must have 0 <= low <= value <= high"),
    "high below": (term(high=1e-6), "must have 0 <= low <= value <= high"),
    "NaN": (term(value=math.nan), "must have 0 <= low <= value <= high"),
    "no end": (term(high=math.inf), "must have 0 <= low <= value <= high"),
    "text": (term(value="2e-6"), "data.terms.kernel_s.value: expected a number, got str"),
    "a typo": (term(hihg=1), "unknown field 'hihg'; did you mean 'high'?"),
    "a family's unknown one": (document(families={"A": {"kernels_s": TERM}}), "unknown term 'kernels_s'"),
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
        (lambda text: text.replace("engine_profile/1", "engine_profile/2"), "is newer than this chip reads"),
        (lambda text: text.replace("chip.engine_profile/1", "chip.runs/1"), "is a chip.runs file"),
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
    path = write(tmp_path / "all.json", document(terms=dict.fromkeys(TERMS, TERM)))
    assert tuple(engine_profile.read(path).terms) == tuple(TERMS)
    profile = engine_profile.read(path)
    assert codec.from_json(EngineProfile, codec.to_json(profile), "it") == profile
