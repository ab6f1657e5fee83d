"""`chip calibrate --engine`: the bundled terms out of their records, and real runs of tiny models on this CPU."""

import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("scipy")

from tiny_models import bundled  # noqa: E402

from chip.engines import profile as engine_profile  # noqa: E402
from chip.engines.calibration import CalibrationModel  # noqa: E402
from chip.files import artifact, codec, runs  # noqa: E402
from chip.hardware import gpus  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.run import calibration, grid  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.types import Ceiling, HardwareProfile  # noqa: E402

RECORDS = Path(__file__).parents[2] / "results" / "h200" / "engines"
HF = tuple(RECORDS / f"hf-{n}.json" for n in (1, 2, 3, 4))
FILES = {
    "vllm": tuple(RECORDS / f"vllm-{n}.json" for n in (5, 6)),
    "hf-graph": HF,
    "hf-eager": (*HF, *(RECORDS / f"hf-{n}.json" for n in (5, 6))),
}
LATEST = {"vllm": FILES["vllm"][-1:], "hf-graph": HF, "hf-eager": FILES["hf-eager"][-1:]}  # others are of older models
LACKING = {"vllm-6.json": ("mistral",)}  # there was no time for those
STAND_IN = Path(__file__).parent / "stand_in"


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return tmp_path


@pytest.fixture
def cpu(here):
    """A profile of this CPU that is faster than it is: whatever a step takes, some of it is beyond the operators."""
    rates = {"hbm_read": 1e13, "hbm_copy": 1e13, "matmul_fp32": 1e14, "launch_stream": 1e-9}
    profile = HardwareProfile(
        "mine", open_device("cpu").title, "cpu", "", 2, 2**34, 2**20,
        {k: Ceiling(v, v, v, "", "made up for tests") for k, v in rates.items()},
    )  # fmt: skip
    artifact.write(here / "mine.json", artifact.new(profile.SCHEMA, codec.to_json(profile), {}))
    return str(here / "mine.json")


@pytest.fixture
def tiny(monkeypatch):
    """The same way through the command, over narrower models and shorter prompts; vLLM thinks it has a GPU."""
    narrow = CalibrationModel("narrow", "tinyllama-1.1b", (2, 6), ((1, 8), (2, 16)))
    monkeypatch.setattr(calibration, "config", lambda model: bundled("tinyllama-1.1b"))
    real = partial(calibration.plans, instead=[narrow])

    def plans(engine, device, *rest):
        return real(engine, replace(device, name="cuda:0") if engine == "vllm" else device, *rest)

    monkeypatch.setattr(calibration, "plans", plans)


def calibrate(*words):
    return cli.main(["calibrate", "--engine", *map(str, words)])


@pytest.mark.parametrize("engine", FILES)
def test_bundled_terms_come_from_the_records(engine, here, capsys):
    assert calibrate(engine, "--runs", *FILES[engine]) == 0
    out, err = capsys.readouterr()
    path = Path(f"h200.{engine}.json")  # what is bundled stays as it is
    assert f"wrote {path}; use it with `chip predict MODEL --gpu h200 --engine {engine} --engine-profile {path}`" in err
    shipped = engine_profile.path_for(gpus.find("h200"), engine)
    made, held = engine_profile.read(path), engine_profile.read(shipped)
    assert replace(made, terms={}, launch_ns=0) == replace(held, terms={}, launch_ns=0)
    assert made.launch_ns == pytest.approx(held.launch_ns)
    assert made.terms.keys() == held.terms.keys()
    for name, term in held.terms.items():
        found = made.terms[name]
        numbers = (found.value, found.low, found.high)
        assert numbers == pytest.approx((term.value, term.low, term.high), 0.02, 1e-12)
        assert found.method == term.method
        assert f"{name} " in out
    assert artifact.read(path, held.SCHEMA).inputs == artifact.read(shipped, held.SCHEMA).inputs


