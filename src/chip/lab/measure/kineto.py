"""The torch profiler as a function: do some work under it, get what ran."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, record_function

from chip.files import output
from chip.lab.measure.device import Device
from chip.lab.replay import chrome, owners
from chip.lab.replay.chrome import DeviceEvent
from chip.types import ChipError

PASS = "chip.pass#"  # annotation around each run


class ProfilerUse:
    """Whether this process has used the profiler: its launches and the kernels of its graphs are slower ever after."""

    before = False
    FLAG = "the profiler was used in this process before: launches take longer than they need"


def profiled(work: Callable[[], object], keep: Path | None = None) -> chrome.Profile:
    """What ran while `work` did. With `keep` the profiler's own trace stays in that file, with shapes."""
    ProfilerUse.before = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=keep is not None) as p:
            work()
        p.export_chrome_trace(str(path))
        if keep:
            # with our schema in front, by which it may be replaced
            signed = b'{"schema": "%s",' % chrome.SCHEMA.encode() + path.read_bytes().lstrip().removeprefix(b"{")
            output.write(keep, signed, chrome.SCHEMA)
        return chrome.read(path)


@dataclass(frozen=True)
class Looked:
    """What is looked at: `run`, so many times; `before` is called ahead of each and is no part of it."""

    run: Callable[[], object]
    count: int
    before: Callable[[], object] = lambda: None


def passes(looks: Sequence[Looked], device: Device, keep: Path | None = None) -> list[list[list[DeviceEvent]]]:
    """Kernels of each run of each look. One run more goes first: it wakes the profiler."""

    def work() -> None:
        for number, look in enumerate([replace(looks[0], count=1), *looks]):
            for _ in range(look.count):
                look.before()
                device.synchronize()
                with record_function(f"{PASS}{number}"):
                    look.run()
                    device.synchronize()

    runs = iter(owners.during(profiled(work, keep), PASS)[1:])
    launches = [[next(runs) for _ in range(look.count)] for look in looks]
    if not any(any(one) for one in launches):
        raise ChipError("the torch profiler saw no kernel: is CUPTI installed, and may this user trace the GPU?")
    return launches
