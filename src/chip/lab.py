"""The whole chain on one machine: which commands in which order, what is left out and why, and where a stopped run was.

Each step is a command of `chip` in a process of its own, so that one cannot take memory or clocks from the next. A
journal in the folder says which are done; a step that was interrupted resumes by its own means.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from chip import artifact, children, codec, identity, output
from chip.models import library
from chip.types import ChipError

SCHEMA = "chip.lab/1"
JOURNAL = "lab.json"
NAMES = ("calibrate", "profile", "bench", "kernels", "replay", "validate", "report")
GRID = {"cuda": ("1,8,32", "128,1024", "128"), "cpu": ("1", "16", "4")}  # batch, prompt, output of bench
INTERRUPTED = 130
ABSENT = "which is not there"


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
    of: str = ""  # identities of the models that are files: other content, another step

    @property
    def command(self) -> str:
        return " ".join(("chip", *self.words))

    @property
    def key(self) -> str:
        """What the journal knows it by."""
        return f"{self.command} # {self.of}" if self.of else self.command

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


def plan(w: Wanted, commands: Collection[str]) -> list[LabStep]:
    """All steps; those that this machine or this version of chip cannot do say why."""
    profile, runs = w.folder / "profile.json", w.folder / "runs.json"
    validation, site = w.folder / "validation.json", w.folder / "site"
    on = ("--device", w.device)
    engines = w.engines or _engines(w.kind)
    batch, prompt, output = GRID[w.kind]
    steps = [_step(w, "calibrate", *on, "--full" if w.full else "--quick", "-o", profile, makes=(profile,))]
    operators = w.folder / "operators.jsonl"
    common = (*on, "--profile", profile, "-o", operators)
    if w.full:
        suites = ("--suite", "llm,classic,gemm")
        steps.append(_step(w, "profile", *suites, *common, needs=(profile,), makes=(operators,)))
    for model in w.models:
        size = ("--prompt", prompt.split(",")[-1])
        quick = () if w.full else ("--quick",)
        words = ("--model", model, *size, *common, *quick)
        steps.append(_step(w, "profile", *words, needs=(profile,), makes=(operators,), of=_identity(model)))
    grid = ("--batch", batch, "--prompt", prompt, "--output", output)
    words = (*w.models, "--engine", ",".join(engines), *on, *grid, "-o", runs)
    steps.append(_step(w, "bench", *words, makes=(runs,), of=" ".join(filter(None, map(_identity, w.models)))))
    quick = () if w.full else ("--quick",)
    words = ("bench", *on, "--profile", profile, "-o", w.folder / "kernels", *quick)
    kernels = _step(w, "kernels", *words, needs=(profile,), makes=(w.folder / "kernels",))
    steps.append(kernels if w.kind == "cuda" else LabStep("kernels", kernels.words, left_out="needs an NVIDIA GPU"))
    for model in w.models:
        engine = "hf-graph" if w.kind == "cuda" else "hf-eager"
        of = _identity(model)
        where = w.folder / "replay" / (f"{Path(model).name}-{of[:8]}" if of else model)
        step = ("--engine", engine, "--batch", "1", "--prompt", prompt.split(",")[0])
        words = (model, *step, *on, "--output-dir", where)
        steps.append(_step(w, "replay", *words, makes=(where / "replay.json",), of=of))
    words = (runs, "--gpu", profile, "-o", validation)
    steps.append(_step(w, "validate", *words, needs=(profile, runs), makes=(validation,)))
    steps.append(_step(w, "report", w.folder, "-o", site, makes=(site / "index.html",)))
    return [s if s.words[0] in commands else _absent(s) for s in steps]


def _step(
    w: Wanted, name: str, *words: str | Path, needs: tuple[Path, ...] = (), makes: tuple[Path, ...] = (), of: str = ""
) -> LabStep:
    return LabStep(name, (name, *map(str, words), *w.more.get(name, ())), needs, makes=makes, of=of)


def _identity(model: str) -> str:
    """Of a model that is a file, which may change; a bundled one stays what it is and has ""."""
    if model.lower() in library.names():
        return ""
    config = artifact.read_json(library.locate(model)[0])
    if not isinstance(config, dict):
        raise ChipError(f"{model}: a model config is a JSON object, got {type(config).__name__}")
    return identity.of_config(config)


def _absent(step: LabStep) -> LabStep:
    return LabStep(step.name, step.words, left_out=f"this version of chip has no `chip {step.words[0]}`")


def _engines(kind: str) -> tuple[str, ...]:
    if kind == "cpu":
        return ("hf-eager",)
    return ("hf-eager", "hf-graph", "vllm") if find_spec("vllm") else ("hf-eager", "hf-graph")


def run(steps: Sequence[LabStep], folder: Path, restart: bool, say: Callable[[str], None]) -> list[Done]:
    """Do what is not done yet, in order, and again what lost its product or what it needs. A failed step costs those
    that need its files, no more."""
    journal = folder / JOURNAL
    held = {} if restart else _read(journal)
    gone = {step.key: step.gone for step in steps if step.key in held}  # before any step makes a product anew
    found: list[Done] = []
    renewed: set[Path] = set()
    for number, step in enumerate(steps, 1):
        title = f"[{number}/{len(steps)}] {step.command}"
        missing = [path.name for path in step.needs if not path.exists()]
        why = _again(step, gone, renewed)
        if step.left_out or missing:
            found.append(Done(step, "left out", why=step.left_out or f"needs {' and '.join(missing)}, {ABSENT}"))
        elif step.key in held and not why:
            found.append(Done(step, "done before", held[step.key]))
        else:
            say(f"{title}{f': again, because {why}' if step.key in held else ''}")
            found.append(_do(step, folder / "logs" / f"{number:02}-{step.name}.txt"))
            renewed |= set(step.makes)
            if found[-1].result == "done":
                held[step.key] = found[-1].seconds
                artifact.write(journal, artifact.new(SCHEMA, {"done": held}, {}))
            continue
        say(f"{title}: {found[-1].result}{f' ({found[-1].why})' if found[-1].why else ''}")
    return found


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
    here = str(Path(__file__).parents[1])  # this very chip, installed or not
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))}
    with open(log, "a", encoding="utf-8") as out:
        words = [sys.executable, "-m", "chip", *step.words]
        code = children.run(words, stdout=out, environment=environment)
    seconds = time.monotonic() - start
    if code in (INTERRUPTED, -2):
        raise KeyboardInterrupt
    if code == 0:
        return Done(step, "done", seconds)
    why = f"some of it failed, see {log}" if code == 1 else f"exit code {code}"
    return Done(step, "failed", seconds, why)
