"""Everything NVIDIA-only: NVML's sensors, energy counter, processes. Its absence is an answer, not an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class GpuProcess:
    """Somebody computing on the GPU."""

    pid: int
    name: str
    memory_bytes: int

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid}, {self.memory_bytes / 2**20:.0f} MiB)"


class Gpu:
    """One GPU as NVML sees it. Each reading is None where the driver refuses it."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.handle = handle

    def _read(self, query: Callable[[], T]) -> T | None:
        try:
            return query()
        except (self.nvml.NVMLError, AttributeError, OSError):
            return None

    def clock_hz(self) -> float | None:
        value = self._read(lambda: self.nvml.nvmlDeviceGetClockInfo(self.handle, self.nvml.NVML_CLOCK_SM))
        return None if value is None else value * 1e6

    def boost_hz(self) -> float | None:
        value = self._read(lambda: self.nvml.nvmlDeviceGetMaxClockInfo(self.handle, self.nvml.NVML_CLOCK_SM))
        return None if value is None else value * 1e6

    def watts(self) -> float | None:
        """At this moment, where the driver tells; else its own reading, which newer GPUs average over a second."""
        value = self._read(self._instant_milliwatts)
        if value is None:
            value = self._read(lambda: self.nvml.nvmlDeviceGetPowerUsage(self.handle))
        return None if value is None else value / 1e3

    def _instant_milliwatts(self) -> int:
        field = self.nvml.nvmlDeviceGetFieldValues(self.handle, [self.nvml.NVML_FI_DEV_POWER_INSTANT])[0]
        if field.nvmlReturn != 0:
            raise self.nvml.NVMLError(field.nvmlReturn)
        return int(field.value.uiVal)

    def power_limit_w(self) -> float | None:
        value = self._read(lambda: self.nvml.nvmlDeviceGetEnforcedPowerLimit(self.handle))
        return None if value is None else value / 1e3

    def joules(self) -> float | None:
        """Total since the driver was loaded; the counter moves about ten times a second."""
        value = self._read(lambda: self.nvml.nvmlDeviceGetTotalEnergyConsumption(self.handle))
        return None if value is None else value / 1e3

    def celsius(self) -> float | None:
        value = self._read(lambda: self.nvml.nvmlDeviceGetTemperature(self.handle, self.nvml.NVML_TEMPERATURE_GPU))
        return None if value is None else float(value)

    def utilisation(self) -> float | None:
        value = self._read(lambda: self.nvml.nvmlDeviceGetUtilizationRates(self.handle).gpu)
        return None if value is None else value / 100

    def used_bytes(self) -> int | None:
        return self._read(lambda: int(self.nvml.nvmlDeviceGetMemoryInfo(self.handle).used))

    def driver(self) -> str | None:
        return self._read(lambda: _text(self.nvml.nvmlSystemGetDriverVersion()))

    def processes(self) -> list[GpuProcess]:
        """Who computes on this GPU, this process aside."""
        running = self._read(lambda: self.nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)) or []
        return [
            GpuProcess(p.pid, self._process_name(p.pid), int(p.usedGpuMemory or 0))
            for p in running
            if p.pid != os.getpid()
        ]

    def _process_name(self, pid: int) -> str:
        name = self._read(lambda: _text(self.nvml.nvmlSystemGetProcessName(pid)))
        return os.path.basename(name.split(" ")[0]) if name else "a process of another container or user"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def open_gpu(index: int, uuid: str | None, nvml: Any = None) -> Gpu | str:
    """The GPU torch calls `cuda:index`, or why NVML cannot give it. The uuid settles what a mask renumbered."""
    if nvml is None:
        try:
            import pynvml as nvml  # type: ignore[no-redef]
        except ImportError:
            return "NVML not available: nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
        if uuid:
            name = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
            try:
                return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(name))
            except (nvml.NVMLError, TypeError):
                return Gpu(nvml, nvml.nvmlDeviceGetHandleByUUID(name.encode()))
        return Gpu(nvml, nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError as e:
        return f"NVML not available: {e}"
