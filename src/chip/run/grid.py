"""A grid of points: models x engines x scenarios, kept in a file after each, gone on with where it was stopped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chip import runs
from chip.measure.device import Device
from chip.measure.environment import environment
from chip.measure.progress import Progress
from chip.run import Job, Lost, Session, get
from chip.runs import Run, Runs
from chip.types import ChipError, Scenario

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """One session's share of the grid."""

    engine: str
    job: Job
    scenarios: tuple[Scenario, ...]

    def key(self, scenario: Scenario) -> runs.Key:
        return self.job.model, self.engine, self.job.variant, scenario

    def title(self, scenario: Scenario | None = None) -> str:
        words = (self.job.model, self.engine, self.job.variant, scenario.name if scenario else "")
        return " ".join(w for w in words if w)


class Ledger:
    """The file that everything goes into."""

    def __init__(self, path: Path, device: Device) -> None:
        self.path = path
        self.environment: dict[str, Any] = environment(device)
        self.runs: Runs = runs.resume(path, self.environment)

    def missing(self, plan: Plan) -> deque[Scenario]:
        """Points without a finished run: a failed one is tried again, and real text is always read anew."""
        done = {runs.key_of(r) for r in self.runs.runs if r.status == "ok" and r.weights == plan.job.weights}
        return deque(s for s in plan.scenarios if plan.job.prompt_ids or plan.key(s) not in done)

    def add(self, run: Run, job: Job) -> None:
        self.runs = runs.added(self.runs, run, job.config)
        runs.write(self.path, self.runs, self.environment)


def measure(plans: Sequence[Plan], ledger: Ledger, repeats: int, tell: Tell) -> list[Run]:
    """Every point's run: those the file already had, those measured now, and those that failed with their reason."""
    with Progress(sum(len(ledger.missing(p)) for p in plans), "bench") as progress:
        for plan in plans:
            _measure(plan, ledger, repeats, progress, tell)
    order = {plan.key(s): i for i, (plan, s) in enumerate((p, s) for p in plans for s in p.scenarios)}
    return sorted((r for r in ledger.runs.runs if runs.key_of(r) in order), key=lambda r: order[runs.key_of(r)])


def _measure(plan: Plan, ledger: Ledger, repeats: int, progress: Progress, tell: Tell) -> None:
    """One session for all points; a new one when it was lost."""
    left = ledger.missing(plan)
    while left:
        progress.step(plan.title(left[0]))
        try:
            session = get(plan.engine).open(plan.job)
        except ChipError as e:  # it does not start, so none of its points will run
            tell(f"{plan.title()}: {e}")
            for scenario in left:
                ledger.add(_failed(plan, scenario, str(e)), plan.job)
            return
        with session:
            while left:
                run, lost = _point(plan, session, left.popleft(), repeats)
                ledger.add(run, plan.job)
                if run.reason:
                    tell(f"{plan.title(run.scenario)}: {run.reason}")
                if lost:
                    break
                if left:
                    progress.step(plan.title(left[0]))


def _point(plan: Plan, session: Session, scenario: Scenario, repeats: int) -> tuple[Run, bool]:
    """The run, and whether the session was lost over it."""
    try:
        return session.measure(scenario, repeats), False
    except ChipError as e:
        return _failed(plan, scenario, str(e)), isinstance(e, Lost)


def _failed(plan: Plan, scenario: Scenario, why: str) -> Run:
    job = plan.job
    return Run(job.model, plan.engine, job.variant, scenario, "failed", why, weights=job.weights)
