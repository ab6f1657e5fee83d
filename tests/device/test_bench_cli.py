"""`chip bench` as people use it: a grid into a file, stopped and gone on with, and what fails told in one line."""

import errno
import json
import os
import signal
import time
import weakref
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import forking  # noqa: E402
from tiny_models import save_config  # noqa: E402

from chip.files import runs  # noqa: E402
from chip.lab import run  # noqa: E402
from chip.lab.measure.device import Device, open_device  # noqa: E402
from chip.lab.run import clock, grid, session, steps, vllm_worker  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.types import ChipError, Scenario  # noqa: E402


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(1)
    return str(save_config(tmp_path / "tiny.json"))


def bench(*words):
    return cli.main(["bench", *words, "--device", "cpu", "--output", "4", "--repeats", "2"])


def points(file="artifacts/llm.json"):
    return [(r.engine, r.scenario.batch, r.scenario.prompt, r.status) for r in runs.read(Path(file))[1].runs]


def test_a_grid_in_one_go(tiny, capsys):
    assert bench(tiny, "--engine", "hf-eager,hf-graph", "--batch", "1,2", "--prompt", "8,16") == 0
    grid_of = [(e, b, p, "ok") for e in ("hf-eager", "hf-graph") for b in (1, 2) for p in (8, 16)]
    assert points() == grid_of
    out, err = capsys.readouterr()
    assert "bench 8/8" in err
    assert sum(line.startswith("hf-graph ") for line in out.splitlines()) == 4
    assert "all rows: model tiny, dtype fp32, output 4" in out
    held, found = runs.read(Path("artifacts/llm.json"))
    assert held.environment["torch"] == str(torch.__version__)
    assert found.configs["tiny"]["model_type"] == "llama"


@pytest.mark.skipif(os.name != "posix" or not Path("/proc/meminfo").exists(), reason="what is free is read there")
@pytest.mark.parametrize("engine", ["hf-eager", "native"])
def test_a_model_beyond_the_memory_is_refused_before_it_is_made(engine, tiny, monkeypatch, capsys):
    monkeypatch.setattr(Device, "free_bytes", lambda _: 100_000)
    monkeypatch.setattr(torch.nn.init, "normal_", lambda *_: pytest.fail("weights were made"))
    assert bench(tiny, "--engine", engine, "--prompt", "8,16") == 1
    told = [line for line in capsys.readouterr().err.splitlines() if "tiny: its weights take" in line]
    assert len(told) == 1, "not once for each point"
    assert "in fp32, and 97.7 KiB of this machine's memory are free; choose a smaller model, or --dtype bf16" in told[0]
    assert {status for *_, status in points()} == {"failed"}


def test_a_point_beyond_the_memory_costs_itself_only(tiny, monkeypatch):
    monkeypatch.setattr(Device, "free_bytes", lambda _: 200_000_000)
    assert bench(tiny, "--engine", "hf-eager", "--points", "1x8,65536x64") == 1
    assert points() == [("hf-eager", 1, 8, "ok"), ("hf-eager", 65536, 64, "failed")]
    failed = runs.read(Path("artifacts/llm.json"))[1].runs[1]
    assert (
        "beside the weights, and 190.7 MiB of this machine's memory are free; choose a smaller batch" in failed.reason
    )


