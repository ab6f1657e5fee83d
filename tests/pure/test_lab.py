"""`chip lab`: the plan, resuming and leaving out, with commands that only pretend; tests/device runs it for real."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from chip.lab import chain
from chip.lab.chain import LabStep, Wanted
from chip.show import cli


def wanted(folder="lab", device="cuda:0", **changes):
    return Wanted(Path(folder), device, **{"models": ("llama-3.1-8b",), **changes})


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("full", [False, True])
def test_every_planned_command_line_parses(device, full):
    for step in chain.plan(wanted(device=device, full=full)):
        cli.parser(step.words[0]).parse_args(step.words[1:])


def test_plan_is_the_chain_in_order():
    names = [s.name for s in chain.plan(wanted())]
    assert tuple(dict.fromkeys(names)) == chain.NAMES


def test_what_cannot_be_done_says_why():
    steps = {s.name: s for s in chain.plan(wanted(device="cpu"))}
    assert steps["kernels"].left_out == "needs an NVIDIA GPU"
    assert not steps["calibrate"].left_out


@pytest.fixture
def pretend(monkeypatch):
    """Commands that write what they are told to and end as they are told to."""
    seen = []

    def do(step, log):
        seen.append(step.name)
        code = int(step.words[1])
        if code == chain.INTERRUPTED:
            raise KeyboardInterrupt
        for path in step.words[2:]:
            Path(path).write_text("{}")
        return chain.Done(step, "failed" if code else "done", 1.0, f"exit code {code}" if code else "")

    monkeypatch.setattr(chain, "_do", do)
    return seen


def results(steps, folder, **options):
    return [d.result for d in chain.run(steps, folder, options.get("restart", False), lambda text: None)]


def test_a_stopped_run_goes_on_where_it_was(tmp_path, pretend):
    steps = [
        LabStep("calibrate", ("calibrate", "0")),
        LabStep("bench", ("bench", "130")),
        LabStep("report", ("report", "0")),
    ]
    with pytest.raises(KeyboardInterrupt):
        results(steps, tmp_path)
    steps[1] = LabStep("bench", ("bench", "0"))
    assert results(steps, tmp_path) == ["done before", "done", "done"]
    assert results(steps, tmp_path) == ["done before", "done before", "done"], "the report is always anew"
    assert results(steps, tmp_path, restart=True) == ["done"] * 3
    assert pretend == ["calibrate", "bench", "bench", "report", "report", "calibrate", "bench", "report"]


def test_a_failed_step_costs_those_that_need_it(tmp_path, pretend):
    profile = tmp_path / "profile.json"
    steps = [
        LabStep("calibrate", ("calibrate", "2")),
        LabStep("profile", ("profile", "0"), (profile,)),
        LabStep("bench", ("bench", "0")),
    ]
    found = chain.run(steps, tmp_path, False, lambda text: None)
    assert [d.result for d in found] == ["failed", "left out", "done"]
    assert found[1].why == "needs profile.json, which is not there"
    steps[0] = LabStep("calibrate", ("calibrate", "0", str(profile)))
    assert results(steps, tmp_path) == ["done", "done", "done before"], "what failed is tried again"


def test_other_options_are_another_step(tmp_path, pretend):
    assert results([LabStep("bench", ("bench", "0"))], tmp_path) == ["done"]
    assert results([LabStep("bench", ("bench", "00"))], tmp_path) == ["done"]


def test_a_broken_journal_is_named(tmp_path, capsys):
    (tmp_path / "lab.json").write_text('{"schema": "chip.lab/1", "environment": {}, "inputs": [], "data": {"done": 3}}')
    assert cli.main(["lab", "--device", "cpu", "-o", str(tmp_path), "--only", "report"]) == 2
    assert "lab.json: data.done" in capsys.readouterr().err


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["lab", "--device", "cpu", "-o", str(tmp_path / "file"), "--only", "report"]) == 2
    assert "is not a folder" in capsys.readouterr().err.splitlines()[-1]


def test_plan_of_the_command(capsys):
    assert cli.main(["lab", "--device", "cpu", "--plan", "--json", "--with", "calibrate=--only memory"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] is None
    assert shlex.split(found["steps"][0]["command"])[-2:] == ["--only", "memory"]
    assert cli.main(["lab", "--device", "cpu", "--plan"]) == 0
    assert "needs an NVIDIA GPU" in capsys.readouterr().out or "kernels" not in cli.commands()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--only", "bnch"], "no step 'bnch'; steps: calibrate, profile"),
        (["--plan", "--engine", "hf-eagr"], "no engine 'hf-eagr' to run; did you mean hf-eager?"),
        (["--plan", "no-such-model"], "no model 'no-such-model'"),
        (["--with", "bench"], "--with takes STEP=OPTIONS"),
        (["--with", "bench='x"], "--with bench: No closing quotation"),
        (["--only", "report", "--skip", "report"], "nothing is left to do"),
    ],
)
def test_bad_input_is_one_line(capsys, words, error):
    assert cli.main(["lab", "--device", "cpu", *words]) == 2
    found = capsys.readouterr().err
    assert found.startswith(f"chip lab: {error}")
    assert found.count("\n") == 1


def test_a_product_that_was_deleted_is_made_again_and_what_rests_on_it(tmp_path, pretend):
    profile, runs, validation = (tmp_path / f"{name}.json" for name in ("profile", "runs", "validation"))
    steps = [
        LabStep("calibrate", ("calibrate", "0", str(profile)), makes=(profile,)),
        LabStep("bench", ("bench", "0", str(runs)), makes=(runs,)),
        LabStep("validate", ("validate", "0", str(validation)), (profile, runs), makes=(validation,)),
    ]
    assert results(steps, tmp_path) == ["done"] * 3
    validation.unlink()
    assert results(steps, tmp_path) == ["done before", "done before", "done"]
    profile.unlink()
    assert results(steps, tmp_path) == ["done", "done before", "done"], "the validation rests on the new profile"
    assert results(steps, tmp_path) == ["done before"] * 3


def test_each_deleted_product_counts_although_the_first_step_makes_it_again(tmp_path, pretend):
    shared = tmp_path / "operators.jsonl"
    steps = [LabStep("profile", ("profile", "0", str(shared), model), makes=(shared,)) for model in ("a", "b")]
    steps = [LabStep(s.name, s.words[:3], makes=s.makes, content=s.words[3]) for s in steps]
    assert results(steps, tmp_path) == ["done", "done"]
    shared.unlink()
    assert results(steps, tmp_path) == ["done", "done"]


def config_at(path, **fields):
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **fields}))
    return str(path)


def test_models_of_one_name_have_folders_and_steps_of_their_own(tmp_path):
    models = (config_at(tmp_path / "a" / "tiny", hidden_size=8), config_at(tmp_path / "b" / "tiny", hidden_size=16))
    steps = chain.plan(wanted(models=models))
    folders = [s.words[s.words.index("--output-dir") + 1] for s in steps if s.name == "replay"]
    assert len(set(folders)) == 2
    keys = {s.key for s in steps}
    Path(models[0], "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 24}))
    changed = [s for s in chain.plan(wanted(models=models)) if s.key not in keys]
    assert {s.name for s in changed} == {"profile", "bench", "replay"}, "another content is another model"


@pytest.mark.skipif(sys.platform != "linux", reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_no_child_behind(tmp_path, number):
    """The child writes its id and sleeps; when the parent is told to end, or killed, it is gone soon after."""
    code = (
        "import sys, os; from chip.lab import chain\n"
        "inner = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
        "chain.run_child([sys.executable, '-c', inner], sys.stdout, os.environ)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(chain.__file__).parents[2])}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    parent.wait(30)
    for _ in range(100):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or ") Z " in state.read_text():
            return
        time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    pytest.fail("the child outlived its parent")
