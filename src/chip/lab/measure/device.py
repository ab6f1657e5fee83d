"""The device under test, `cuda:N` or `cpu`, behind one small face. ROCm's torch answers to `cuda` too."""

from __future__ import annotations

import os
import platform
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chip.dtypes import AUTO
from chip.lab.measure import nvml
from chip.types import ChipError, install

UNKNOWN_CACHE_BYTES = 32 * 2**20
BUSY_UTILISATION = 0.05
CGROUP = Path("/sys/fs/cgroup")
BUSY_BYTES = 2 * 2**30  # more than any driver keeps for itself


@dataclass(frozen=True)
class Sensors:
    clock_hz: float | None = None
    watts: float | None = None
    celsius: float | None = None


@dataclass(frozen=True)
class Device:
    name: str  # "cuda:0" or "cpu"
    kind: str  # "cuda" or "cpu"
    title: str  # as the driver calls it
    sm_count: int  # SMs, or cores of a CPU
    memory_bytes: int
    l2_bytes: int  # on a CPU: the last-level cache
    boost_hz: float | None
    compute_capability: str | None  # "9.0"; on AMD the architecture, "gfx942"
    bus_bytes_per_s: float | None = None  # memory clock x bus width, where the driver tells
    gpu: nvml.Gpu | None = field(default=None, compare=False, repr=False)
    notes: tuple[str, ...] = ()  # what could not be read, and what was assumed

    @property
    def sm_word(self) -> str:
        """What `sm_count` counts."""
        return "SMs" if self.kind == "cuda" else "cores"

    def dtype(self, wanted: str) -> str:
        """What it computes in where nothing else is wanted ("" or auto): bf16, on a CPU fp32."""
        if wanted not in ("", AUTO):
            return wanted
        return "fp32" if self.kind == "cpu" else "bf16"

    @property
    def torch_device(self) -> Any:
        return _torch().device(self.name)

    def synchronize(self) -> None:
        if self.kind == "cuda":
            _torch().cuda.synchronize(self.torch_device)

    def lost(self) -> str:
        """The error (a device-side assert, an illegal address) that left the context useless, "" where none did: CUDA
        answers every call with it until the process ends, whatever a library made of it when it happened."""
        try:
            self.synchronize()
        except RuntimeError as e:
            return str(e).partition("\n")[0] or type(e).__name__
        return ""

    def require_alive(self) -> None:
        """An error where the device died under some work: all that follows would fail, and a new process can go on."""
        if lost := self.lost():
            raise ChipError(f"{self.title} no longer answers ({lost}); run the same command again to go on")

    def empty_cache(self) -> None:
        if self.kind == "cuda":
            _torch().cuda.empty_cache()

    def free_bytes(self) -> int:
        if self.kind == "cuda":
            return int(_torch().cuda.mem_get_info(self.torch_device)[0])
        return _available_bytes()

    def clock_hz(self) -> float | None:
        if self.gpu is not None:
            return self.gpu.clock_hz()
        if self.kind == "cuda":
            mhz = _amd("clock_rate", self)
            return None if mhz is None else mhz * 1e6
        return None

    def watts(self) -> float | None:
        if self.gpu is not None:
            return self.gpu.watts()
        milliwatts = _amd("power_draw", self) if self.kind == "cuda" else None
        return None if milliwatts is None else milliwatts / 1e3

    def sensors(self) -> Sensors:
        if self.kind != "cuda":
            return Sensors()
        celsius = self.gpu.celsius() if self.gpu is not None else _amd("temperature", self)
        return Sensors(self.clock_hz(), self.watts(), celsius)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise ChipError(f"torch is not installed: measuring needs it; {install('measure')}") from None
    return torch


def _amd(name: str, device: Device) -> float | None:
    """torch's own sensors, which on ROCm ask amdsmi; None on anything else."""
    torch = _torch()
    if not getattr(torch.version, "hip", None):
        return None
    try:
        return float(getattr(torch.cuda, name)(device.torch_device))
    except Exception:  # amdsmi is optional and fails in many ways
        return None


def open_device(name: str) -> Device:
    """`cuda` (the current one), `cuda:N` or `cpu`."""
    if name == "cpu":
        return _open_cpu()
    match = re.fullmatch(r"cuda(?::(\d+))?", name)
    if not match:
        raise ChipError(f"device {name!r} is not known; use cpu, cuda or cuda:N")
    torch = _torch()
    if not torch.cuda.is_available():
        raise ChipError(
            f"device {name}: torch {torch.__version__} sees no GPU; use --device cpu or install a CUDA torch"
        )
    index, count = int(match[1] or 0), torch.cuda.device_count()
    if index >= count:
        raise ChipError(f"device {name}: there is no such GPU; this machine has cuda:0 to cuda:{count - 1}")
    return _open_cuda(torch, index)


def default_device() -> str:
    """The first GPU, or the CPU where torch sees none."""
    return "cuda:0" if _torch().cuda.is_available() else "cpu"