def test_copies_of_files_count_as_free_in_a_container(tmp_path, monkeypatch):
    from chip.lab.measure import device

    for name, text in {
        "memory.max": "8000000000", "memory.current": "7000000000",
        "memory.stat": "anon 1000\nactive_file 2000000000\ninactive_file 3000000000\nshmem 5\n",
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(device, "CGROUP", tmp_path)
    monkeypatch.setattr(device, "_meminfo", lambda _: 10**12)
    assert open_device("cpu").free_bytes() == 6_000_000_000


def test_every_engine_that_is_listed_can_be_opened():
    assert all(callable(run.get(name).open) for name in run.names())


def test_lengths_of_the_answer_are_part_of_the_grid(tiny, capsys):
    words = ("bench", tiny, "--engine", "hf-eager", "--points", "1x8,2x5", "--device", "cpu", "--repeats", "2")
    assert cli.main([*words, "--output", "3,6"]) == 0
    found = runs.read(Path("artifacts/llm.json"))[1].runs
    held = [(r.scenario.batch, r.scenario.prompt, r.scenario.output, len(r.step_ns[0])) for r in found]
    assert held == [(1, 8, 3, 2), (1, 8, 6, 5), (2, 5, 3, 2), (2, 5, 6, 5)]
    assert cli.main([*words, "--output", "3,0"]) == 2
    assert "--output: '0' is not a whole number between 1 and 2^24" in capsys.readouterr().err


def test_json_has_every_figure(tiny, capsys):
    assert bench(tiny, "--engine", "hf-eager", "--points", "1x8,3x5", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["file"]) == ("chip.bench/1", "artifacts/llm.json")
    first, second = found["runs"]
    assert (second["batch"], second["prompt"]) == (3, 5)
    held = runs.read(Path("artifacts/llm.json"))[1].runs[1]
    assert second["tpot_s"] == held.tpot_s
    assert second["tokens_per_s"] == pytest.approx(3 * second["tokens_per_s_request"])
    assert second["step_p50_s"] <= second["step_p95_s"]
    assert second["setup_s"]["load"] > 0
    assert first["status"] == "ok"


def test_the_clock_lies_beside_the_samples(tiny, capsys, monkeypatch):
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8") == 0
    (found,) = runs.read(Path("artifacts/llm.json"))[1].runs
    assert len(found.launch_ns) == 2, "before all and after, where a pause among them would rest the device"
    assert 50 < min(found.launch_ns) <= max(found.launch_ns) < 1e7
    latencies = iter((9800.0, 5000.0, 7000.0))
    monkeypatch.setattr(clock, "launch_ns", lambda device: next(latencies))
    capsys.readouterr()
    more = ("--device", "cpu", "--output", "6", "--repeats", "2")
    assert cli.main(["bench", tiny, "--engine", "hf-eager", "--prompt", "12", *more]) == 0
    said = "the launch latency changed: from 5 to 9.8 us"
    found = runs.read(Path("artifacts/llm.json"))[1].runs[1]
    assert found.launch_ns == (9800.0, 5000.0, 7000.0)
    assert said in found.flags
    assert said in capsys.readouterr().out


def test_a_steady_clock_is_not_flagged():
    assert clock.latency_flags((5000.0, 6000.0)) == ()
    assert clock.latency_flags(()) == ()


def test_vllm_measures_the_clock_as_the_others_do():
    assert (vllm_worker.LAUNCHES, vllm_worker.BATCHES) == (clock.LAUNCHES, clock.BATCHES)
    assert vllm_worker.UNDISTURBED == clock.UNDISTURBED


def test_what_is_done_is_not_done_again(tiny, capsys, monkeypatch):
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8") == 0
    before = runs.read(Path("artifacts/llm.json"))[1].runs
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8,12") == 0
    after = runs.read(Path("artifacts/llm.json"))[1].runs
    assert after[:1] == before
    assert "bench 1/1: tiny hf-eager pp12+tg4xb1" in capsys.readouterr().err
    monkeypatch.setattr(session, "HfSession", None)  # nothing left to open
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8,12") == 0


def test_a_killed_run_goes_on_where_it_was(tiny, tmp_path):
    """Killed for real, as the kernel does when memory is short: the points that were done are in the file."""
    words = ["--engine", "hf-eager", "--batch", ",".join(map(str, range(1, 60))), "--prompt", "8"]
    pid = forking.start(lambda: bench(tiny, *words), tmp_path)
    file, end = Path("artifacts/llm.json"), time.monotonic() + 120
    while not file.exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), (tmp_path / "stderr").read_text()
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    kept = runs.read(file)[1].runs
    assert 1 <= len(kept) < 59
    more = ",".join(str(b) for b in range(1, len(kept) + 2))
    assert bench(tiny, "--engine", "hf-eager", "--batch", more, "--prompt", "8") == 0
    assert runs.read(file)[1].runs[: len(kept)] == kept
    assert len(points()) == len(kept) + 1


