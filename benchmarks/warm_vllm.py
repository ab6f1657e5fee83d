"""Compile several models for vLLM at once, so that later starts find it done.

    python benchmarks/warm_vllm.py llama-3.1-8b qwen2.5-7b

vLLM compiles in one thread, after a model is loaded and before it makes its KV cache. Here each model gets a process
with room for no KV cache, which therefore ends where compiling ends. Neither that room nor the share of memory is part
of the cache's key; other settings are, so give the same ones as to `chip bench`. All models must fit on the GPU at
once: call it twice where they do not.
"""

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from chip import artifact
from chip.models.library import locate
from chip.run import Job, vllm
from chip.types import ChipError

NO_ROOM = {"kv_cache_memory_bytes": "1048576", "gpu_memory_utilization": "0.01"}
DONE = "KV cache is needed"  # vLLM's complaint that there is no room for one request


def warm(model, args):
    path, title = locate(model)
    settings = {**dict(word.split("=", 1) for word in args.engine_setting), **NO_ROOM}
    job = Job(title, artifact.read_json(path), dtype=args.dtype, python=args.python, settings=settings, energy_s=0)
    began = time.monotonic()
    try:
        vllm.open(job).close()
        said = "ok"
    except ChipError as e:
        said = "ok" if DONE in str(e) else str(e)
    return title, time.monotonic() - began, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", metavar="MODEL", nargs="+")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--python", default="")
    parser.add_argument("--engine-setting", metavar="KEY=VALUE", action="append", default=[])
    args = parser.parse_args()
    failed = 0
    with ThreadPoolExecutor(len(args.models)) as pool:
        for title, seconds, said in pool.map(lambda m: warm(m, args), args.models):
            print(f"{title}  {seconds:.0f} s  {said}", flush=True)
            failed |= said != "ok"
    return failed


if __name__ == "__main__":
    sys.exit(main())
