"""The whole chain on one machine: which commands in which order, what is left out and why, and where a stopped run was.

Each step is a command of `chip` in a process of its own, so that one cannot take memory or clocks from the next. A
journal in the folder says which are done; a step that was interrupted resumes by its own means.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import IO, Any

from chip import engines as runtimes
from chip.decoders import library
from chip.files import artifact, codec, identity, output
from chip.types import ChipError

SCHEMA = "chip.lab/1"
JOURNAL = "lab.json"
NAMES = ("calibrate", "profile", "bench", "kernels", "replay", "validate", "report")
GRID = {"cuda": ("1,8,32", "128,1024", "128"), "cpu": ("1", "16", "4")}  # batch, prompt, output of bench
REPLAYED = {"cuda": "hf-graph", "cpu": "hf-eager"}  # the engine whose step is replayed
INTERRUPTED = 130
ABSENT = "which is not there"
GRACE_S = 10.0  # for a child to end by itself before it is killed
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to do it with."""

    folder: Path
    device: str  # cuda:N or cpu
    models: tuple[str, ...]
    engines: tuple[str, ...] = ()  # () for those that this machine has
    full: bool = False
    more: Mapping[str, Sequence[str]] = field(default_factory=dict)  # step -> words to add to its command

    @property
    def kind(self) -> str:
        return "cpu" if self.device == "cpu" else "cuda"


@dataclass(frozen=True, slots=True)
class LabStep:
    name: str
    words: tuple[str, ...]  # of the command line, after `chip`
    needs: tuple[Path, ...] = ()  # files that earlier steps make
    left_out: str = ""  # why it is not done here
    makes: tuple[Path, ...] = ()  # its products: gone, it is done again
    content: str = ""  # identities of the models that are files: other content, another step

    @property
    def command(self) -> str:
        return " ".join(("chip", *self.words))

    @property
    def key(self) -> str:
        """What the journal knows it by."""
        return f"{self.command} # {self.content}" if self.content else self.command

    @property
    def gone(self) -> list[str]:
        return [path.name for path in self.makes if not path.exists()]


@dataclass(frozen=True, slots=True)
class Done:
    """A step with what became of it: done, done before, failed, or left out."""

    step: LabStep
    result: str
    seconds: float = 0.0
    why: str = ""


def plan(w: Wanted) -> list[LabStep]:
    """All steps; those that this machine cannot do say why."""
    names = ("profile.json", "operators.jsonl", "runs.json", "kernels", "validation.json", "site")
    profile, operators, runs, kernels, validation, site = (w.folder / name for name in names)
    on, quick = ("--device", w.device), () if w.full else ("--quick",)
    batch, prompt, output = GRID[w.kind]
    prompts, identities = prompt.split(","), {model: _identity(model) for model in w.models}
    steps = [_step(w, "calibrate", *on, "--full" if w.full else "--quick", "-o", profile, makes=(profile,))]
    common, products = (*on, "--profile", profile, "-o", operators), (operators,)
    if w.full:
        steps.append(_step(w, "profile", "--suite", "llm,classic,gemm", *common, needs=(profile,), makes=products))
    for model, content in identities.items():
        words = ("--model", model, "--prompt", prompts[-1], *common, *quick)
        steps.append(_step(w, "profile", *words, needs=(profile,), makes=products, content=content))
    words = ("--engine", ",".join(w.engines or _engines(w.kind)), *on, "--batch", batch, "--prompt", prompt)
    all_content = " ".join(filter(None, identities.values()))
    steps.append(
        _step(w, "bench", *w.models, *words, "--output", output, "-o", runs, makes=(runs,), content=all_content)
    )
    words = ("bench", *on, "--profile", str(profile), "-o", str(kernels), *quick)
    step = _step(w, "kernels", *words, needs=(profile,), makes=(kernels,))
    steps.append(step if w.kind == "cuda" else LabStep("kernels", step.words, left_out="needs an NVIDIA GPU"))
    for model, content in identities.items():
        where = w.folder / "replay" / (f"{Path(model).name}-{content[:8]}" if content else model)
        words = (model, "--engine", REPLAYED[w.kind], "--batch", "1", "--prompt", prompts[0], *on)
        words += ("--output-dir", str(where))
        steps.append(_step(w, "replay", *words, makes=(where / "replay.json",), content=content))
    needs = (profile, runs)
    steps.append(_step(w, "validate", runs, "--gpu", profile, "-o", validation, needs=needs, makes=(validation,)))
    return [*steps, _step(w, "report", w.folder, "-o", site, makes=(site / "index.html",))]


