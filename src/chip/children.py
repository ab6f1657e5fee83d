"""A command in a process of its own that ends when its parent is told to end: no child is left running behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import IO, Any

GRACE_S = 10.0  # for a child to end by itself before it is killed
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


def run(words: Sequence[str], stdout: IO[Any], environment: Mapping[str, str]) -> int:
    """Its exit code. SIGTERM and SIGHUP are handed on to the child, and then end this process as an interrupt does."""
    child = subprocess.Popen(list(words), stdout=stdout, env=dict(environment), preexec_fn=_die_with_parent())
    told: list[int] = []

    def hand_on(number: int, _: FrameType | None) -> None:
        told.append(number)
        child.send_signal(number)

    before = {number: _handle(number, hand_on) for number in ENDING}
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            _handle(number, handler)
        _end(child)
    if told:
        raise KeyboardInterrupt
    return code


def _handle(number: int, handler: Any) -> Any:
    try:
        return signal.signal(number, handler)
    except ValueError:  # not the main thread: the child is then ended by `finally` alone
        return signal.SIG_DFL


def _end(child: subprocess.Popen[Any]) -> None:
    if child.poll() is not None:
        return
    child.terminate()
    try:
        child.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _die_with_parent() -> Any:
    """On Linux a child gets SIGTERM when its parent is gone, even by SIGKILL."""
    if sys.platform != "linux":
        return None
    import ctypes

    libc = ctypes.CDLL(None)

    def ask() -> None:
        libc.prctl(1, int(signal.SIGTERM))  # PR_SET_PDEATHSIG

    return ask
