"""A worker in another process: a JSON line there, a JSON line back, each within its time.

Whatever happens to the worker becomes one line: what it was doing, how it ended, the last useful line of its log and
where the log lies. A worker that is gone is `Lost`; one that only refused a request goes on.
"""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Protocol

from chip.lab.run import Lost
from chip.types import ChipError

TELLS = re.compile(r"^\S*(Error|Exception)\b|out of memory|Killed|Segmentation fault|No space left", re.IGNORECASE)
LINE = 300  # characters of a log line that are shown
CLOSE_S = 5.0
INSTALL = "pip install vllm there, or point --python at the interpreter of an environment that has it"


class VllmProcess(Protocol):
    """What of a `Popen` a worker needs; it leads a session of its own."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...


class VllmWorker:
    """Started at once; `ask` it, and `close` it. A subclass may `start` it in another way."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], title: str) -> None:
        self.title = title
        self.command = command
        self.gone = ""  # why it can answer no more
        try:
            handle, name = tempfile.mkstemp(prefix="chip-worker-", suffix=".log")
        except OSError as e:
            raise ChipError(f"{title}: its log cannot be written to {tempfile.gettempdir()} ({e.strerror})") from None
        self.log = Path(name)
        try:
            with os.fdopen(handle, "wb") as log:
                self.process = self.start(environment, log)
        except OSError as e:
            self.log.unlink(missing_ok=True)
            raise ChipError(f"{title} cannot be started with {command[0]} ({e.strerror}); check --python") from None
        self._answers: queue.Queue[bytes | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def start(self, environment: Mapping[str, str], log: IO[bytes]) -> VllmProcess:
        return subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environment),
            start_new_session=True,  # its own helpers end with it, and Ctrl-C reaches it through us
        )

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def ask(self, do: str, until: float, **request: Any) -> dict[str, Any]:
        """The answer to a request, waited for until `until` on the clock of time.monotonic."""
        if self.gone:
            raise Lost(self.gone)
        began = time.monotonic()
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self.process.stdin.flush()
            line = self._answers.get(timeout=max(0.0, until - began))
        except queue.Empty:
            spent = time.monotonic() - began
            raise self._lost(f"gave no answer to {do!r} for {spent:.0f} s and was ended") from None
        except (OSError, ValueError):  # nobody reads any more
            line = None
        if line is None:
            raise self._lost(f"ended during {do!r} ({ending(self._exit_code())})")
        try:
            answer = json.loads(line)
        except ValueError:
            raise self._lost(f"answered {do!r} with something that is not JSON") from None
        if "error" in answer:
            raise self._failed(answer)
        return dict(answer["ok"])

    def _failed(self, answer: Mapping[str, Any]) -> ChipError:
        text, kind = answer["error"], answer["kind"]
        if kind == "memory":
            text = f"out of device memory ({text}); take a smaller batch or model, or free the GPU"
        if not answer["fatal"]:
            return ChipError(f"{self.title}: {text}")
        self.kill()
        self.gone = f"{self.title}: {text}; log: {self.log}"
        if kind == "missing":
            self.gone = f"{self.title} is not installed for {self.command[0]}: {INSTALL}"
            self.log.unlink(missing_ok=True)
        return Lost(self.gone)

    def _lost(self, what: str) -> Lost:
        self.kill()
        line = last_useful_line(self.log)
        self.gone = f"{self.title} {what}{f': {line}' if line else ''}; log: {self.log}"
        return Lost(self.gone)

    def _exit_code(self) -> int | None:
        try:
            return self.process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it and its helpers; the log stays."""
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except OSError:
                self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """The end of its input is its sign to go. A log that nobody was told of goes too."""
        if not self.gone:
            self.gone = f"{self.title} was closed"
            self.log.unlink(missing_ok=True)
        try:
            assert self.process.stdin is not None
            self.process.stdin.close()
            self.process.wait(CLOSE_S)
        except (OSError, subprocess.TimeoutExpired):
            pass
        self.kill()


def ending(code: int | None) -> str:
    if code is None:
        return "its output is closed"
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    hint = ", often the host's memory is full" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def last_useful_line(log: Path) -> str:
    """The last line that tells of an error, else the last one."""
    try:
        with open(log, "rb") as f:
            f.seek(max(0, log.stat().st_size - 65536))
            lines = [line.strip() for line in f.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        return ""
    telling = [line for line in lines if TELLS.search(line)]
    return (telling or lines or [""])[-1][:LINE]