def fails_at(batch, error):
    real = clock.repeated

    def repeated(device, steps, *rest):
        if steps.ids.shape[0] == batch:
            raise error
        return real(device, steps, *rest)

    return repeated


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate"),
            "out of memory: pp8+tg4xb2 does not fit into",
        ),
        (RuntimeError("CUDA error: an illegal memory access\nmore"), "failed (RuntimeError: CUDA error: an illegal"),
        (ChipError("took too long"), "took too long"),
    ],
)
def test_one_bad_point_does_not_take_the_others_with_it(tiny, capsys, monkeypatch, error, says):
    monkeypatch.setattr(clock, "repeated", fails_at(2, error))
    assert bench(tiny, "--engine", "hf-eager", "--batch", "1,2,3", "--prompt", "8") == 1
    assert [status for *_, status in points()] == ["ok", "failed", "ok"]
    out, err = capsys.readouterr()
    assert f"chip bench: tiny hf-eager pp8+tg4xb2: {says}" in err
    assert f"failed: tiny hf-eager pp8+tg4xb2: {says}" in out
    assert "Traceback" not in err
    monkeypatch.undo()
    assert cli.main(["bench", tiny, "--engine", "hf-eager", "--batch", "1,2,3", "--prompt", "8", "--output", "4",
                     "--device", "cpu", "-o", str(Path(tiny).parent / "artifacts" / "llm.json")]) == 0  # fmt: skip


def test_a_lost_context_ends_the_command_and_the_next_one_goes_on(tiny, capsys, monkeypatch):
    """CUDA answers every call after a device-side assert with that error: later points must not be told failed."""
    words = ("--engine", "hf-eager,hf-graph", "--batch", "1,2,3", "--prompt", "8")
    lost = []

    def assertion(device, steps, *rest):
        if steps.ids.shape[0] == 2:
            lost.append(True)
            raise RuntimeError("Expected mha_graph.execute(...).is_good() to be true")  # as cuDNN tells it
        return real(device, steps, *rest)

    real = clock.repeated
    monkeypatch.setattr(clock, "repeated", assertion)
    monkeypatch.setattr(Device, "lost", lambda self: "CUDA error: device-side assert triggered" if lost else "")
    monkeypatch.setattr(Device, "empty_cache", lambda self: 1 / 0 if lost else None)
    assert bench(tiny, *words) == 1
    assert points() == [("hf-eager", 1, 8, "ok"), ("hf-eager", 2, 8, "failed")]
    said = "chip bench: the CUDA context is lost and nothing more can run in this process; the same command goes on"
    out, err = capsys.readouterr()
    assert said in err.splitlines()
    assert "failed: tiny hf-eager pp8+tg4xb2: failed (RuntimeError: Expected mha_graph" in out
    assert "the context is lost: CUDA error: device-side assert triggered" in out
    lost.clear()  # a new process
    assert bench(tiny, *words) == 1  # what was never tried comes before what failed
    assert points()[2:] == [("hf-eager", 3, 8, "ok"), ("hf-graph", 1, 8, "ok"), ("hf-graph", 2, 8, "failed")]
    lost.clear()
    monkeypatch.setattr(clock, "repeated", real)
    assert bench(tiny, *words) == 0
    assert len(points()) == 6


