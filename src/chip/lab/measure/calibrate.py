"""Run every probe, keep a journal, make the two profiles of it: the device's and the host's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from chip.files import artifact, codec, measurements
from chip.hardware import gpus, points
from chip.hardware.hosts import host_path
from chip.lab.measure import disturbance, fit
from chip.lab.measure.bench import Bench, ProbeCase, Skip
from chip.lab.measure.budget import Budget
from chip.lab.measure.device import Device, cpu_title, reason_of
from chip.lab.measure.disturbance import SPREAD_OVER
from chip.lab.measure.energy import EnergyProbe, probe_for
from chip.lab.measure.environment import environment
from chip.lab.measure.journal import SCHEMA, Header, Journal, JournalEntry, Outcome, journal_path, merge
from chip.lab.measure.limits import AboveLimit
from chip.lab.measure.probes import plan
from chip.types import DISTURBED, Ceiling, ChipError, HardwareProfile, HardwareSpec, HostProfile, Measurement
from chip.units import si


@dataclass(frozen=True)
class CaseDone:
    """What is said after each case."""

    number: int
    count: int
    case: str
    outcome: Outcome
    seconds: float
    left_s: float
    resumed: bool = False


SETTLED_OVER = 1.2  # times the rate of a rested device: load makes none faster, and a quiet host's varied by up to 0.16
AIM = 0.85  # of the budget: slow down no later than when the plan would not fit in that
LEAST_TIME_SCALE = 0.2
MOST_RETRIES = 3
LEAST_SIZES = 6  # of a kernel
NO_ROOM = ("out of memory", "can't allocate memory", "not enough memory")  # in the words of allocators
Tell = Callable[[CaseDone], None]


@dataclass(frozen=True)
class Calibration:
    profile: HardwareProfile
    host: HostProfile
    spec: HardwareSpec | None
    seconds: float
    operators: Sequence[Measurement] = ()


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", title.lower())).strip("-") or "device"


def datasheet(device: Device) -> HardwareSpec | None:
    """The bundled datasheet this device is compared with, by the name its driver gives it."""
    name = gpus.match_device(device.title) if device.kind == "cuda" else ""
    return gpus.spec(name) if name else None


def calibrate(
    device: Device,
    budget: Budget,
    journal_path: Path,
    tell: Tell = lambda progress: None,
    restart: bool = False,
    only: tuple[str, ...] = (),
    energy: EnergyProbe | None = None,
    idle: Callable[[], bool] | None = None,
) -> Calibration:
    """Measure what the journal does not hold yet. The journal stays until `save` has written the profile. `idle`: waits
    for an idle machine and says whether there is one; then what was disturbed is measured again."""
    header = Header(SCHEMA, device.title, budget.mode, str(torch.__version__))
    journal = Journal(journal_path, header, restart)
    spec = datasheet(device)
    bench = Bench(device, budget, energy or probe_for(device), spec)
    with torch.inference_mode():
        outcomes = _run(bench, journal, tell, only)
        for _ in range(MOST_RETRIES):
            if not (hit := [key for key, entry in journal.done.items() if entry.flags]) or not idle or not idle():
                break
            journal.forget(hit)
            outcomes = _run(bench, journal, tell, only)
    outcome = merge(outcomes)
    spent = sum(e.seconds for e in journal.done.values())
    flags = (*_disturbed(list(journal.done.values())), *_doubts(outcome.ceilings))
    records = [m for each in outcome.measured.values() for m in each]
    return Calibration(
        replace(_operators(_profile(device, spec, outcome), records), flags=flags),
        HostProfile(slug(cpu_title()), cpu_title(), outcome.terms),
        spec,
        spent,
        records,
    )


def _disturbed(done: Sequence[JournalEntry]) -> tuple[str, ...]:
    """What disturbed the cases, as it was in the longest of them."""
    hit = [e for e in done if e.flags]
    if not hit:
        return ()
    hit_s, all_s = (sum(e.seconds for e in entries) for entries in (hit, done))
    return (f"{max(hit, key=lambda e: e.seconds).flags[0]} ({hit_s:.0f} of {all_s:.0f} s)",)


def _doubts(ceilings: Mapping[str, Ceiling]) -> Iterator[str]:
    """What numbers that do not go together tell of the machine that they were measured on."""
    for name, boost in ceilings.items():
        settled = ceilings.get(f"{name}_settled")
        if settled and settled.value > SETTLED_OVER * boost.value:
            rates = f"{si(settled.value, settled.unit)} under load, {si(boost.value, boost.unit)} in short bursts"
            yield f"{DISTURBED}{name} is faster settled than rested: {rates}"
    if wide := [name for name, c in ceilings.items() if c.samples and c.high - c.low > SPREAD_OVER * c.value]:
        yield f"{DISTURBED}samples of {', '.join(wide)} lie too far apart to tell their median within {SPREAD_OVER:.0%}"


def _run(bench: Bench, journal: Journal, tell: Tell, only: tuple[str, ...]) -> list[Outcome]:
    cases = plan(bench, only)
    spent = sum(e.seconds for e in journal.done.values())
    outcomes: list[Outcome] = []
    for number, (key, case) in enumerate(cases, 1):
        left_s = sum(c.seconds for k, c in cases[number:] if k not in journal.done)
        room_s = AIM * bench.budget.total_s - spent
        bench.time_scale = min(1.0, max(LEAST_TIME_SCALE, room_s / (case.seconds + left_s + 1e-9)))
        if key in journal.done:
            entry = journal.done[key]
            tell(CaseDone(number, len(cases), key, entry.outcome, entry.seconds, left_s, resumed=True))
        else:
            start, before, flags = time.monotonic(), disturbance.read(), tuple[str, ...]()
            if spent > bench.budget.total_s:
                outcome = _missing(case, f"left out: the {bench.budget.total_s:g} s of --{bench.budget.mode} are spent")
            else:
                outcome = _measure(bench, case)
                if bench.device.kind == "cpu":
                    flags = disturbance.flags(before, disturbance.read())
            entry = JournalEntry(key, time.monotonic() - start, outcome, flags)
            journal.add(entry)
            spent += entry.seconds
            tell(CaseDone(number, len(cases), key, outcome, entry.seconds, left_s))
        outcomes.append(entry.outcome)
        bench.found = merge(outcomes)
        if number < len(cases) and cases[number][0].split("/")[0] != key.split("/")[0]:
            bench.release()
    return outcomes


def _missing(case: ProbeCase, why: str) -> Outcome:
    return Outcome(missing=dict.fromkeys(case.covers, why))


def _measure(bench: Bench, case: ProbeCase) -> Outcome:
    """One case; whatever hinders it becomes its reason, and the next one goes on."""
    try:
        return case.measure(bench)
    except Skip as e:
        return _missing(case, str(e))
    except AboveLimit as e:
        return _missing(case, f"error: {e}")
    except ChipError as e:
        return _missing(case, f"failed: {e}")
    except (MemoryError, torch.OutOfMemoryError):
        bench.release()
        return _missing(case, "skipped: out of memory")
    except (RuntimeError, TypeError, ValueError, AttributeError) as e:
        reason = reason_of(e)
        bench.release()
        bench.device.require_alive()
        full = any(words in reason.lower() for words in NO_ROOM)
        return _missing(case, "skipped: out of memory" if full else f"failed: {reason}")


def _profile(device: Device, spec: HardwareSpec | None, outcome: Outcome) -> HardwareProfile:
    missing = dict(outcome.missing)
    if spec is None and device.kind == "cuda":
        missing["datasheet"] = f"none is bundled for {device.title}"
    if device.notes:
        missing["device"] = "; ".join(device.notes)
    return HardwareProfile(
        name=spec.name if spec else slug(device.title),
        device=device.title,
        kind=device.kind,
        spec=spec.name if spec else "",
        units=device.sm_count,
        memory_bytes=device.memory_bytes,
        l2_bytes=device.l2_bytes,
        ceilings=outcome.ceilings,
        curves=outcome.curves,
        factors=outcome.factors,
        power=outcome.power,
        missing=missing,
    )


def _operators(profile: HardwareProfile, records: Sequence[Measurement]) -> HardwareProfile:
    """The profile with what its operators tell: a base time of each kernel, and the sizes that it was fitted to."""
    if not records:
        return profile
    try:
        records = [replace(m, flags=()) for m in records]  # what disturbed them, the profile says of all its numbers
        groups, left_out = fit.fit(records, profile, LEAST_SIZES)
        settling = fit.settling(records, profile)
    except ChipError as e:
        return replace(profile, missing={**profile.missing, "operators": f"failed: {e}"})
    about = {"device": profile.device, **({"settling": settling.write()} if settling else {})}
    tables = {
        kind: tuple(points.render(about, [g for g in groups if g.kind == kind]).splitlines())
        for kind in dict.fromkeys(g.kind for g in groups)
    }
    return replace(profile, operators=tables, missing={**profile.missing, **left_out})


def operators_path(path: Path) -> Path:
    """Where the samples of the operators lie that a profile's tables were made of."""
    return path.with_suffix(".operators.jsonl")


def save(path: Path, device: Device, calibration: Calibration, budget: Budget) -> None:
    """Both artifacts, whole or not at all, and the samples of operators beside them; then the journal has served."""
    about = environment(device) | {"mode": budget.mode, "seconds": round(calibration.seconds, 1)}
    samples = operators_path(path)
    samples.unlink(missing_ok=True)
    if calibration.operators:
        measurements.start(samples, device.title, about)
        for m in calibration.operators:
            measurements.add(samples, m)
    host = artifact.new(HostProfile.SCHEMA, codec.to_json(calibration.host), about)
    artifact.write(host_path(path), host)
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(calibration.profile), about))
    journal_path(path).unlink(missing_ok=True)
