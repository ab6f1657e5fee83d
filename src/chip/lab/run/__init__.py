"""Engines really run: one file each, found by listing this folder (`hf-eager` lives in hf_eager.py).

Each has NAME, TITLE, `open(job) -> Session` and what else it can do (`EngineRunner`). One session serves every point of
a model's grid, because starting an engine may take a minute. `Session.measure(scenario, repeats)` gives a `Run` with
status ok; what goes wrong at one point is a ChipError in one line, which `chip bench` keeps as a failed Run before it
goes on. `Lost` says that the session is of no more use; the next point then opens a new one. `ContextLost` ends the
grid. Nothing here imports torch at module level.

A process that has once used the profiler launches more slowly ever after: each launch, and each kernel of a graph, by
some tenths of a microsecond. So nothing is profiled before everything is timed: `Session.look(run)` then gives the Run
with what the profiler saw.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from chip.decoders import describe
from chip.dtypes import AUTO
from chip.engines.sampling import GREEDY
from chip.files import identity
from chip.files.runs import Run
from chip.types import ChipError, Scenario

SDPA = ("flash", "cudnn", "efficient", "math")
MAX_SECONDS = 60.0
TIMEOUT_S = 600.0
ENERGY_S = 2.0


class Lost(ChipError):
    """The engine is gone (killed, crashed, hung): this session can measure nothing more."""


class ContextLost(Lost):
    """The device's context in this process is gone: no session can measure anything more before a new process does."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a session is opened for. `folder` has weights and tokenizer; without it weights are random."""

    model: str  # the title that goes into the Run
    config: Mapping[str, Any]  # config.json, as it is written
    folder: Path | None = None
    dtype: str = "bf16"  # bf16, fp16, fp32
    device: str = "cuda:0"  # or cpu
    max_context: int = 2048  # prompt + output of the longest point
    sdpa: str = ""  # one of SDPA; "" leaves the choice to torch
    prompt_ids: tuple[int, ...] = ()  # real text, tokenised; empty: random tokens
    python: str = ""  # interpreter of the engine's own environment; "" is this one
    settings: Mapping[str, str] = field(default_factory=dict)  # --engine-setting key=value, as given
    max_seconds: float = MAX_SECONDS  # cap on the repeats of one point; at least two are made
    timeout_s: float = TIMEOUT_S  # for start-up, and for one point
    energy_s: float = ENERGY_S  # work for each energy figure; 0: none
    trust_remote_code: bool = False
    sampling: str = GREEDY  # how a server's requests ask for tokens to be chosen
    traces: Path | None = None  # folder for a trace of each phase of each point, where the engine gives one

    @property
    def variant(self) -> str:
        """What else was chosen, for the Run; "" for the engine's defaults."""
        chosen = {"sdpa": self.sdpa} if self.sdpa else {}
        chosen |= {"sampling": self.sampling} if self.sampling != GREEDY else {}
        return ",".join(f"{k}={v}" for k, v in sorted({**chosen, **self.settings}.items()))

    @property
    def formats(self) -> tuple[str, str]:
        """HF's modules drop a config's quantisation where weights are random, and run it from files."""
        quantised = self.config.get("quantization_config") is not None and self.folder is not None
        return describe(self.config, self.model, self.model).dtype if quantised else self.dtype, AUTO

    @property
    def identity(self) -> str:
        return identity.of_model(self.config, self.folder)

    @property
    def weights(self) -> str:
        return "files" if self.folder else "random"


class Session(Protocol):
    """An engine with its model loaded. Used as a context manager; `close` frees the device."""

    def measure(self, scenario: Scenario, repeats: int) -> Run: ...
    def look(self, run: Run) -> Run: ...
    def close(self) -> None: ...
    def __enter__(self) -> Session: ...
    def __exit__(self, *_: object) -> None: ...


class EngineRunner(Protocol):
    """An engine that runs here. What follows `open` not every engine has."""

    NAME: str
    TITLE: str
    OWN_PROCESS: bool  # profiling slows nothing but its session, which traces its steps itself

    def open(self, job: Job) -> Session: ...
    def traffic(self, job: Job, server: bool) -> Any:
        """A session that serves live traffic; `server`: through the engine's HTTP server."""

    def recordable(self, job: Job, phase: str, batch: int, prompt: int, no_cache: bool) -> Any:
        """A context with one step that can be repeated while it is recorded (`recording.Recordable`)."""

    def formats(self, job: Job) -> tuple[str, str]:
        """The `dtype` and `kv_dtype` that a prediction of a run is asked for; `Job.formats` where it has none."""


@lru_cache(maxsize=1)
def names() -> tuple[str, ...]:
    """The engines of this folder: whichever file has a NAME."""
    here = Path(__file__).parent
    texts = (path.read_text(encoding="utf-8") for path in (*here.glob("*.py"), *here.glob("*/__init__.py")))
    return tuple(sorted(m[1] for text in texts if (m := re.search(r'^NAME = "(.+)"', text, re.MULTILINE))))


def check(name: str) -> None:
    if name not in names():
        near = get_close_matches(str(name)[:80], names(), 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ChipError(f"no engine {str(name)[:80]!r} to run; {hint}known: {', '.join(names())}")


def able(part: str) -> list[str]:
    """The engines that have this part of `EngineRunner`."""
    return [name for name in names() if hasattr(get(name), part)]


@cache
def get(name: str) -> EngineRunner:
    check(name)
    return cast(EngineRunner, import_module(f"chip.lab.run.{name.replace('-', '_')}"))