def test_a_context_lost_in_loading_is_told_of_that_model_alone(tiny, monkeypatch, tmp_path):
    def assertion(job):
        raise ChipError("tiny: cannot be loaded (AcceleratorError: CUDA error: device-side assert triggered)")

    other = str(save_config(tmp_path / "other.json"))
    monkeypatch.setattr(session, "build", assertion)
    monkeypatch.setattr(Device, "lost", lambda self: "CUDA error: device-side assert triggered")
    assert bench(tiny, other, "--engine", "hf-eager", "--prompt", "8") == 1
    assert points() == [("hf-eager", 1, 8, "failed")]


def test_a_timeout(tiny, monkeypatch, capsys):
    monkeypatch.setattr(clock, "warm_up", lambda *_: time.sleep(30))
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8", "--timeout", "1") == 1
    assert "took longer than 1 s; give it more with --timeout" in capsys.readouterr().err


def test_no_space_left(tiny, monkeypatch, capsys):
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8") == 0
    kept = Path("artifacts/llm.json").read_text()

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert bench(tiny, "--engine", "hf-eager", "--prompt", "8,9") == 2
    said = "chip bench: artifacts/llm.json: cannot be written (No space left on device); the old file"
    assert capsys.readouterr().err.splitlines()[-1].startswith(said)
    assert Path("artifacts/llm.json").read_text() == kept


class Session:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Mortal(Session):
    """An engine that dies at every second point."""

    NAME = TITLE = "mortal"
    OWN_PROCESS = True
    opened = 0

    def open(self, job):
        self.opened += 1
        self.left = 1
        return self

    def measure(self, scenario, repeats):
        self.left -= 1
        if self.left < 0:
            raise run.Lost("the engine was killed (signal 9)")
        return runs.Run("tiny", "mortal", "", scenario, "ok", "", (1,), ((1, 1, 1),), (4,))

    def look(self, found):
        return replace(found, busy={"decode": 0.5})


def test_an_engine_that_was_killed_is_started_again(tiny, monkeypatch, capsys):
    engine = Mortal()
    monkeypatch.setattr(grid, "get", lambda name: engine)
    monkeypatch.setattr(run, "get", lambda name: engine)
    monkeypatch.setattr(run, "names", lambda: ("mortal",))
    assert bench(tiny, "--engine", "mortal", "--batch", "1,2,3", "--prompt", "8") == 1
    assert [status for *_, status in points()] == ["ok", "failed", "ok"]
    assert engine.opened == 2
    assert [r.busy for r in runs.read(Path("artifacts/llm.json"))[1].runs] == [{"decode": 0.5}, {}, {"decode": 0.5}]
    assert "tiny mortal pp8+tg4xb2: the engine was killed (signal 9)" in capsys.readouterr().err


class Watched(Session):
    """Two engines in this process that note what is asked of them, in which order."""

    NAME = TITLE = "recording"
    OWN_PROCESS = False

    def __init__(self):
        self.asked = []

    def open(self, job):
        self.job = job
        return self

    def measure(self, scenario, repeats):
        self.asked.append(("time", self.job.model, scenario.batch))
        return runs.Run(self.job.model, "recording", "", scenario, "ok", "", (1,), ((1, 1, 1),), (4,))

    def look(self, found):
        self.asked.append(("look", found.model, found.scenario.batch))
        return replace(found, busy={"decode": 0.5})


def test_nothing_is_profiled_before_everything_is_timed(monkeypatch, tmp_path):
    """A process that has used the profiler launches more slowly ever after."""
    engine = Watched()
    monkeypatch.setattr(grid, "get", lambda name: engine)
    points = tuple(Scenario(batch, 8, 4) for batch in (1, 2))
    plans = [grid.SessionPlan("recording", run.Job(model, {"vocab_size": ord(model)}), points) for model in ("a", "b")]
    ledger = grid.RunsFile(tmp_path / "runs.json", open_device("cpu"))
    grid.measure(plans, ledger, 1, print, look=False)
    assert [what for what, *_ in engine.asked] == ["time"] * 4
    grid.measure(plans, ledger, 1, print)
    assert engine.asked[4:] == [("look", model, batch) for model in "ab" for batch in (1, 2)]
    assert all(r.busy for r in runs.read(tmp_path / "runs.json")[1].runs)