def _step(
    w: Wanted,
    name: str,
    *words: str | Path,
    needs: tuple[Path, ...] = (),
    makes: tuple[Path, ...] = (),
    content: str = "",
) -> LabStep:
    return LabStep(name, (name, *map(str, words), *w.more.get(name, ())), needs, makes=makes, content=content)


def _identity(model: str) -> str:
    """What tells a model that is a file, which may change, from others; "" for a bundled one, which does not."""
    if model.lower() in library.names():
        return ""
    config = artifact.read_json(library.locate(model)[0])
    if not isinstance(config, dict):
        raise ChipError(f"{model}: a model config is a JSON object, got {type(config).__name__}")
    return identity.of_config(config)


def _engines(kind: str) -> tuple[str, ...]:
    known = [e for e in map(runtimes.get, runtimes.names()) if kind in e.LAB]
    return tuple(e.NAME for e in known if not e.PACKAGE or find_spec(e.PACKAGE))


def run(steps: Sequence[LabStep], folder: Path, restart: bool, say: Callable[[str], None]) -> list[Done]:
    """Do what is not done yet, in order, and again what lost its product or what it needs. A failed step costs those
    that need its files, no more."""
    journal = folder / JOURNAL
    seconds_of = {} if restart else _read(journal)
    gone = {step.key: step.gone for step in steps if step.key in seconds_of}  # before any step makes a product anew
    results: list[Done] = []
    renewed: set[Path] = set()
    for number, step in enumerate(steps, 1):
        title = f"[{number}/{len(steps)}] {step.command}"
        missing = [path.name for path in step.needs if not path.exists()]
        why = _again(step, gone, renewed)
        if step.left_out or missing:
            results.append(Done(step, "left out", why=step.left_out or f"needs {' and '.join(missing)}, {ABSENT}"))
        elif step.key in seconds_of and not why:
            results.append(Done(step, "done before", seconds_of[step.key]))
        else:
            say(f"{title}{f': again, because {why}' if step.key in seconds_of else ''}")
            results.append(_do(step, folder / "logs" / f"{number:02}-{step.name}.txt"))
            renewed |= set(step.makes)
            if results[-1].result == "done":
                seconds_of[step.key] = results[-1].seconds
                artifact.write(journal, artifact.new(SCHEMA, {"done": seconds_of}, {}))
            continue
        say(f"{title}: {results[-1].result}{f' ({results[-1].why})' if results[-1].why else ''}")
    return results


def _again(step: LabStep, gone: Mapping[str, Sequence[str]], renewed: Collection[Path]) -> str:
    """Why a step that was done before is done again; "" where it is not."""
    if step.name == "report":
        return "it is of all there is"
    if lost := gone.get(step.key):
        return f"{' and '.join(lost)} is gone"
    anew = [path.name for path in step.needs if path in renewed]
    return f"{' and '.join(anew)} is new" if anew else ""


def _read(journal: Path) -> dict[str, float]:
    """Command -> seconds, of the steps that are done."""
    if not journal.exists():
        return {}
    data = artifact.read(journal, SCHEMA).data
    if not isinstance(data, dict):
        raise ChipError(f"{journal}: data must be an object; --restart forgets it")
    return codec.from_json(dict[str, float], data.get("done"), f"{journal}: data.done")


def _do(step: LabStep, log: Path) -> Done:
    """stdout goes to the log, stderr to whoever watches."""
    output.write(log, f"$ {step.command}\n", output.LOG)  # what cannot be written is said before the step, not after
    start = time.monotonic()
    here = str(Path(__file__).parents[2])  # this very chip, installed or not
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
    with open(log, "a", encoding="utf-8") as out:
        words = [sys.executable, "-m", "chip", *step.words]
        code = run_child(words, out, environment)
    seconds = time.monotonic() - start
    if code in (INTERRUPTED, -2):
        raise KeyboardInterrupt
    if code == 0:
        return Done(step, "done", seconds)
    why = f"some of it failed, see {log}" if code == 1 else f"exit code {code}"
    return Done(step, "failed", seconds, why)


# -- a command that ends when its parent is told to end: no child is left running behind ------------------------------
def run_child(words: Sequence[str], stdout: IO[Any], environment: Mapping[str, str]) -> int:
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
