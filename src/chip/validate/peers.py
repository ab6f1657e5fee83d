"""Other predictors' answers, recorded with their versions (benchmarks/peers/record.py), compared with the same runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from chip.files import artifact, codec, runs
from chip.types import ChipError
from chip.validate.judge import RunsSource
from chip.validate.points import METRICS, Point, bound_of

DTYPE = "bf16"  # what they were asked for


@dataclass(frozen=True, slots=True)
class PeerAnswer:
    """What one of them said of one scenario; `error` where it had no answer."""

    peer: str
    model: str
    gpu: str
    engine: str
    batch: int
    prompt: int
    output: int
    ttft_ms: float | None
    tpot_ms: float | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Answers:
    SCHEMA: ClassVar[str] = "chip.peer_answers/1"

    peers: dict[str, str]  # name -> version
    answers: tuple[PeerAnswer, ...]


def read(path: Path) -> Answers:
    answers = codec.from_json(Answers, artifact.read(path, Answers.SCHEMA).data, f"{path}: data")
    for a in answers.answers:
        if a.peer not in answers.peers:
            raise ChipError(f"{path}: data.peers gives no version of {a.peer!r}")
    return answers


def judge(recorded: Answers, sources: Sequence[RunsSource], gpu: str) -> list[Point]:
    """TTFT and TPOT of the runs that a peer was asked for, on its engine and at its dtype."""
    by_point: dict[tuple[str, str, int, int, int], list[PeerAnswer]] = {}
    for a in recorded.answers:
        if a.gpu == gpu:
            by_point.setdefault((a.model, a.engine, a.batch, a.prompt, a.output), []).append(a)
    out = []
    for run in (r for source in sources for r in source.ok):
        s = run.scenario
        if s.dtype != DTYPE or s.tp != 1:
            continue
        for a in by_point.get((run.model, run.engine, s.batch, s.prompt, s.output), ()):
            for name, said_ms in (("ttft", a.ttft_ms), ("tpot", a.tpot_ms)):
                measured = METRICS[name].measured(run)
                if said_ms is not None and measured:
                    about = (f"{a.peer} {recorded.peers[a.peer]}", run.model, run.engine, run.variant, s, name)
                    bound = bound_of(run, METRICS[name].phase)
                    point = Point(*about, said_ms * 1e-3, None, None, measured, bound, bool(run.launch_ns))
                    out.append(replace(point, run=runs.id_of(run)))
    return out


def shared(points: Sequence[Point], theirs: Sequence[Point]) -> list[Point]:
    """Our points that they answered too: errors compare over the same points only."""
    have = {(p.run, p.metric) for p in theirs}
    return [p for p in points if (p.run, p.metric) in have]