def test_a_model_that_failed_is_gone_before_the_next_is_loaded(tiny, monkeypatch, tmp_path):
    """Its frames hang on the error; the next session's memory would have it in it."""
    built, build = [], session.build

    def recording(job):
        assert [model() for model in built] == [None] * len(built)
        model = build(job)
        built.append(weakref.ref(model))
        return model

    def fail(self):
        deep = self.model  # noqa: F841 (the frame holds it)
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(session, "build", recording)
    monkeypatch.setattr(steps.Eager, "prefill", fail)
    config = json.loads(Path(tiny).read_text())
    jobs = [run.Job(m, {**config, "vocab_size": 128 + ord(m)}, device="cpu", energy_s=0.0) for m in "ab"]
    plans = [grid.SessionPlan("hf-eager", job, (Scenario(1, 8, 2),)) for job in jobs]
    grid.measure(plans, grid.RunsFile(tmp_path / "runs.json", open_device("cpu")), 1, print)
    assert len(built) == 2
    assert [r.status for r in runs.read(tmp_path / "runs.json")[1].runs] == ["failed", "failed"]


def test_repeats_give_way_to_max_seconds(tiny):
    words = ("--engine", "hf-eager", "--prompt", "8", "--max-seconds", "0")
    assert cli.main(["bench", tiny, "--device", "cpu", "--output", "4", "--repeats", "9", *words]) == 0
    (found,) = runs.read(Path("artifacts/llm.json"))[1].runs
    assert len(found.ttft_ns) == 2
    assert "2 of 9 repeats in 0 s (--max-seconds)" in found.flags


def test_a_request_of_one_token_has_no_decode_step(tiny, capsys):
    assert cli.main(["bench", tiny, "--device", "cpu", "--output", "1", "--prompt", "8", "--engine", "hf-graph"]) == 0
    (found,) = runs.read(Path("artifacts/llm.json"))[1].runs
    assert found.step_ns == ((),) * 5
    assert "TTFT" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--engine", "hf-egaer"], "no engine 'hf-egaer' to run; did you mean hf-eager?"),
        (["--engine", "hf-eager", "--batch", "1,x"], "--batch: 'x' is not a whole number"),
        (["--engine", "hf-eager", "--prompt", "0"], "--prompt: '0' is not a whole number between 1 and 2^24"),
        (["--engine", "hf-eager", "--points", "8"], "--points must be pairs like 1x128,8x512"),
        (["--engine", "hf-eager", "--timeout", "0"], "--timeout must be between 1 and 1e6"),
        (["--engine", "hf-eager", "--engine-setting", "x"], "--engine-setting 'x': must be key=value"),
        (["--engine", "hf-eager", "--system", "x"], "--system and --raw-prompt go with --prompt-text"),
    ],
)
def test_bad_input_is_one_line(tiny, capsys, words, says):
    assert cli.main(["bench", tiny, "--device", "cpu", *words]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
    assert not Path("artifacts").exists()


def test_records_name_no_home(tiny, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", "/home/ann")
    ledger = grid.RunsFile(tmp_path / "runs.json", open_device("cpu"))
    job = run.Job("tiny", {})
    settings = {"config": {"cache_dir": "/home/ann/.cache/vllm", "dirs": ["/home/ann", "/home/anna"], "seqs": 4}}
    point = Scenario(1, 8, 4)
    ledger.add(runs.Run("tiny", "vllm", "", point, "failed", "log: /home/ann/x.log", settings=settings), job)
    assert "/home/ann/" not in (tmp_path / "runs.json").read_text()
    (found,) = runs.read(tmp_path / "runs.json")[1].runs
    assert found.settings == {"config": {"cache_dir": "~/.cache/vllm", "dirs": ["~", "/home/anna"], "seqs": 4}}
    assert found.reason == "log: ~/x.log"
