"""A GPU in use is refused with the name of whoever uses it: a fake NVML tells the stories."""

import os
from types import SimpleNamespace

import pytest

from chip.lab.measure import nvml
from chip.lab.measure.device import Device, open_device, refuse_busy
from chip.types import ChipError


class FakeNvml:
    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    def __init__(self, processes=(), used=600 << 20, utilisation=(0,), broken=()):
        self.found, self.used, self.busy, self.broken = processes, used, list(utilisation), broken

    def nvmlInit(self):
        if "init" in self.broken:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid):
        return ("handle", uuid)

    def nvmlDeviceGetHandleByIndex(self, index):
        return ("handle", index)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):
        return [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, _, size in self.found]

    def nvmlSystemGetProcessName(self, pid):
        return {p: n for p, n, _ in self.found}[pid].encode()

    def nvmlDeviceGetMemoryInfo(self, handle):
        return SimpleNamespace(used=self.used)

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=self.busy.pop(0) if len(self.busy) > 1 else self.busy[0])

    def nvmlDeviceGetClockInfo(self, handle, kind):
        if "clock" in self.broken:
            raise self.NVMLError("Not Supported")
        return 1980

    def nvmlDeviceGetPowerUsage(self, handle):
        return 700_000


def gpu(**story):
    found = nvml.open_gpu(0, "1234", FakeNvml(**story))
    assert isinstance(found, nvml.Gpu)
    return Device("cuda:0", "cuda", "NVIDIA H200", 132, 141 << 30, 60 << 20, 1.98e9, "9.0", gpu=found)


def said(device, **kwargs):
    with pytest.raises(ChipError) as e:
        refuse_busy(device, settle_s=0, **kwargs)
    assert "\n" not in str(e.value)
    assert "--force" in str(e.value)
    return str(e.value)


def test_an_idle_gpu_and_our_own_process_are_fine():
    refuse_busy(gpu())


def test_whoever_computes_is_named():
    text = said(gpu(processes=[(os.getppid(), "/usr/bin/python3 serve.py", 20 << 30)]))
    assert f"is in use by python3 (pid {os.getppid()}, 20480 MiB)" in text


def test_ourselves_under_another_pid_in_a_container_is_not_somebody_else():
    refuse_busy(gpu(processes=[(2**30, "python", 500 << 20)]))
    assert "20480 MiB" in said(gpu(processes=[(2**30, "python", 20 << 30)]))


def test_memory_held_by_somebody_unseen_is_refused():
    assert "18.0 GiB of its memory are in use" in said(gpu(used=18 << 30))


def test_utilisation_without_a_process_is_refused_but_a_moments_lag_is_not():
    assert "is 97% busy" in said(gpu(utilisation=(99, 97, 98)))
    refuse_busy(gpu(utilisation=(60, 30, 0)))


def test_without_nvml_nothing_is_refused_and_the_reason_is_kept():
    assert nvml.open_gpu(0, None, FakeNvml(broken=("init",))) == "NVML not available: Driver Not Loaded"
    refuse_busy(Device("cuda:0", "cuda", "GPU", 1, 1, 1, None, None))


def test_a_reading_the_driver_refuses_is_none():
    device = gpu(broken=("clock",))
    assert device.clock_hz() is None
    assert device.watts() == 700.0


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "cuda:-1", "CPU", ""])
def test_an_unknown_device_names_the_known_ones(name):
    with pytest.raises(ChipError, match=r"use cpu, cuda or cuda:N"):
        open_device(name)


class InstantNvml(FakeNvml):
    NVML_FI_DEV_POWER_INSTANT = 186
    refused = 0

    def nvmlDeviceGetFieldValues(self, handle, fields):
        assert fields == [186]
        return [SimpleNamespace(nvmlReturn=self.refused, value=SimpleNamespace(uiVal=650_000))]


def test_watts_are_of_this_moment_where_the_driver_tells():
    """NVML's plain reading is an average over a second, which smears short work into what was before it."""
    fake = InstantNvml()
    found = nvml.open_gpu(0, "1234", fake)
    assert found.watts() == 650
    fake.refused = 3
    assert found.watts() == 700
    assert nvml.open_gpu(0, "1234", FakeNvml()).watts() == 700
