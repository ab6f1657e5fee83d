"""What is said of a step is what was seen: idle shares, reasons, energy, from made-up sights of a device."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from chip.files.runs import Run  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.energy import EnergyReading, NoProbe, NotAvailable, idle_watts  # noqa: E402
from chip.lab.run import busy, energy  # noqa: E402
from chip.lab.run.busy import Look  # noqa: E402
from chip.lab.run.clock import RunSamples  # noqa: E402
from chip.show.cli.bench_text import idle_story, render  # noqa: E402
from chip.types import Scenario  # noqa: E402

MS = 1_000_000
CUDNN = ("ampere_gemm", "cudnn_generated_fort_native_sdpa_sm90_flash_fprop")


def samples(first_ms, later_ms, steps=20, repeats=3):
    warm = (later_ms * MS,) * 2 + (first_ms * MS,) * (steps - 2)
    each = [warm, *[(later_ms * MS,) * steps] * (repeats - 1)]
    return RunSamples([16 * MS] * repeats, each, [16 * MS + sum(e) for e in each])


def test_overlaps_count_once():
    assert busy.union([(0, 2), (1, 3), (5, 6), (5.5, 5.7)]) == pytest.approx(4)
    assert busy.union([]) == 0


def test_a_plan_for_each_new_length_is_found_by_comparing():
    seen = samples(94, 22)
    looks = {"prefill": Look(0.0158, 0.01, 900), "decode": Look(0.0023, 0.0215, 947, CUDNN)}
    assert busy.new_length_s(seen) == pytest.approx(0.072)
    assert busy.shares(looks, seen) == pytest.approx({"prefill": 0.9875, "decode": 0.1045}, rel=1e-3)
    plan, dispatch = busy.waits(looks, seen)
    assert plan == (
        "decode: cuDNN builds an attention plan for each new KV length: a step takes 94 ms the first time, "
        "22 ms when the length was seen before; --sdpa flash does not"
    )
    assert dispatch == "decode: host dispatch, 947 launches at 22.7 us (2.3 ms of kernels)"


def test_without_a_difference_there_is_no_such_story():
    seen = samples(22, 22)
    assert busy.new_length_s(seen) == 0
    assert busy.waits({"decode": Look(0.0023, 0.0215, 947, CUDNN)}, seen)[0].startswith("decode: host dispatch")
    assert busy.waits({"decode": Look(0.0215, 0.002, 947)}, seen) == ()
    assert busy.waits({"decode": Look(0.0023, 0.0215, 947)}, samples(94, 22))[0].startswith(
        "decode: each new KV length costs more: a step takes 94 ms"
    )


def test_gaps_and_graphs_are_not_called_dispatch():
    seen = samples(3, 3)
    assert "gaps between 900 kernels, 1 ms in all" in busy.waits({"decode": Look(0.002, 0.0005, 900)}, seen)[0]
    assert "launch and synchronisation of the graph" in busy.waits({"decode": Look(0.0025, 1e-4, 0)}, seen)[0]


def test_the_first_screen_tells_it():
    seen = samples(94, 22)
    looks = {"prefill": Look(0.0158, 0.01, 900), "decode": Look(0.0023, 0.0215, 947, CUDNN)}
    run = Run(
        "tinyllama-1.1b", "hf-eager", "", Scenario(1, 128, 21), "ok", "", tuple(seen.ttft_ns), tuple(seen.step_ns),
        tuple(seen.e2e_ns), busy.shares(looks, seen), busy.waits(looks, seen), engine_version="transformers 5",
        device="Some GPU",
    )  # fmt: skip
    story = idle_story([run])
    assert story.startswith(
        "GPU idle 1.2 % of prefill, 89.5 % of decode (tinyllama-1.1b hf-eager pp128+tg21xb1): decode"
    )
    assert "cuDNN builds an attention plan" in story
    assert story in render([run])
    assert "86.8 ms" in render([run])  # the first repeat, beside the TPOT of 22 ms
    bound = idle_story([Run("m", "hf-graph", "", Scenario(1, 8, 2), "ok", busy={"prefill": 0.99, "decode": 0.97})])
    assert bound == "GPU idle 1.0 % of prefill, 3.0 % of decode (m hf-graph pp8+tg2xb1): device-bound"


class Meter:
    """100 W while a prefill runs, 60 W in a decode step, each taking a second; the power sensor reads 10 % high."""

    def __init__(self):
        self.joules = self.seconds = self.clock = 0.0

    def spend(self, joules):
        self.joules += joules
        self.seconds += 1
        self.clock += 1

    def start(self):
        self.joules = self.seconds = 0.0

    def stop(self):
        return EnergyReading(self.joules, self.seconds, "meter", self.joules * 1.1)


class Metered:
    def __init__(self, meter):
        self.meter = meter

    def rewind(self):
        pass

    def prefill(self):
        self.meter.spend(100)

    def decode(self):
        self.meter.spend(60)


def test_energy_is_of_one_request_prefill_and_decode_apart_without_idle(monkeypatch):
    meter = Meter()
    monkeypatch.setattr("chip.lab.measure.energy.time", SimpleNamespace(monotonic=lambda: meter.clock))
    found = energy.of_request(open_device("cpu"), meter, 20.0, Metered(meter), 4, 0.001)
    assert found.prefill_j == pytest.approx(80)
    assert found.decode_j == pytest.approx(3 * 40)
    assert found.counter_j == pytest.approx(280)
    assert found.integrated_j == pytest.approx(308)
    assert found.flags == ("energy counter and integrated power differ by 10%",)
    assert energy.of_request(open_device("cpu"), meter, 20.0, Metered(meter), 1, 0.001).decode_j == 0


def test_energy_that_is_not_above_idle_is_none_at_all(monkeypatch):
    meter = Meter()
    monkeypatch.setattr("chip.lab.measure.energy.time", SimpleNamespace(monotonic=lambda: meter.clock))
    found = energy.of_request(open_device("cpu"), meter, 80.0, Metered(meter), 4, 0.001)
    assert (found.prefill_j, found.decode_j) == (20, None)
    assert found.flags[-1] == "no decode energy: -60 J left of it above 80 W idle"
    found = energy.of_request(open_device("cpu"), meter, 150.0, Metered(meter), 1, 0.001)
    assert (found.prefill_j, found.decode_j) == (None, 0)


def test_no_meter_says_why():
    assert idle_watts(NoProbe("nothing to read")) == NotAvailable("nothing to read")
