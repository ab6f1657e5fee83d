"""Run kernels once, alone in a process, for the tools that watch processes: `python -m chip.lab.kernels.once JSON`.

Between cudaProfilerStart and -Stop there is exactly the call; before it one to warm up. Inputs are made on the host, so
that no kernel but the one in question runs.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from chip.types import Op

MARK = "chip runs "  # before a variant's calls, on stdout


def command(runs: Sequence[tuple[str, str, Sequence[Op]]]) -> list[str]:
    """`runs`: kernel, variant and the calls of each."""
    from chip.files.measurements import record

    words = [[kernel, variant, [record(op) for op in ops]] for kernel, variant, ops in runs]
    return [sys.executable, "-m", "chip.lab.kernels.once", json.dumps(words)]


def main(words: list[str]) -> int:
    import torch

    from chip.files.measurements import operator
    from chip.lab.kernels.subjects import subject
    from chip.lab.measure.device import open_device

    device = open_device("cuda")
    generator = torch.Generator().manual_seed(3)
    runtime: Any = torch.cuda.cudart()
    for kernel, variant, records in json.loads(words[0]):
        print(MARK + variant, flush=True)
        s = subject(kernel, device, variant, configs=":" in variant)
        call = s.module.native if variant == s.baseline else next(v.call for v in s.variants if v.name == variant)
        with torch.no_grad():
            for record in records:
                tensors = s.module.inputs(operator(record), torch.device("cpu"), generator)
                inputs = [t.to(device.torch_device) for t in tensors]
                call(*inputs)
                device.synchronize()
                runtime.cudaProfilerStart()
                call(*inputs)
                device.synchronize()
                runtime.cudaProfilerStop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
