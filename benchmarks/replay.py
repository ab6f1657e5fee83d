"""Capture, replay and explain the steps that the README compares, on this machine's GPU.

  PYTHONPATH=src python benchmarks/replay.py OUT [CASE ...] [--seconds 300]

A folder for each case lands in OUT, with what the command printed, and OUT.tar.gz holds them all. A case that was not
begun within --seconds is left out and said; run again, it goes on. A case is meant to take about half a minute, those
of BLOOM and Llama-3.1-8B 15 s longer for the energy of their heavy kernels. Each has a process of its own, since one
that has used the profiler launches more slowly; they are forked, so that torch is imported once.
"""

import argparse
import contextlib
import os
import sys
import tarfile
import time
import traceback
from pathlib import Path

from chip.show import cli

GRAPH = ("--engine", "hf-graph")
CASES = {
    "bloom-560m-1x5": ("replay", "bloom-560m", *GRAPH, "--prompt", "5", "--energy-seconds", "1"),
    "tinyllama-1.1b-decode-8x512": ("replay", "tinyllama-1.1b", *GRAPH, "--batch", "8", "--phase", "decode"),
    "llama-3.1-8b-decode-8x512": (
        "replay", "llama-3.1-8b", *GRAPH, "--batch", "8", "--phase", "decode", "--energy-seconds", "1",
    ),
    "llama-3.1-8b-prefill-1x1024": ("replay", "llama-3.1-8b", *GRAPH, "--prompt", "1024", "--energy-seconds", "1"),
    "tinyllama-1.1b-prefill-1x1024": ("replay", "tinyllama-1.1b", *GRAPH, "--prompt", "1024"),
    "bloom-560m-8x512": ("replay", "bloom-560m", *GRAPH, "--batch", "8", "--energy-seconds", "1"),
    "bloom-560m-1x5-eager": ("capture", "bloom-560m", "--engine", "hf-eager", "--no-cache", "--prompt", "5"),
}  # fmt: skip


def words_of(name, folder, more):
    words = CASES[name]
    if words[0] == "capture":  # for the profiler's own trace
        return [*words, "-o", str(folder / "trace.json"), "--chrome", str(folder / "chrome.json"), *more]
    return [*words, "--output-dir", str(folder), *more]


def run(name, folder, more):
    """The exit code of the case; what it printed goes to said.txt and log.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(folder / "said.txt", "w"))))
        stack.enter_context(contextlib.redirect_stderr(stack.enter_context(open(folder / "log.txt", "w"))))
        try:
            return cli.main(words_of(name, folder, more))
        except Exception:  # one case must not cost the others
            traceback.print_exc()
            return 3


def in_a_child(work):
    """What `work` returns as its exit code, in a process of its own that has what this one has imported."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} [all]")
    parser.add_argument("--seconds", type=float, default=300.0, help="after which no case is begun [%(default)s]")
    parser.add_argument("--force", action="store_true", help="measure even while another process uses the GPU")
    args = parser.parse_args()
    if unknown := [c for c in args.cases if c not in CASES]:
        parser.error(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
    with contextlib.suppress(ImportError):
        import torch  # noqa: F401 - imported, but not a word to the device, which a fork would not survive
        import transformers  # noqa: F401
    begin, failed, ran = time.monotonic(), 0, False
    for name in args.cases or CASES:
        start = time.monotonic()
        if start - begin > args.seconds:
            print(f"{name}: left out, {args.seconds:.0f} s are over", flush=True)
            failed += 1
            continue
        mine = args.force or ran  # the first case looked whether the GPU is free; what it has to do since is our work
        code = in_a_child(lambda name=name, mine=mine: run(name, args.out / name, ["--force"] if mine else []))
        ran = True
        failed += code != 0
        print(f"{name}: exit {code} after {time.monotonic() - start:.1f} s", flush=True)
        if code == 0:
            print("\n".join((args.out / name / "said.txt").read_text().splitlines()[:22]), flush=True)
        else:
            print("\n".join((args.out / name / "log.txt").read_text().splitlines()[-8:]), flush=True)
    with tarfile.open(f"{args.out}.tar.gz", "w:gz") as packed:
        packed.add(args.out, args.out.name)
    print(f"{time.monotonic() - begin:.1f} s in all; {args.out}.tar.gz")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
