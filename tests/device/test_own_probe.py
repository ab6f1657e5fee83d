"""An energy meter of one's own: named once, used by bench, capture and replay and their workers."""

import json
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_replay import config, one_thread, short  # noqa: E402, F401

from chip.files import runs, traces  # noqa: E402
from chip.lab.measure import energy  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.replay import unit  # noqa: E402
from chip.lab.measure.replay.unit import ReplaySettings, replay_units  # noqa: E402
from chip.lab.replay import signatures  # noqa: E402
from chip.lab.replay.results import Replayed  # noqa: E402
from chip.show import cli  # noqa: E402

METER = """
import time
from chip.lab.measure.energy import EnergyReading

class Steady:
    def start(self):
        self.began = time.monotonic()

    def stop(self):
        seconds = time.monotonic() - self.began
        return EnergyReading(50.0 * seconds, seconds, "fifty watts")

class NoStop:
    def start(self):
        pass

def broken():
    raise OSError("no such serial port")
"""


@pytest.fixture
def meter(tmp_path, monkeypatch):
    (tmp_path / "meter.py").write_text(METER)
    monkeypatch.setenv(energy.VARIABLE, "")  # so that what a command sets is taken back
    monkeypatch.setattr("chip.lab.measure.energy.IDLE_S", 0.05)
    return str(tmp_path / "meter.py")


def test_bench_reads_it(meter, tmp_path, capsys):
    out = tmp_path / "runs.json"
    words = ["bench", config(tmp_path), "--device", "cpu", "--engine", "hf-eager", "--batch", "1", "--prompt", "8"]
    words += ["--output", "3", "--repeats", "2", "--energy-seconds", "0.1", "--no-profile"]
    assert cli.main([*words, "--energy-probe", f"{meter}:Steady", "-o", str(out)]) == 0
    (run,) = runs.read(out)[1].runs
    assert run.energy.method.startswith("fifty watts, ")
    capsys.readouterr()


def test_capture_reads_it(meter, tmp_path, capsys):
    out = tmp_path / "trace.json"
    words = ["capture", config(tmp_path), "--device", "cpu", "--prompt", "8", "--energy-seconds", "0.02"]
    assert cli.main([*words, "--energy-probe", f"{meter}:Steady", "-o", str(out)]) == 0, capsys.readouterr().err
    capsys.readouterr()
    # idle and work draw the same here, so that nothing is left above idle
    found = [t.joules for t in traces.read(out)[1].timings.values() if t.joules is not None]
    assert found
    assert max(map(abs, found)) < 1e-3


@pytest.mark.parametrize("command", ["capture", "replay"])
def test_a_meter_without_work_to_meter_is_refused(command, meter, tmp_path, capsys):
    assert cli.main([command, config(tmp_path), "--device", "cpu", "--energy-probe", f"{meter}:Steady"]) == 2
    assert "meters nothing without --energy-seconds" in capsys.readouterr().err


def test_a_replay_on_a_cpu_reports_what_it_meters(meter, tmp_path, monkeypatch, capsys):
    """In this process, so that the meter can tell work from rest: 50 W and none."""
    monkeypatch.setenv(energy.VARIABLE, f"{meter}:Steady")
    monkeypatch.setattr(unit, "watts_at_rest", lambda device: 0.0)
    out = tmp_path / "trace.json"
    assert cli.main(["capture", config(tmp_path), "--device", "cpu", "--prompt", "8", "-o", str(out)]) == 0
    capsys.readouterr()
    units = signatures.units_of(signatures.workload_of(traces.read(out)[1]))
    metered = [u for u in units if u.energy][:1]
    (found,) = replay_units(metered, open_device("cpu"), ReplaySettings(warmup=1, runs=3, energy_s=0.02))
    assert found[0].joules > 0
    (plain,) = replay_units(metered, open_device("cpu"), ReplaySettings(warmup=1, runs=3))
    assert plain[0].joules is None


def test_kernels_of_a_replay_are_read_by_it_in_a_worker(meter, monkeypatch):
    """A worker has the variable, not the option."""
    monkeypatch.setenv(energy.VARIABLE, f"{meter}:Steady")
    monkeypatch.setattr(unit, "watts_at_rest", lambda device: 20.0)
    now = [0.0]  # a clock that only the work moves: a busy machine must not lengthen it
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    kernels = [Replayed("a", "ok", samples_ns=(100,)), Replayed("b", "failed"), Replayed("c", "ok", samples_ns=(300,))]

    def round_of_two_calls():
        now[0] += 0.01

    found = unit.with_joules(kernels, open_device("cpu"), round_of_two_calls, 0.01, 2, 0.05)
    each = 0.01 * (50 - 20) / 2  # two calls a round
    assert [k.joules is None for k in found] == [False, True, False]
    assert found[2].joules == pytest.approx(3 * found[0].joules)
    assert found[0].joules + found[2].joules == pytest.approx(each)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Missing", "no class or function Missing there"),
        ("NoStop", "has no stop; see docs/calibrate.md"),
        ("broken", "cannot be made (OSError: no such serial port)"),
    ],
)
def test_a_meter_that_is_none_is_one_line(meter, name, says, tmp_path, capsys):
    words = ["capture", config(tmp_path), "--device", "cpu", "--prompt", "8", "-o", str(tmp_path / "t.json")]
    assert cli.main([*words, "--energy-probe", f"{meter}:{name}"]) == 2
    assert capsys.readouterr().err.strip() == f"chip capture: energy probe {meter}:{name}: {says}"
    assert not (tmp_path / "t.json").exists()


@pytest.mark.parametrize(
    ("where", "says"), [("meter.py", "write FILE.py:NAME or MODULE:NAME"), ("no.such:Thing", "ModuleNotFoundError"),
                        ("gone.py:Thing", "FileNotFoundError")]
)  # fmt: skip
def test_a_name_that_leads_nowhere_is_one_line(meter, where, says, tmp_path, capsys):
    words = ["bench", config(tmp_path), "--engine", "hf-eager", "--device", "cpu", "-o", str(tmp_path / "r.json")]
    assert cli.main([*words, "--energy-probe", where]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert json.dumps(where)[1:-1] in said
