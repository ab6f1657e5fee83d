"""Run a program and say how long it took and how much memory it needed."""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    seconds: float  # wall time, from before the start to after the exit
    cpu_seconds: float
    peak_bytes: int  # largest resident set; never below that of the program which started it
    output: str


class Failed(Exception):
    """The program exited with an error; the text is the end of what it said."""


# Set in some shells and build machines, not in a user's: without bytecode every start compiles the whole package.
NOT_A_USERS = ("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")


def run(command, stdin=None, stdout=None, core=None):
    """Run to the end. `stdout` is a file to write to instead of keeping the output; `core` pins the program to it."""
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    with tempfile.TemporaryFile() as kept, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdin=stdin or subprocess.DEVNULL,
            stdout=stdout or kept,
            stderr=errors,
            preexec_fn=pin,
            env={k: v for k, v in os.environ.items() if k not in NOT_A_USERS},
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            name = " ".join(map(str, command[:4]))
            raise Failed(f"{name}: exit code {process.returncode}: {_text(errors)[-400:].strip()}")
        peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return Run(seconds, usage.ru_utime + usage.ru_stime, peak, _text(kept))


def last_core():
    """A core this process may use, or None where the system cannot pin."""
    return max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _text(file):
    file.seek(0)
    return file.read().decode(errors="replace")
