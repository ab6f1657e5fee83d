"""vLLM's worker as a fork of a process that has imported vLLM: the import takes as long as the rest of a start, and
here it is made once for all models.

`chip bench` has CUDA running in its own process, and a fork of such a process cannot use CUDA. So a nursery is forked
off before: it imports vLLM, leaves the device alone and forks a worker for each that is asked for.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from chip.lab.run import vllm_worker
from chip.lab.run.vllm_protocol import VllmWorker
from chip.types import ChipError

MESSAGE = 65536  # bytes, at most
NUMBER = 8  # bytes of a process id or an exit code
PR_SET_PDEATHSIG = 1  # of Linux


class Nursery:
    """Starts to import at once; `ready` waits for it."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = fork(lambda: (self.line.close(), serve(theirs)))
        theirs.close()

    def ready(self) -> dict[str, Any]:
        """vLLM's version, and the seconds its import took."""
        said = self.line.recv(MESSAGE)
        found = json.loads(said) if said else {"error": "the process that imports it died"}
        if "error" in found:
            raise ChipError(f"vLLM: {found['error']}")
        return found

    def start(self, environment: Mapping[str, str], log: IO[bytes]) -> Forked:
        """`environment`: what differs from the nursery's own."""
        stdin, requests = os.pipe()
        answers, stdout = os.pipe()
        status, ending = os.pipe()
        try:
            message = json.dumps(dict(environment)).encode()
            socket.send_fds(self.line, [message], [stdin, stdout, log.fileno(), ending])
        finally:
            for fd in (stdin, stdout, ending):
                os.close(fd)
        return Forked(os.fdopen(requests, "wb"), os.fdopen(answers, "rb"), status)


class Forked:
    """A worker of the nursery: as much of a `Popen` as `Worker` needs."""

    def __init__(self, stdin: IO[bytes], stdout: IO[bytes], status: int) -> None:
        self.stdin, self.stdout, self.status = stdin, stdout, status
        self.code: int | None = None
        if not (told := os.read(status, NUMBER)):
            raise OSError(0, "the process that forks it is gone")
        self.pid = number(told)

    def poll(self) -> int | None:
        if self.code is None and select.select([self.status], [], [], 0)[0]:
            told = os.read(self.status, NUMBER)
            self.code = number(told) if told else -signal.SIGKILL  # with the process that should have told
            os.close(self.status)
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        if self.code is None:
            select.select([self.status], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired("a forked worker", timeout or 0.0)
        return code

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


class ForkedWorker(VllmWorker):
    """A `chip.lab.run.vllm.VllmWorker`. Adds up the seconds of requests by kind, and of the parts of starts."""

    nursery: Nursery
    asked_s: dict[str, float] = {}
    setup_s: dict[str, float] = {}

    def start(self, environment: Mapping[str, str], log: IO[bytes]) -> Forked:
        return self.nursery.start({k: v for k, v in environment.items() if os.environ.get(k) != v}, log)

    def ask(self, do: str, until: float, **request: Any) -> dict[str, Any]:
        began = time.monotonic()
        try:
            answer = super().ask(do, until, **request)
        finally:
            self.asked_s[do] = self.asked_s.get(do, 0.0) + time.monotonic() - began
        for part, seconds in answer.get("setup_s", {}).items():
            self.setup_s[part] = self.setup_s.get(part, 0.0) + seconds
        return answer


def number(told: bytes) -> int:
    return int.from_bytes(told, "little", signed=True)


def fork(work: Callable[[], object]) -> int:
    """The process id of a fork that does its work and ends there, whatever happens."""
    if pid := os.fork():
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


# -- in the nursery ---------------------------------------------------------------------------------------------------
def serve(line: socket.socket) -> None:
    """Import, say so, and fork when asked until nobody can ask any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever asked for a worker ends it
    os.dup2(2, 1)  # what vLLM prints
    line.send(json.dumps(imported()).encode())
    sys.stdout.flush()  # here, or every fork would
    gc.collect()
    gc.freeze()  # every start collects garbage several times and would search all modules; vLLM does this at its end
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for `watch`
    while True:
        message, fds, _, _ = socket.recv_fds(line, MESSAGE, 4)
        if not message:
            return
        fork(lambda: (line.close(), watch(json.loads(message), *fds)))  # noqa: B023
        for fd in fds:
            os.close(fd)


def imported() -> dict[str, Any]:
    began = time.monotonic()
    try:
        vllm_worker.set_environment()
        version = vllm_worker.load().__version__
        if cuda_is_up():
            return {"error": "importing it started CUDA, which forks cannot use then; run `chip bench` instead"}
    except Exception as e:  # what is not installed well fails in many ways
        return {"error": f"cannot be imported ({vllm_worker.one_line(e)}); is it on PYTHONPATH?"}
    return {"version": version, "seconds": time.monotonic() - began}


def cuda_is_up() -> bool:
    """Whether torch has been to CUDA's driver, be it only to count devices: in a fork it tells. Where there is none it
    says so, too, and forks can be had all the same."""
    import torch

    pid = fork(lambda: os._exit(torch.cuda._is_in_bad_fork()))
    has_counted = os.waitpid(pid, 0)[1] != 0
    return torch.cuda.is_initialized() or (has_counted and "libcuda.so" in Path("/proc/self/maps").read_text())


def watch(environment: Mapping[str, str], stdin: int, stdout: int, log: int, ending: int) -> None:
    """Fork the worker, tell its process id, and how it ended."""
    end_with_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = fork(lambda: become_worker(environment, stdin, stdout, log, ending))
    for fd in (stdin, stdout, log):
        os.close(fd)
    tell(ending, pid)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):  # nobody wants to know
        tell(ending, code)


def end_with_parent() -> None:
    """So that no worker keeps the GPU when whoever asked for it is killed: the nursery then ends, and all with it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def tell(ending: int, number: int) -> None:
    os.write(ending, number.to_bytes(NUMBER, "little", signed=True))


def become_worker(environment: Mapping[str, str], stdin: int, stdout: int, log: int, ending: int) -> None:
    end_with_parent()
    os.close(ending)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, standard in ((stdin, 0), (stdout, 1), (log, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.environ.update(environment)
    vllm_worker.main()
