"""A process that has torch and transformers already: a fork of this one. To import them takes 2 to 6 s."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

POLL_S = 0.01


def start(
    call: Callable[[], object], folder: Path, stdin: str = "", environment: Mapping[str, str] | None = None
) -> int:
    """Call it in a fork, whose id is returned. Its input, output and errors are files of `folder`."""
    (folder / "stdin").write_text(stdin)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number, name, mode in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_WRONLY), (2, "stderr", os.O_WRONLY)):
            os.dup2(os.open(folder / name, mode | os.O_CREAT), number)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        os.environ.update(environment or {})
        code = int(call() or 0)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(
    call: Callable[[], object], stdin: str = "", environment: Mapping[str, str] | None = None, timeout_s: float = 300.0
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` with `capture_output`."""
    with tempfile.TemporaryDirectory() as name:
        folder, end = Path(name), time.monotonic() + timeout_s
        pid = start(call, folder, stdin, environment)
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        code = os.waitstatus_to_exitcode(ended[1])
        return subprocess.CompletedProcess([], code, *((folder / f).read_text() for f in ("stdout", "stderr")))