def _open_cuda(torch: Any, index: int) -> Device:
    torch.cuda.set_device(index)  # events, streams and Triton follow the current device
    p = torch.cuda.get_device_properties(index)
    hip = getattr(torch.version, "hip", None)
    uuid = str(p.uuid) if getattr(p, "uuid", None) else None
    gpu = "NVML not available on ROCm" if hip else nvml.open_gpu(index, uuid)
    notes = []
    boost_hz = None if isinstance(gpu, str) else gpu.boost_hz()
    if boost_hz is None and getattr(p, "clock_rate", None):
        boost_hz = p.clock_rate * 1e3
    if isinstance(gpu, str):
        notes.append(gpu)
    l2_bytes = int(getattr(p, "L2_cache_size", 0) or 0)
    if not l2_bytes:
        l2_bytes = UNKNOWN_CACHE_BYTES
        notes.append("size of the L2 cache not readable: 32 MiB assumed")
    clock_khz, bus_bits = getattr(p, "memory_clock_rate", None), getattr(p, "memory_bus_width", None)
    return Device(
        name=f"cuda:{index}",
        kind="cuda",
        title=p.name,
        sm_count=p.multi_processor_count,
        memory_bytes=p.total_memory,
        l2_bytes=l2_bytes,
        boost_hz=boost_hz,
        compute_capability=p.gcnArchName.split(":")[0] if hip else f"{p.major}.{p.minor}",
        bus_bytes_per_s=clock_khz * 1e3 * 2 * bus_bits / 8 if clock_khz and bus_bits and not hip else None,
        gpu=None if isinstance(gpu, str) else gpu,
        notes=tuple(notes),
    )


def _open_cpu() -> Device:
    _torch()
    cache = _last_level_cache_bytes()
    notes = ["no clock, watts or temperature beside the samples of a CPU"]
    if cache is None:
        notes.append("size of the last-level cache not readable: 32 MiB assumed")
    khz = _read_number(Path("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq"))
    return Device(
        name="cpu",
        kind="cpu",
        title=cpu_title(),
        sm_count=cores(),
        memory_bytes=_total_bytes(),
        l2_bytes=cache or UNKNOWN_CACHE_BYTES,
        boost_hz=None if khz is None else khz * 1e3,
        compute_capability=None,
        notes=tuple(notes),
    )


def reason_of(e: BaseException) -> str:
    """An error in one line."""
    lines = [line.strip() for line in str(e).splitlines() if line.strip()]
    if type(e).__name__ == "OutOfMemoryError":
        return "out of memory: " + " ".join(lines).split(". ")[0]
    return f"{type(e).__name__}: {lines[0][:200]}" if lines else type(e).__name__


def refuse_busy(device: Device, settle_s: float = 0.3) -> None:
    """An error that names whoever else computes on the GPU."""
    if device.gpu is None:
        return
    if others := _other_processes(device.gpu):
        who = ", ".join(map(str, others))
        raise ChipError(f"{device.name} ({device.title}) is in use by {who}; wait, or measure anyway with --force")
    used = device.gpu.used_bytes() or 0
    if used > BUSY_BYTES:
        gib = used / 2**30
        raise ChipError(
            f"{device.name} ({device.title}): {gib:.1f} GiB of its memory are in use by a process that this one cannot "
            "see; free it, or measure anyway with --force"
        )
    busy = [device.gpu.utilisation() or 0.0]
    while busy[-1] > BUSY_UTILISATION and len(busy) < 3:  # the driver's figure lags: look again
        time.sleep(settle_s)
        busy.append(device.gpu.utilisation() or 0.0)
    if min(busy) > BUSY_UTILISATION:
        raise ChipError(
            f"{device.name} ({device.title}) is {min(busy):.0%} busy with the work of another process; wait for it, "
            "or measure anyway with --force"
        )


def _other_processes(gpu: nvml.Gpu) -> list[nvml.GpuProcess]:
    """Inside a container our own pid has another name: one unseen process no bigger than we are is ourselves."""
    others = gpu.processes()
    ours = [p for p in others if not Path(f"/proc/{p.pid}").exists() and p.memory_bytes <= BUSY_BYTES // 2]
    return [p for p in others if p is not ours[0]] if len(ours) == 1 else others


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_title() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine() or "CPU"


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    match = re.fullmatch(r"(\d+)([KMG]?)", text)
    return int(match[1]) * {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[match[2]] if match else None


def _last_level_cache_bytes() -> int | None:
    sizes = {
        _read_number(index / "level") or 0: _read_number(index / "size")
        for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")
    }
    return sizes[max(sizes)] if sizes else None


def _meminfo(key: str) -> int | None:
    try:
        match = re.search(rf"^{key}:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(match[1]) * 1024 if match else None


def _total_bytes() -> int:
    limit = _read_number(CGROUP / "memory.max")
    total = _meminfo("MemTotal") or 4 * 2**30
    return min(total, limit) if limit else total


def _cached_bytes() -> int:
    """The cgroup's memory that holds copies of files, which the kernel gives up first."""
    stat = CGROUP / "memory.stat"
    sizes = re.findall(r"^(?:in)?active_file (\d+)$", stat.read_text(), re.MULTILINE) if stat.exists() else []
    return sum(map(int, sizes))


def _available_bytes() -> int:
    limit = _read_number(CGROUP / "memory.max")
    used = (_read_number(CGROUP / "memory.current") or 0) - _cached_bytes()
    free = _meminfo("MemAvailable") or 2 * 2**30
    return min(free, limit - used) if limit else free
