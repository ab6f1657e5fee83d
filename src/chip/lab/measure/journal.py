"""What a calibration has found so far, one JSON line a case, so that a kill at any byte costs one case at most."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path

from chip.files import artifact, codec, output
from chip.types import Ceiling, ChipError, Curve, Measurement

SCHEMA = "chip.calibration_journal/1"


def journal_path(path: Path) -> Path:
    """Where the journal of the calibration that writes this profile lies."""
    return path.parent / f"{path.name}.journal.jsonl"


@dataclass(frozen=True)
class Outcome:
    """What one case gave, by name; merged over all cases it is the profile."""

    ceilings: dict[str, Ceiling] = field(default_factory=dict)
    curves: dict[str, Curve] = field(default_factory=dict)
    factors: dict[str, Ceiling] = field(default_factory=dict)
    power: dict[str, Ceiling] = field(default_factory=dict)
    measured: dict[str, tuple[Measurement, ...]] = field(default_factory=dict)  # operators
    terms: dict[str, Ceiling] = field(default_factory=dict)  # of the host
    missing: dict[str, str] = field(default_factory=dict)


def merge(outcomes: Iterable[Outcome]) -> Outcome:
    total = Outcome()
    for outcome in outcomes:
        for f in fields(Outcome):
            getattr(total, f.name).update(getattr(outcome, f.name))
    return total


@dataclass(frozen=True)
class Header:
    """What must be the same for a journal to be continued."""

    schema: str
    device: str
    mode: str
    torch: str


@dataclass(frozen=True)
class JournalEntry:
    case: str
    seconds: float
    outcome: Outcome
    flags: tuple[str, ...] = ()  # "disturbed: ..."


class Journal:
    """Opened for one calibration; `done` is what an earlier, killed one left."""

    def __init__(self, path: Path, header: Header, restart: bool = False) -> None:
        self.path = path
        output.check(path, SCHEMA)
        if restart:
            self.path.unlink(missing_ok=True)
        try:
            lines = artifact.read_lines(path)
        except ChipError as e:
            raise ChipError(f"{e}; start over with --restart") from None
        if lines:
            self._check(lines[0], header)
        else:
            artifact.append(path, codec.to_json(header), SCHEMA)
        self.done = {e.case: e for e in (codec.from_json(JournalEntry, line, str(path)) for line in lines[1:])}

    def _check(self, line: object, header: Header) -> None:
        artifact.check_schema(line.get("schema") if isinstance(line, dict) else None, SCHEMA, str(self.path))
        begun = codec.from_json(Header, line, str(self.path))
        if begun != header:
            raise ChipError(
                f"{self.path}: was begun on {begun.device} (--{begun.mode}, torch {begun.torch}), this is "
                f"{header.device} (--{header.mode}, torch {header.torch}); start over with --restart"
            )

    def forget(self, cases: Iterable[str]) -> None:
        """Have these measured again: of a case that stands there twice the later entry counts."""
        for case in cases:
            del self.done[case]

    def add(self, entry: JournalEntry) -> None:
        artifact.append(self.path, codec.to_json(entry), SCHEMA)
        self.done[entry.case] = entry
