"""Run every probe, keep a journal, make the two profiles of it: the device's and the host's."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from chip import artifact, codec, hardware
from chip.hosts import host_path
from chip.measure import disturbance
from chip.measure.bench import Bench, ProbeCase, Skip
from chip.measure.budget import Budget
from chip.measure.device import Device, cpu_title
from chip.measure.disturbance import SPREAD_OVER
from chip.measure.energy import EnergyProbe, probe_for
from chip.measure.environment import environment
from chip.measure.journal import SCHEMA, Header, Journal, JournalEntry, Outcome, journal_path, merge
from chip.measure.limits import AboveLimit
from chip.measure.probes import plan
from chip.records import replace
from chip.types import DISTURBED, Ceiling, ChipError, HardwareProfile, HardwareSpec, HostProfile
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
Tell = Callable[[CaseDone], None]


@dataclass(frozen=True)
class Calibration:
    profile: HardwareProfile
    host: HostProfile
    spec: HardwareSpec | None
    seconds: float


def slug(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"\((r|tm)\)", "", title.lower())).strip("-") or "device"


def datasheet(device: Device) -> HardwareSpec | None:
    """The bundled datasheet this device is compared with, by the name its driver gives it."""
    name = hardware.match_device(device.title) if device.kind == "cuda" else ""
    return hardware.spec(name) if name else None


def calibrate(
    device: Device,
    budget: Budget,
    journal_path: Path,
    tell: Tell = lambda progress: None,
    restart: bool = False,
    only: tuple[str, ...] = (),
    energy: EnergyProbe | None = None,
) -> Calibration:
    """Measure what the journal does not hold yet. The journal stays until `save` has written the profile."""
    header = Header(SCHEMA, device.title, budget.mode, str(torch.__version__))
    journal = Journal(journal_path, header, restart)
    spec = datasheet(device)
    bench = Bench(device, budget, energy or probe_for(device), spec)
    with torch.inference_mode():
        outcomes = _run(bench, journal, tell, only)
    found = merge(outcomes)
    spent = sum(e.seconds for e in journal.done.values())
    flags = (*_disturbed(list(journal.done.values())), *_doubts(found.ceilings))
    return Calibration(
        replace(_profile(device, spec, found), flags=flags),
        HostProfile(slug(cpu_title()), cpu_title(), found.terms),
        spec,
        spent,
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
            found = f"{si(settled.value, settled.unit)} under load, {si(boost.value, boost.unit)} in short bursts"
            yield f"{DISTURBED}{name} is faster settled than rested: {found}"
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
                    flags = disturbance.flags(before, disturbance.read(), ())
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
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AttributeError) as e:
        text = str(e).strip().splitlines()
        reason = text[0][:200] if text else type(e).__name__
        bench.release()
        _require_alive(bench.device, case, reason)
        lowered = reason.lower()
        if "out of memory" in lowered or "can't allocate memory" in lowered or "not enough memory" in lowered:
            return _missing(case, "skipped: out of memory")
        return _missing(case, f"failed: {type(e).__name__}: {reason}")


def _require_alive(device: Device, case: ProbeCase, reason: str) -> None:
    """A GPU that died under a case fails every later one: stop, so that a new process can resume."""
    try:
        device.synchronize()
    except RuntimeError:
        raise ChipError(
            f"{device.name} was lost in {case.name} ({reason}); run the same command again to resume"
        ) from None


def _profile(device: Device, spec: HardwareSpec | None, found: Outcome) -> HardwareProfile:
    missing = dict(found.missing)
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
        ceilings=found.ceilings,
        curves=found.curves,
        factors=found.factors,
        power=found.power,
        missing=missing,
        shares=found.shares,
    )


def save(path: Path, device: Device, found: Calibration, budget: Budget) -> None:
    """Both artifacts, whole or not at all; then the journal has served."""
    about = environment(device) | {"mode": budget.mode, "seconds": round(found.seconds, 1)}
    host = artifact.new(HostProfile.SCHEMA, codec.to_json(found.host), about)
    artifact.write(host_path(path), host)
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(found.profile), about))
    journal_path(path).unlink(missing_ok=True)
