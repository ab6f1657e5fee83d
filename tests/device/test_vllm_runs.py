"""Workers that are forks of a process with vLLM imported, over the stand-in for vLLM; and the script that uses them."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import forking

from chip import engines
from chip.decoders.library import locate
from chip.files import artifact, runs
from chip.lab.measure import device
from chip.lab.run import Job, Lost, vllm
from chip.types import Scenario

ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).parent / "stand_in"
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 512}
# The script, on a machine that says it has an H200.
ON_A_GPU = """
import sys
from dataclasses import replace

sys.path.insert(0, {benchmarks!r})
import vllm_runs
from chip import engines
from chip.lab.measure import device
from chip.lab.run import vllm_worker

vllm_worker.WARM_S = 0.0  # the stand-in has no clocks that rise
rules = engines.get("vllm")
first = rules.CALIBRATION[0]
rules.CALIBRATION = (replace(first, points=first.points[:3]),)  # the others are run in the same way
cpu = device.open_device
device.open_device = lambda name: replace(cpu("cpu"), name="cuda:0", title="NVIDIA H200")
sys.exit(vllm_runs.main())
"""


@pytest.fixture(scope="module")
def benchmarks():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def new_nursery():
    from forked import Nursery

    sys.path.insert(0, str(STAND_IN))
    with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):  # pytest's own do not follow a `dup2`
        made = Nursery()
    sys.path.remove(str(STAND_IN))
    assert made.ready()["version"] == "0.26.0+stand.in"
    return made


@pytest.fixture(scope="module")
def nursery(benchmarks):
    made = new_nursery()
    yield made
    made.line.close()
    os.waitpid(made.pid, 0)


@pytest.fixture
def forks(nursery, monkeypatch, tmp_path):
    from forked import ForkedWorker

    monkeypatch.setattr(ForkedWorker, "nursery", nursery, raising=False)
    monkeypatch.setattr(vllm, "VllmWorker", ForkedWorker)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def job(**changes):
    return Job(**{"model": "tiny", "config": CONFIG, "max_context": 64, "timeout_s": 60.0, **changes})


# -- a fork -----------------------------------------------------------------------------------------------------------
def test_a_fork_serves_as_a_started_worker_does_and_says_what_it_is(forks, tmp_path):
    with vllm.open(job()) as session:
        process = session.worker.process
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
        assert process.poll() is None
        run = session.measure(Scenario(2, 8, 5), 3)
        with vllm.open(job()) as another:
            assert another.measure(Scenario(1, 8, 2), 2).status == "ok"
    assert (process.poll(), process.wait()) == (0, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert run.status == "ok"
    assert run.method == vllm.METHOD + vllm.FORKED
    assert "import" not in run.setup_s
    assert not list(tmp_path.glob("chip-worker-*.log"))


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("killed in a step", r"killed by SIGKILL, often the host's memory is full\): ERROR 11-15 the host ran out"),
        ("crash in a step", r"exit code 3\): RuntimeError: CUDA error: an illegal memory access"),
        ("hang in a step", r"gave no answer to 'prepare' for \d+ s and was ended"),
    ],
)
def test_how_a_fork_ended_is_known(what, says, forks, monkeypatch, tmp_path):
    monkeypatch.setenv("CHIP_ENGINE_STAND_IN", what)
    with vllm.open(job()) as session:
        session.job = replace(session.job, timeout_s=0.5 if "hang" in what else 60.0)  # of the step only
        with pytest.raises(Lost, match=says) as e:
            session.measure(Scenario(2, 8, 4), 2)
    (log,) = tmp_path.glob("chip-worker-*.log")
    assert str(e.value).endswith(f"log: {log}")
    with pytest.raises(ProcessLookupError):
        os.kill(session.worker.process.pid, 0)
    monkeypatch.delenv("CHIP_ENGINE_STAND_IN")
    with vllm.open(job()) as again:
        assert again.measure(Scenario(2, 8, 4), 2).status == "ok"


def test_no_fork_outlives_the_nursery(benchmarks, tmp_path):
    made = new_nursery()
    with open(tmp_path / "log", "wb") as log:
        process = made.start({"STAND_IN": "hang in open"}, log)
    process.stdin.write(b'{"do": "open", "model": "", "dtype": "", "random_weights": true, "settings": {}}\n')
    process.stdin.flush()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.5)
    made.line.close()  # as it is when the process at this end is killed
    assert process.wait(60) == -signal.SIGKILL
    os.waitpid(made.pid, 0)
    with pytest.raises(BrokenPipeError):
        process.stdin.write(b"\n" * 10**6)


# -- the script -------------------------------------------------------------------------------------------------------
@pytest.fixture
def script(tmp_path):
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "vllm").symlink_to(STAND_IN / "vllm")  # without the stand-in for torch

    def call(*words, **environment):
        def main():
            sys.path.insert(0, str(tmp_path / "engine"))
            sys.argv, tempfile.tempdir = ["vllm_runs.py", str(tmp_path / "out"), *words], str(tmp_path)
            exec(ON_A_GPU.format(benchmarks=str(ROOT / "benchmarks")), {})

        return forking.run(main, environment={"XDG_CACHE_HOME": str(tmp_path / "cache"), **environment})

    return call


def test_models_are_warmed_and_run_with_one_import(script, tmp_path):
    points = ("--points", "1x16,2x16,3x16")
    done = script("runs", "--models", "smollm2-135m,no-such,qwen3-0.6b", *points, STAND_IN="killed in a step of 2")
    assert done.returncode == 2, done.stderr
    assert "no model 'no-such'" in done.stderr
    assert done.stderr.count("vLLM prints to stdout while it is imported") == 1
    assert len(re.findall(r"^runs \S+: exit \d after \d+ s: start [\d.]+ \(.+\), points ", done.stderr, re.M)) == 3
    found = runs.read(tmp_path / "out" / "vllm-5.json")[1].runs
    assert [(r.model, r.status) for r in found] == [
        (model, status) for model in ("smollm2-135m", "qwen3-0.6b") for status in ("ok", "failed", "ok")
    ]
    assert all("killed by SIGKILL" in r.reason for r in found if r.status == "failed")
    assert all(r.method.endswith(vllm.FORKED) for r in found if r.status == "ok")

    done = script("warm", "runs", "--models", "smollm2-135m,qwen3-0.6b", *points, "--caches", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stderr
    assert re.findall(r"^warm (\S+ \S+): ok after", done.stderr, re.M) == ["smollm2-135m bf16", "qwen3-0.6b bf16"]
    assert done.stderr.count("vLLM prints to stdout while it is imported") == 1
    assert len(list((tmp_path / "kept" / "vllm").iterdir())) == 2
    assert {r.status for r in runs.read(tmp_path / "out" / "vllm-5.json")[1].runs} == {"ok"}  # what failed, again


def test_the_small_models_of_calibrate_are_forks_too(script, tmp_path):
    done = script("calibration")
    assert "chip calibrate:" in done.stderr
    found = runs.read(tmp_path / "out" / "vllm.runs.json")[1].runs
    assert len(found) == 3 * len(engines.get("vllm").CALIBRATION[0].depths)
    assert {(r.status, r.method.endswith(vllm.FORKED)) for r in found} == {("ok", True)}


@pytest.fixture
def here(benchmarks, monkeypatch, capfd, tmp_path):
    """The script in this process, up to its first model: (exit code, stderr)."""
    import vllm_runs
    from forked import ForkedWorker

    cpu = device.open_device
    monkeypatch.setattr(device, "open_device", lambda name: replace(cpu("cpu"), name="cuda:0", title="NVIDIA H200"))
    monkeypatch.setattr(ForkedWorker, "nursery", None, raising=False)  # what the script sets is undone
    monkeypatch.setattr(vllm, "VllmWorker", ForkedWorker)
    monkeypatch.setattr(sys, "argv", ["vllm_runs.py", str(tmp_path / "out"), "runs"])

    def call():
        with redirect_stdout(sys.__stdout__), redirect_stderr(sys.__stderr__):
            code = vllm_runs.main()
        ForkedWorker.nursery.line.close()
        os.waitpid(ForkedWorker.nursery.pid, 0)
        return code, capfd.readouterr().err

    return call


def test_no_model_is_tried_where_nothing_can_be_forked(here, monkeypatch, tmp_path):
    if not importlib.util.find_spec("vllm"):
        said = "vllm_runs: vLLM: cannot be imported (ModuleNotFoundError: vllm); is it on PYTHONPATH?\n"
        assert here() == (2, said)
    monkeypatch.syspath_prepend(str(STAND_IN))
    monkeypatch.setenv("STAND_IN", "CUDA in the import")
    code, said = here()
    assert code == 2
    told = "vllm_runs: vLLM: importing it started CUDA, which forks cannot use then; run `chip bench` instead"
    assert told in said.splitlines()  # two processes write there, in any order
    assert not (tmp_path / "out").exists()


def test_the_commands_can_be_read_first(benchmarks, monkeypatch, capsys):
    import vllm_runs

    def told(*words):
        monkeypatch.setattr(sys, "argv", ["vllm_runs.py", "out", *words, "--dry"])
        assert vllm_runs.main() == 0
        return capsys.readouterr().out.splitlines()

    first, *others = told()
    assert first == "at once: what runs, readme, calibration will start"
    assert [line.split()[1] for line in others] == ["bench"] * 9 + ["calibrate"]
    assert len(told("again")) == 3


def test_what_does_not_fit_together_is_warmed_one_after_the_other(benchmarks):
    from vllm_runs import BENCHES, groups

    asked = [
        Job(title, artifact.read_json(path))
        for path, title in map(locate, (*BENCHES["runs"].models, *BENCHES["again"].models))
    ]
    first, second = groups(asked, 138 * 2**30)
    assert [j.model for j in second] == ["qwen3-30b-a3b", "qwen2.5-32b"]
    assert {j.model for j in first} == set(BENCHES["runs"].models) - {j.model for j in second}
    assert [len(g) for g in groups(asked, 2**30)] == [1] * 8


def test_a_model_is_cut_to_fewer_layers(tmp_path, capsys):
    words = ["unseen", "--models", "llama-3.1-8b+4", "--output-tokens", "9,129", "--dry"]
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "vllm_runs.py"), str(tmp_path), *words],
        capture_output=True,
        text=True,
        check=True,
    )
    file = tmp_path / "configs" / "llama-3.1-8b-4.json"
    assert run.stdout.startswith(f"chip bench {file} ")
    assert run.stdout.split(" --output ")[-1].split()[0] == "9,129"
    config = json.loads(file.read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (4, 4096)
