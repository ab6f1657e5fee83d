"""A ROCm build of torch, by a stand-in of `torch.version.hip`: what is NVIDIA's own is left out and said."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from chip.hardware import gpus  # noqa: E402
from chip.lab.kernels import build  # noqa: E402
from chip.lab.measure import limits  # noqa: E402
from chip.lab.measure.device import open_device, refuse_busy  # noqa: E402

MI300X = SimpleNamespace(
    name="AMD Instinct MI300X", multi_processor_count=304, total_memory=192 * 2**30, L2_cache_size=4 * 2**20,
    gcnArchName="gfx942:sramecc+:xnack-", major=9, minor=4, clock_rate=2_100_000, memory_clock_rate=1,
    memory_bus_width=8192,
)  # fmt: skip


@pytest.fixture
def rocm(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", "6.4.43482", raising=False)
    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 1, "set_device": lambda index: None,
        "get_device_properties": lambda index: MI300X, "clock_rate": lambda device: 1900,
        "power_draw": lambda device: 650_000, "temperature": lambda device: 61,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    return open_device("cuda:0")


def test_the_card_is_known_by_its_name_and_architecture(rocm):
    assert (rocm.title, rocm.compute_capability, rocm.sm_count) == ("AMD Instinct MI300X", "gfx942", 304)
    assert gpus.match_device(rocm.title) == "mi300x"
    assert limits.flop_limit(rocm.compute_capability, "bf16", rocm.sm_count, 2.1e9) == 304 * 2048 * 2.1e9
    assert rocm.bus_bytes_per_s is None, "properties of a HIP build do not tell the bus"
    assert any("NVML not available on ROCm" in note for note in rocm.notes)


def test_sensors_are_torchs_own(rocm):
    now = rocm.sensors()
    assert (now.clock_hz, now.watts, now.celsius) == (1.9e9, 650.0, 61.0)


def test_sensors_that_fail_are_left_out(rocm, monkeypatch):
    def no_amdsmi(device):
        raise ModuleNotFoundError("amdsmi")

    for name in ("clock_rate", "power_draw", "temperature"):
        monkeypatch.setattr(torch.cuda, name, no_amdsmi)
    now = rocm.sensors()
    assert (now.watts, now.celsius) == (None, None)


def test_a_busy_card_is_not_seen_and_cuda_kernels_are_left_out(rocm):
    refuse_busy(rocm)
    assert build.unusable("hgemm_5_wgmma", rocm.kind, rocm.compute_capability)
    assert build.unusable("hgemm_1_naive", rocm.kind, rocm.compute_capability)
