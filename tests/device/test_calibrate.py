"""`chip calibrate`: the runner on fake probes, and a real calibration of this machine's CPU on a tiny budget."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tiny_budget import tiny  # noqa: E402

from chip.files import artifact, codec  # noqa: E402
from chip.hardware import gpus  # noqa: E402
from chip.hardware.points import Library  # noqa: E402
from chip.lab.measure import calibrate, disturbance, timing  # noqa: E402
from chip.lab.measure.bench import Bench, ProbeCase, Skip, ceiling, ratio  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.disturbance import Reading  # noqa: E402
from chip.lab.measure.energy import EnergyReading, NoProbe  # noqa: E402
from chip.lab.measure.journal import Outcome  # noqa: E402
from chip.lab.measure.limits import AboveLimit  # noqa: E402
from chip.lab.measure.probes import ORDER, plan  # noqa: E402
from chip.show.cli import main  # noqa: E402
from chip.types import Ceiling, ChipError, HardwareProfile, HostProfile  # noqa: E402

MIB = 2**20


@pytest.fixture
def cpu(monkeypatch):
    device = open_device("cpu")
    monkeypatch.setattr("chip.lab.measure.device.open_device", lambda name: device)
    return device


@pytest.fixture
def tiny_cli(cpu, monkeypatch):
    monkeypatch.setattr("chip.lab.measure.budget.budget_for", lambda device, mode: replace(tiny(), mode=mode))


def number(value=1.0, unit="B/s"):
    return Ceiling(value, value, value, unit, "fake", (value,))


class Killed(BaseException):
    """Like a signal: nothing may catch it."""


def fake_plan(log, kill_at=None):
    def case(i):
        def measure(bench):
            if kill_at is not None and i == kill_at:
                raise Killed
            log.append(i)
            return Outcome(ceilings={f"c{i}": number(i + 1.0)})

        return f"fake/{i}", ProbeCase(str(i), (f"c{i}",), 1.0, measure)

    return lambda bench, only=(): [case(i) for i in range(6)]


def run_fake(cpu, path, monkeypatch, log, kill_at=None):
    monkeypatch.setattr(calibrate, "plan", fake_plan(log, kill_at))
    return calibrate.calibrate(cpu, tiny(), path, energy=NoProbe())


def test_killed_at_any_case_it_resumes_and_measures_nothing_twice(cpu, tmp_path, monkeypatch):
    path, log = tmp_path / "j.jsonl", []
    for kill_at in (0, 2, 2, 5):
        with pytest.raises(Killed):
            run_fake(cpu, path, monkeypatch, log, kill_at)
    found = run_fake(cpu, path, monkeypatch, log)
    assert log == list(range(6))
    assert list(found.profile.ceilings) == [f"c{i}" for i in range(6)]


def test_cut_at_any_byte_only_the_cut_case_is_measured_again(cpu, tmp_path, monkeypatch):
    path = tmp_path / "j.jsonl"
    run_fake(cpu, path, monkeypatch, [])
    whole = path.read_bytes()
    for cut in random.Random(1).sample(range(len(whole)), 25):
        path.write_bytes(whole[:cut])
        kept, log = max(0, whole[:cut].count(b"\n") - 1), []
        found = run_fake(cpu, path, monkeypatch, log)
        assert log == list(range(kept, 6))
        assert list(found.profile.ceilings) == [f"c{i}" for i in range(6)]


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (Skip("not here"), "not here"),
        (AboveLimit("5 TB/s is above the memory's limit 4.8"), "error: 5 TB/s is above the memory's limit 4.8"),
        (MemoryError(), "skipped: out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "skipped: out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "skipped: out of memory"),
        (RuntimeError("no kernel image\nlong trace"), "failed: RuntimeError: no kernel image"),
        (ChipError("timer: the clock does not move"), "failed: timer: the clock does not move"),
    ],
)
def test_a_case_that_fails_is_recorded_with_its_reason_and_the_next_goes_on(cpu, tmp_path, monkeypatch, raised, reason):
    def bad(bench):
        raise raised

    cases = [
        ("fake/bad", ProbeCase("bad", ("x", "y"), 1.0, bad)),
        ("fake/good", ProbeCase("good", ("z",), 1.0, lambda bench: Outcome(ceilings={"z": number()}))),
    ]
    monkeypatch.setattr(calibrate, "plan", lambda bench, only=(): cases)
    found = calibrate.calibrate(cpu, tiny(), tmp_path / "j.jsonl", energy=NoProbe())
    assert {k: found.profile.missing[k] for k in ("x", "y")} == {"x": reason, "y": reason}
    assert list(found.profile.ceilings) == ["z"]


def test_a_spent_budget_leaves_the_rest_out_and_says_so(cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(calibrate, "plan", fake_plan([]))
    found = calibrate.calibrate(cpu, replace(tiny(), total_s=-1), tmp_path / "j.jsonl", energy=NoProbe())
    assert found.profile.missing["c5"].startswith("left out: the -1 s of --quick are spent")


def test_a_rate_above_the_limit_of_the_recorded_clock_is_an_error(cpu):
    bench = Bench(replace(cpu, sm_count=132, compute_capability="9.0"), tiny(), NoProbe(), gpus.spec("h200"))
    assert bench.check_compute("bf16", number(800e12), (1.7e9,)).value == 800e12
    with pytest.raises(AboveLimit, match=r"132 \w+ at 1\.2 GHz"):
        bench.check_compute("bf16", number(800e12), (1.2e9, 1.1e9))
    with pytest.raises(AboveLimit, match="datasheet of NVIDIA H200"):
        bench.check_memory(number(4.9e12))


def test_a_factor_carries_the_worst_of_both_intervals():
    found = ratio(Ceiling(3.0, 2.5, 3.5, "B/s", ""), Ceiling(4.0, 3.5, 5.0, "B/s", ""), "m")
    assert (found.value, found.low, found.high) == (0.75, 0.5, 1.0)
    assert ceiling([1.0] * 8, "s", "m").low == 1.0


class Meter:
    """A meter of one's own."""

    def start(self):
        pass

    def stop(self):
        return EnergyReading(100.0, 1.0, "wall meter")