@pytest.mark.parametrize(("engine", "path"), [(e, p) for e, paths in LATEST.items() for p in paths], ids=str)
def test_the_records_are_of_the_calibration_models_as_they_are_now(engine, path):
    device = replace(open_device("cpu"), name="cuda:0", kind="cuda")
    plans = calibration.plans(engine, device, "bf16")
    asked = {p.key(s): (p.job.model, s.name) for p in plans for s in p.scenarios}
    _, held = runs.read(path)
    found = {runs.key_of(r, held.configs) for r in held.runs if r.engine == engine and r.status == "ok"}
    assert found <= set(asked)
    for key in set(asked) - found:
        model, point = asked[key]
        assert {model.partition("-")[0], point} & set(LACKING.get(path.name, ())), asked[key]
    configs = {p.job.model: p.job.config for p in plans}
    ran = {r.model for r in held.runs if r.engine == engine}
    assert {name: held.configs[name] for name in ran} == {name: configs[name] for name in ran}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_a_real_calibration_on_this_cpu(engine, cpu, capsys, monkeypatch):
    words = (engine, "--device", "cpu", "--gpu", cpu)
    assert calibrate(*words) == 0
    out, err = capsys.readouterr()
    assert f"`chip predict MODEL --gpu {cpu} --engine {engine}` uses it" in err
    assert "bench 4/4" in err
    assert "device, between two operators" in out
    found = engine_profile.read(engine_profile.path_for(gpus.find(cpu), engine))
    assert (found.engine, found.models) == (engine, ("narrow-2-layers", "narrow-6-layers"))
    assert sum(t.value for t in found.terms.values()) > 0
    _, held = runs.read(Path(f"mine.{engine}.runs.json"))
    assert len(artifact.read(Path(f"mine.{engine}.json"), found.SCHEMA).inputs) == len(held.runs) == 4

    monkeypatch.setattr(grid, "get", None)  # nothing left to open
    assert calibrate(*words, "--json") == 0
    assert json.loads(capsys.readouterr().out)["data"] == codec.to_json(found)

    question = ("predict", "tinyllama-1.1b", "--gpu", cpu, "--engine", engine, "--dtype", "fp32", "--json")
    assert cli.main([*question]) == 0
    with_terms = json.loads(capsys.readouterr().out)
    assert with_terms["sources"]["engine"] > 0
    assert "reference host" not in "".join(with_terms["notes"])  # the terms are this one's
    bare = shutil.copy(cpu, Path(cpu).with_name("bare.json"))  # the profile alone, its terms named by their file
    terms = Path(cpu).with_name(f"mine.{engine}.json")
    question = [str(bare) if w == cpu else w for w in question]
    assert cli.main([*question, "--engine-profile", str(terms)]) == 0
    assert json.loads(capsys.readouterr().out)["tpot_ms"] == with_terms["tpot_ms"]


@pytest.mark.usefixtures("tiny")
def test_vllm_in_its_own_process(cpu, monkeypatch, capsys):
    monkeypatch.setenv("CHIP_ENGINE_PYTHONPATH", str(STAND_IN))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    words = ("vllm", "--device", "cpu", "--gpu", cpu, "--engine-setting", "max_model_len=96")
    assert calibrate(*words) == 0
    _, held = runs.read(Path("mine.vllm.runs.json"))
    assert {r.variant for r in held.runs} == {"max_model_len=96"}
    assert "vllm (vllm 0.26.0+stand.in)" in capsys.readouterr().out
    assert engine_profile.find(gpus.find(cpu), "vllm").terms[0].host_step_s > 0


@pytest.mark.usefixtures("tiny")
def test_restart_forgets_the_runs(cpu, monkeypatch):
    monkeypatch.setenv("CHIP_ENGINE_PYTHONPATH", str(STAND_IN))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    words = ("vllm", "--device", "cpu", "--gpu", cpu, "--engine-setting", "max_model_len=96", "-o", "sub/other.json")
    assert calibrate(*words) == 0
    before = runs.read(Path("sub/other.runs.json"))[1].runs
    assert calibrate(*words, "--restart") == 0
    assert runs.read(Path("sub/other.runs.json"))[1].runs != before


@pytest.mark.usefixtures("tiny")
def test_an_engine_that_does_not_start_is_told_in_one_line(cpu, capsys):
    assert calibrate("vllm", "--device", "cpu", "--gpu", cpu, "--python", "nosuch/python") == 2
    err = capsys.readouterr().err
    assert "nosuch/python" in err
    assert err.splitlines()[-1].startswith("chip calibrate: no two runs of vllm differ in their layers")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--gpu", "h200"], "--gpu goes with --engine"),
        (["--engine-setting", "a=b"], "--engine-setting goes with --engine"),
        (["--engine", "vllm", "--only", "idle"], "--only does not go with --engine"),
        (["--engine", "vllm", "--full"], "--full does not go with --engine"),
        (["--engine", "hf-compile"], "--engine hf-compile: terms are measured for hf-eager, hf-graph, native, vllm"),
        (["--engine", "vllm", "--device", "cpu"], "no bundled profile of"),
        (["--engine", "vllm", "--device", "cpu", "--gpu", "a100"], "a100 was never calibrated; make a profile"),
        (["--engine", "vllm", "--device", "cpu", "--gpu", "h200"], "--gpu h200 is of NVIDIA H200, cpu is"),
        (["--engine", "vllm", "--runs", "nosuch.json"], "nosuch.json: no such file"),
        (["--engine", "vllm", "--runs", str(HF[0])], "no two runs of vllm differ in their layers"),
    ],
)
@pytest.mark.usefixtures("here")
def test_what_is_wrong_is_one_line(words, says, capsys):
    assert cli.main(["calibrate", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert list(Path().iterdir()) == []


def test_runs_of_another_device_are_refused(cpu, capsys):
    assert calibrate("vllm", "--runs", *FILES["vllm"], "--gpu", cpu) == 2
    assert "was measured on NVIDIA H200" in capsys.readouterr().err
