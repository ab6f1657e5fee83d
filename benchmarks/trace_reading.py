"""How long a large Chrome trace takes to read, and how much memory: a million events on one core, under a minute.

    python benchmarks/trace_reading.py [--events 1000000]

Events are like those of the torch profiler: an operator, its launch and its kernel, in turn. Exits with 1 if the bar
is missed.
"""

import argparse
import json
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from environment import describe

from chip.lab.replay import foreign, signatures

BAR_S = 60.0
MM = {
    "Input Dims": [[64, 4096], [4096, 4096]],
    "Input Strides": [[4096, 1], [1, 4096]],
    "Input type": ["c10::BFloat16", "c10::BFloat16"],
    "Concrete Inputs": ["", ""],
}
DEVICE = {"device": 0, "context": 1, "stream": 7, "registers per thread": 168, "shared memory": 213760,
          "blocks per SM": 0.97, "warps per SM": 11.6, "est. achieved occupancy %": 19}  # fmt: skip


def three(i):
    """An operator, its launch, its kernel."""
    host = {"ph": "X", "pid": 100, "tid": 100}
    yield {**host, "cat": "cpu_op", "name": "aten::mm", "ts": 50.0 * i, "dur": 40.0, "args": {"External id": i, **MM}}
    args = {"External id": i, "cbid": 211, "correlation": i}
    yield {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 50.0 * i + 10, "dur": 5.0, "args": args}
    args = {**DEVICE, "correlation": i, "grid": [32, 1 + i % 4, 1], "block": [384, 1, 1], "External id": i}
    name = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNT"
    yield {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": name, "ts": 50.0 * i + 30, "dur": 9.5, "args": args}


def write(path, events):
    with open(path, "w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for i in range(events // 3):
            file.writelines(json.dumps(e) + ",\n" for e in three(i))
        file.write('{"ph": "M", "name": "end"}]}\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        write(path, args.events)
        size = path.stat().st_size
        began = time.perf_counter()
        trace = foreign.trace_of(path)
        kernels = signatures.workload_of(trace).signatures
        seconds = time.perf_counter() - began
    assert sum(s.launches for s in kernels) == args.events // 3
    found = {
        **describe(),
        "events": args.events,
        "file_mb": round(size / 1e6),
        "seconds": round(seconds, 1),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3),
        "bar_seconds": BAR_S,
        "met": seconds * 1_000_000 / args.events < BAR_S,
    }
    print(json.dumps(found, indent=1))
    return 0 if found["met"] else 1


if __name__ == "__main__":
    sys.exit(main())