def test_every_probe_file_is_in_the_plan(cpu):
    import pkgutil

    import chip.lab.measure.probes as probes

    assert {m.name for m in pkgutil.iter_modules(probes.__path__)} == set(ORDER)
    names = [key for key, _ in plan(Bench(cpu, tiny(), Meter()))]
    assert len(names) == len(set(names))


def test_calibrate_measures_this_cpu_for_real(cpu, tiny_cli, tmp_path, capsys):
    path = tmp_path / "cpu.json"
    code = main(["calibrate", "--device", "cpu", "-o", str(path)])
    out, err = capsys.readouterr()
    assert code == 0, out + err
    profile = gpus.read_profile(path)
    assert profile.kind == "cpu"
    rates = ("matmul_fp32", "matmul_fp32_settled", "hbm_copy", "hbm_read", "hbm_write", "hbm_mix_2to1", "launch_stream")
    assert set(rates) <= set(profile.ceilings)
    assert {"memory_turnaround", "memory_strided", "memory_random"} <= set(profile.factors)
    assert profile.missing["launch_graph"] == "a CPU has no graphs of kernels"
    assert "read_by_working_set" in profile.curves
    assert {"linear", "add"} <= set(profile.operators)
    (base,) = [b for kernel, b, _ in Library((), profile.operators).bases("linear") if kernel == "torch"]
    assert base.flop_per_s > 0
    assert all(c.samples and c.method for n, c in profile.ceilings.items() if n != "l2_knee")
    host = codec.from_json(HostProfile, artifact.read(tmp_path / "cpu.host.json", HostProfile.SCHEMA).data, "host")
    assert host.terms["dispatch"].value > 0
    assert not (tmp_path / "cpu.json.journal.jsonl").exists()
    assert "hbm_copy" in out
    assert "[ 1/" in err
    about = artifact.read(path, HardwareProfile.SCHEMA).environment
    assert about["torch"] == torch.__version__
    assert str(tmp_path) not in json.dumps(about)
    raw = artifact.read(path, HardwareProfile.SCHEMA).data
    assert codec.to_json(codec.from_json(HardwareProfile, raw, "profile")) == raw


