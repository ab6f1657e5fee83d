"""What an engine can run at all: a question beyond it is refused, not answered as if it could."""

from __future__ import annotations

from typing import NamedTuple


class Serves(NamedTuple):
    architectures: tuple[str, ...] = ()  # () for all that CHIP knows
    dtypes: tuple[str, ...] = ()  # () for all
    gpus: int = 0  # at most; 0 for any number
    without: tuple[str, ...] = ()  # architectures that it cannot run, ...
    why: str = ""  # ... for this reason

    def refusal(self, engine: str, architecture: str, dtype: str, gpus: int) -> str:
        """One line that says what it cannot run, with the remedy; "" where it can."""
        known = self.architectures
        if (known and architecture not in known) or architecture in self.without:
            why = self.why or f"it runs {', '.join(known)}"
            return f"{engine} cannot run {architecture[:60]}: {why}; choose another --engine"
        if self.dtypes and dtype not in self.dtypes:
            return (
                f"{engine} cannot run {dtype} weights: choose --dtype {' or '.join(self.dtypes)}, or another --engine"
            )
        if self.gpus and gpus > self.gpus:
            return f"{engine} runs on {self.gpus} GPU, not on {gpus}: choose another --engine"
        return ""
