"""Run one kernel once, alone in a process, for the tools that watch processes: `python -m chip.kernels.once JSON`.

Between cudaProfilerStart and -Stop there is exactly the call; before it one to warm up.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from chip.types import Op


def command(kernel: str, variant: str, ops: list[Op]) -> list[str]:
    from chip.measurements import record

    return [sys.executable, "-m", "chip.kernels.once", json.dumps([kernel, variant, [record(op) for op in ops]])]


def main(words: list[str]) -> int:
    import torch

    from chip.kernels.subjects import subject
    from chip.measure.device import open_device
    from chip.measurements import operator

    kernel, variant, records = json.loads(words[0])
    device = open_device("cuda")
    s = subject(kernel, device, variant, configs=":" in variant)
    generator = torch.Generator(device.torch_device).manual_seed(3)
    runtime: Any = torch.cuda.cudart()
    with torch.no_grad():
        for record in records:
            inputs = s.module.inputs(operator(record), device.torch_device, generator)
            call = s.module.native if variant == s.baseline else next(v.call for v in s.variants if v.name == variant)
            call(*inputs)
            device.synchronize()
            runtime.cudaProfilerStart()
            call(*inputs)
            device.synchronize()
            runtime.cudaProfilerStop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