def test_energy_of_a_meter_of_ones_own_reaches_the_profile(cpu, tmp_path):
    bench = tiny()
    found = calibrate.calibrate(cpu, bench, tmp_path / "j.jsonl", energy=Meter(), only=("idle",))
    assert found.profile.power["idle_power"].value == 100.0


def test_json_goes_to_stdout_and_talk_to_stderr(cpu, tiny_cli, tmp_path, capsys):
    path = tmp_path / "cpu.json"
    assert main(["calibrate", "--device", "cpu", "--only", "host", "--json", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == HardwareProfile.SCHEMA
    assert "wrote" in err


@pytest.fixture
def beside_others(monkeypatch):
    """Two CPUs, of which others use 1.5, we use 0.3 and the hypervisor keeps a tenth whenever somebody looks."""
    looks = (Reading(*(n * each for each in (1.0, 1.8, 0.0, 0.2, 0.3))) for n in range(1000))
    monkeypatch.setattr(disturbance, "read", lambda: next(looks))
    monkeypatch.setattr(disturbance, "runnable", lambda: 0)
    monkeypatch.setattr(disturbance.time, "sleep", lambda seconds: None)


def two_rates(boost, settled, low=1.0):
    found = {
        "hbm_read": number(), "hbm_copy": number(), "matmul_fp32": number(boost, "FLOP/s"),
        "matmul_fp32_settled": Ceiling(settled, low * settled, settled, "FLOP/s", "fake", (settled,)),
    }  # fmt: skip
    return lambda bench, only=(): [("fake/all", ProbeCase("all", tuple(found), 1.0, lambda b: Outcome(ceilings=found)))]


@pytest.mark.usefixtures("beside_others")
def test_a_calibration_under_load_says_so_first_and_its_file_and_predictions_repeat_it(
    cpu, tiny_cli, tmp_path, monkeypatch, capsys
):
    path = tmp_path / "cpu.json"
    monkeypatch.setattr(calibrate, "plan", two_rates(55e9, 213e9))
    assert main(["calibrate", "--device", "cpu", "-o", str(path)]) == 0
    out, err = capsys.readouterr()
    seen = "other processes use 1.5 of 2 CPUs; the hypervisor keeps 10% of the CPUs' time"
    first = f"DISTURBED: {seen}; calibrate again when the machine is idle"
    assert err.splitlines()[0] == first
    flags = gpus.read_profile(path).flags
    assert [f.partition(" (")[0] for f in flags] == [
        "disturbed: other processes used 1.5 of 2 CPUs while it was timed",
        "disturbed: matmul_fp32 is faster settled than rested: 213 GFLOP/s under load, 55 GFLOP/s in short bursts",
    ]
    assert out.startswith("DISTURBED: other processes used 1.5 of 2 CPUs")
    assert main(["predict", "gpt2", "--gpu", str(path), "--engine", "hf-eager", "--dtype", "fp32", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert sum(f.removeprefix("disturbed: ") in note for f in flags for note in notes) == 2


@pytest.mark.parametrize(
    ("boost", "settled", "low", "says"),
    [
        (213e9, 200e9, 1.0, ()),
        (200e9, 213e9, 0.9, ()),  # within what clocks vary
        (55e9, 213e9, 1.0, ("matmul_fp32 is faster settled than rested",)),
        (213e9, 200e9, 0.6, ("samples of matmul_fp32_settled lie too far apart",)),
    ],
)
def test_numbers_that_do_not_go_together_are_doubted(cpu, tmp_path, monkeypatch, boost, settled, low, says):
    monkeypatch.setattr(disturbance, "read", lambda: None)
    monkeypatch.setattr(calibrate, "plan", two_rates(boost, settled, low))
    flags = calibrate.calibrate(cpu, tiny(), tmp_path / "j.jsonl", energy=NoProbe()).profile.flags
    assert [said in flag for said, flag in zip(says, flags, strict=True)] == [True] * len(says)


@pytest.mark.usefixtures("beside_others")
def test_what_was_disturbed_is_measured_again(cpu, tmp_path, monkeypatch):
    log = []

    def idle():
        monkeypatch.setattr(disturbance, "read", lambda: None)
        return True

    monkeypatch.setattr(calibrate, "plan", fake_plan(log))
    found = calibrate.calibrate(cpu, tiny(), tmp_path / "j.jsonl", energy=NoProbe(), idle=idle)
    assert found.profile.flags == ()
    assert len(log) == 2 * len(set(log))


@pytest.mark.usefixtures("beside_others")
def test_what_disturbed_an_interrupted_calibration_is_not_forgotten(cpu, tmp_path, monkeypatch):
    path, log = tmp_path / "j.jsonl", []
    with pytest.raises(Killed):
        run_fake(cpu, path, monkeypatch, log, 3)
    monkeypatch.setattr(disturbance, "read", lambda: None)
    (flag,) = run_fake(cpu, path, monkeypatch, log).profile.flags
    assert flag.startswith("disturbed: other processes used 1.5 of 2 CPUs")


def test_an_unknown_probe_and_a_missing_gpu_are_one_line(cpu, tmp_path, capsys, monkeypatch):
    assert main(["calibrate", "--device", "cpu", "--only", "compot", "-o", str(tmp_path / "x.json")]) == 2
    assert "no probe 'compot'; probes: idle, compute" in capsys.readouterr().err
    assert main(["calibrate", "--device", "cpu", "-o", str(tmp_path)]) == 2  # before a minute of measuring
    assert capsys.readouterr().err == f"chip calibrate: {tmp_path}: is a folder, a file was expected\n"
    monkeypatch.undo()
    if not torch.cuda.is_available():
        assert main(["calibrate", "--device", "cuda:0"]) == 2
        assert "sees no GPU; use --device cpu" in capsys.readouterr().err


def test_batches_of_a_sustained_load_follow_each_other_without_a_gap(monkeypatch):
    """A device that takes 10 ms a call: each batch of 3 calls is timed once, the host three batches ahead."""
    calls = []

    class Event:
        def __init__(self, enable_timing):
            self.at_ms = None

        def record(self):
            self.at_ms = 10.0 * len(calls)

        def synchronize(self):
            pass

        def elapsed_time(self, other):
            return other.at_ms - self.at_ms

    monkeypatch.setattr(torch.cuda, "Event", Event)
    take = timing.unbroken(SimpleNamespace(kind="cuda"), lambda: calls.extend([1] * 3), 3)
    assert [take() for _ in range(5)] == [10_000_000] * 5
    assert len(calls) == 3 * (5 + timing.IN_FLIGHT - 1)


@pytest.fixture
def written(tmp_path):
    profile = HardwareProfile("x", "X", "cpu", "", 2, 1, 1, {n: number() for n in ("hbm_read", "hbm_copy")})
    path = tmp_path / "p.json"
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(profile), {}))
    assert gpus.read_profile(path) == profile
    return path


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda t: t[: len(t) // 2], "cut short"),
        (lambda t: t.replace("hardware_profile/1", "hardware_profile/2"), "newer than this chip reads"),
        (lambda t: t.replace('"units"', '"unts"'), "did you mean 'units'?"),
        (lambda t: t.replace('"value": 1.0', '"value": "fast"'), "expected a number"),
        (lambda t: t.replace("hbm_read", "hbm_raed"), "hbm_read is missing"),
        (lambda t: t.replace("chip.hardware_profile", "chip.host_profile"), "is a chip.host_profile file"),
        (
            lambda t: t.replace('"operators": {}', '"operators": {"linear": ["kernel,m"]}'),
            "operators/linear.csv: its columns must be",
        ),
    ],
)
def test_a_bad_profile_is_one_clear_line(written, spoil, said):
    written.write_text(spoil(written.read_text()))
    with pytest.raises(ChipError) as e:
        gpus.read_profile(written)
    assert said in str(e.value)
    assert "\n" not in str(e.value)
