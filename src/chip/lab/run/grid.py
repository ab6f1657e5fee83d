"""A grid of points: models x engines x scenarios, written to a file after each, resumed where it stopped."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from chip.files import runs
from chip.files.runs import Run, Runs
from chip.lab.measure.device import Device
from chip.lab.measure.environment import environment
from chip.lab.measure.progress import Progress
from chip.lab.run import ContextLost, Job, Lost, Session, get
from chip.types import ChipError, Scenario

Tell = Callable[[str], None]


@dataclass(frozen=True)
class SessionPlan:
    """One session's share of the grid."""

    engine: str
    job: Job
    scenarios: tuple[Scenario, ...]

    def key(self, scenario: Scenario) -> runs.Key:
        return self.job.identity, self.engine, self.job.variant, scenario

    def title(self, scenario: Scenario | None = None) -> str:
        words = (self.job.model, self.engine, self.job.variant, scenario.name if scenario else "")
        return " ".join(w for w in words if w)


class RunsFile:
    """The file that everything goes into."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path = path
        self.environment: dict[str, Any] = environment(device)
        self.runs: Runs = runs.resume(path, self.environment)

    def missing(self, plan: SessionPlan) -> tuple[deque[Scenario], deque[Scenario]]:
        """Points without a finished run: those never tried, and those that failed. Real text is always read anew."""
        if plan.job.prompt_ids:
            return deque(plan.scenarios), deque()
        status_of = {self.key(r): r.status for r in self.runs.runs}
        status = {s: status_of.get(plan.key(s)) for s in plan.scenarios}
        return deque(s for s in status if status[s] is None), deque(s for s in status if status[s] not in (None, "ok"))

    def key(self, run: Run) -> runs.Key:
        return runs.key_of(run, self.runs.configs)

    def add(self, run: Run, job: Job) -> None:
        run = replace(run, identity=job.identity, settings=without_home(run.settings), reason=without_home(run.reason))
        self.runs = runs.added(self.runs, run, job.config)
        runs.write(self.path, self.runs, self.environment)

    def unseen(self, plan: SessionPlan) -> list[Run]:
        """Finished runs of a plan that were not profiled yet."""
        wanted = {plan.key(s) for s in plan.scenarios}
        return [r for r in self.runs.runs if self.key(r) in wanted and r.status == "ok" and not r.busy]


def measure(plans: Sequence[SessionPlan], ledger: RunsFile, repeats: int, tell: Tell, look: bool = True) -> list[Run]:
    """Every point's run: those the file already had, those measured now, and those that failed with their reason."""
    untried = [(plan, ledger.missing(plan)[0]) for plan in plans]
    failed = [(plan, ledger.missing(plan)[1]) for plan in plans]
    with Progress(sum(len(left) for _, left in (*untried, *failed)), "bench") as progress:
        try:
            for plan, left in (*untried, *failed):  # what failed comes last, because it may end the process's context
                _measure(plan, left, ledger, repeats, progress, tell, look)
            for plan in plans if look else ():
                if plan.job.device != "cpu" and not get(plan.engine).OWN_PROCESS and (unseen := ledger.unseen(plan)):
                    _look_again(plan, unseen, ledger, tell)
        except ContextLost:
            tell("the CUDA context is lost and nothing more can run in this process; the same command goes on")
    order = {plan.key(s): i for i, (plan, s) in enumerate((p, s) for p in plans for s in p.scenarios)}
    return sorted((r for r in ledger.runs.runs if ledger.key(r) in order), key=lambda r: order[ledger.key(r)])


def _measure(
    plan: SessionPlan, left: deque[Scenario], ledger: RunsFile, repeats: int, progress: Progress, tell: Tell, look: bool
) -> None:
    """One session for all points; a new one when it was lost."""
    while left:
        progress.step(plan.title(left[0]))
        try:
            session = get(plan.engine).open(plan.job)
        except ChipError as e:  # it does not start, so none of its points will run
            tell(f"{plan.title()}: {e}")
            for scenario in left:
                ledger.add(_failed(plan, scenario, str(e)), plan.job)
            if isinstance(e, ContextLost):
                raise
            return
        with session:
            while left:
                run, error = _point(plan, session, left.popleft(), repeats)
                ledger.add(run, plan.job)
                if run.reason:
                    tell(f"{plan.title(run.scenario)}: {run.reason}")
                if isinstance(error, ContextLost):
                    raise error
                if isinstance(error, Lost):
                    break
                if left:
                    progress.step(plan.title(left[0]))
            else:
                if look and get(plan.engine).OWN_PROCESS:
                    _look(plan, session, ledger.unseen(plan), ledger, tell)


def _look_again(plan: SessionPlan, unseen: Sequence[Run], ledger: RunsFile, tell: Tell) -> None:
    try:
        session = get(plan.engine).open(plan.job)
    except ChipError as e:
        tell(f"{plan.title()}: not profiled: {e}")
        return
    with session:
        _look(plan, session, unseen, ledger, tell)


def _look(plan: SessionPlan, session: Session, unseen: Sequence[Run], ledger: RunsFile, tell: Tell) -> None:
    for run in unseen:
        try:
            ledger.add(session.look(run), plan.job)
        except ChipError as e:  # its times stand
            tell(f"{plan.title(run.scenario)}: not profiled: {e}")
            if isinstance(e, Lost):
                return


def _point(plan: SessionPlan, session: Session, scenario: Scenario, repeats: int) -> tuple[Run, ChipError | None]:
    """The run, and the error where it failed."""
    try:
        return session.measure(scenario, repeats), None
    except ChipError as e:
        e.__context__ = None  # its frames hold the model, and the next one needs the room
        return _failed(plan, scenario, str(e)), e.with_traceback(None)


def without_home(value: Any) -> Any:
    """The same with `~` for the user's home folder: records are shared, and engines tell where their caches lie."""
    if isinstance(value, str):
        home = str(Path.home())
        return re.sub(rf"{re.escape(home)}(?=/|$)", "~", value) if len(home) > 1 else value
    if isinstance(value, dict):
        return {without_home(k): without_home(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_home(v) for v in value]
    return value


def _failed(plan: SessionPlan, scenario: Scenario, why: str) -> Run:
    job = plan.job
    return Run(job.model, plan.engine, job.variant, scenario, "failed", why, weights=job.weights)
