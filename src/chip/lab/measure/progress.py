"""How far a long measurement is: a bar where there is a terminal and tqdm, else a line a step, always on stderr."""

from __future__ import annotations

import sys
import time
from typing import Any


class Progress:
    """`with Progress(60, "profile") as p: p.step("linear 1x4096x4096")` before each of the 60 steps."""

    def __init__(self, total: int, title: str) -> None:
        self.total, self.title = total, title
        self.done = 0
        self.began = time.monotonic()
        self.bar: Any = None
        if sys.stderr.isatty():
            try:
                from tqdm import tqdm
            except ImportError:
                return
            self.bar = tqdm(total=total, desc=title, file=sys.stderr, leave=False, dynamic_ncols=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def step(self, what: str) -> None:
        """Say what comes next."""
        if self.bar is not None:
            if self.done:
                self.bar.update(1)
            self.bar.set_postfix_str(what[:60])
        else:
            print(f"{self.title} {self.done + 1}/{self.total}{self._left()}: {what}", file=sys.stderr, flush=True)
        self.done += 1

    def _left(self) -> str:
        if not self.done:
            return ""
        spent = time.monotonic() - self.began
        return f", about {max(1, round(spent / self.done * (self.total - self.done)))} s left"
