"""Units and the sequence replayed in a worker process; what breaks or hangs costs itself and a new worker.

Units go to it a few at a time. What failed in company is tried again alone.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chip.files import artifact, codec, output
from chip.lab.measure.progress import Progress
from chip.lab.measure.replay.unit import ReplaySettings
from chip.lab.replay.results import JOURNAL, Placed, Replayed, Sequenced
from chip.lab.replay.sequence import Sequence as Step
from chip.lab.replay.signatures import Unit
from chip.types import ChipError

START_S = 180.0  # for importing torch and opening the device
SEQUENCE_S = 120.0  # for the sequence
UNITS_PER_REQUEST = 8  # units in a request
HEAD = "$ chip replay: what its worker processes said\n"  # of their log


class ReplayWorker:
    """A worker process and its answers."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        # -m finds chip as this process did
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        self.log = open(log, "ab")  # noqa: SIM115 - what libraries print; closed by stop
        self.process = subprocess.Popen(
            list(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=env
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        if self.process.stdout is not None:
            for line in self.process.stdout:
                self.answers.put(line)
        self.answers.put(None)

    def ask(self, request: Any, limit_s: float) -> dict[str, Any]:
        """The answer, or {"lost": why}: then this worker is of no more use."""
        try:
            if request is not None and self.process.stdin is not None:
                print(json.dumps(request), file=self.process.stdin, flush=True)
            line = self.answers.get(timeout=limit_s)
        except queue.Empty:
            self.stop()
            return {"lost": f"did not end within {limit_s:.0f} s and was stopped"}
        except OSError:
            line = None
        if line is None:
            code = self.process.wait()
            self.log.close()
            return {"lost": f"its process ended with {f'signal {-code}' if code < 0 else f'code {code}'}"}
        answer: dict[str, Any] = json.loads(line)
        return answer

    @property
    def ended(self) -> bool:
        """After an answer that said why."""
        try:
            return self.process.wait(0.05) is not None
        except subprocess.TimeoutExpired:
            return False

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        self.log.close()


class WorkerPool:
    """The worker of the day: started ahead if one likes, anew when it was lost. A spare one waits for work that must
    not be done where the profiler was used."""

    def __init__(self, command: Sequence[str], log: Path, spare: bool = False) -> None:
        self.command, self.log = command, log
        self.worker: ReplayWorker | None = None
        self.spare: ReplayWorker | None = None
        self.wants_spare = spare
        self.ready: set[ReplayWorker] = set()

    def start(self) -> ReplayWorker:
        """Without waiting for it: importing torch and opening the device takes seconds."""
        if self.worker is None:
            output.check(self.log, output.LOG)
            if not self.log.exists() or not self.log.stat().st_size:
                output.write(self.log, HEAD, output.LOG)
            self.worker = ReplayWorker(self.command, self.log)
            if self.wants_spare:
                self.spare, self.wants_spare = ReplayWorker(self.command, self.log), False
        return self.worker

    def wait(self) -> ReplayWorker:
        """The worker, when it can work. The spare is waited for too: its start would disturb what is timed."""
        if self.worker is not None and self.worker in self.ready and self.worker.ended:
            self.worker = None
        worker = self.start()
        for one in (worker, self.spare):
            if one is not None and one not in self.ready:
                answer = one.ask(None, START_S)
                if "ready" not in answer:
                    self.worker = self.spare = None
                    raise ChipError(f"the replay worker did not start: {answer.get('lost', answer)}; see {self.log}")
                self.ready.add(one)
        return worker

    def fresh(self) -> None:
        """The spare takes over, or a new one."""
        if self.worker is not None:
            self.worker.stop()
        self.worker, self.spare = self.spare, None

    def ask(self, request: Any, limit_s: float) -> dict[str, Any]:
        answer = self.wait().ask(request, limit_s)
        if "lost" in answer:
            self.worker = None
        return answer

    def stop(self) -> None:
        for one in (self.worker, self.spare):
            if one is not None:
                one.stop()
        self.worker = self.spare = None
        if self.log.exists() and self.log.stat().st_size == len(HEAD):
            self.log.unlink()


def command(device: str) -> list[str]:
    return [sys.executable, "-m", "chip.lab.measure.replay.worker", device]


def begun(path: Path, wanted: dict[str, Any]) -> bool:
    """Whether a journal was begun; one whose header differs from what is wanted of it is refused."""
    output.check(path, JOURNAL)
    lines = artifact.read_lines(path)
    if lines and not (isinstance(lines[0], dict) and wanted.items() <= lines[0].items()):
        raise ChipError(f"{path}: was begun for another replay; remove it, or choose another --output-dir")
    return bool(lines)


class ReplayJournal:
    """What was found so far; `header` is what must be the same to go on with it."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path
        wanted = {"schema": JOURNAL, **header}
        if not begun(path, wanted):
            artifact.append(path, wanted, JOURNAL)
        lines = artifact.read_lines(path)
        self.units: dict[str, list[Replayed]] = {}
        self.sequence: dict[str, Any] | None = None  # the worker's answer
        for line in lines[1:]:
            if isinstance(line, dict) and "unit" in line:
                self.units[str(line["unit"])] = codec.from_json(list[Replayed], line["kernels"], str(path))
            elif isinstance(line, dict) and isinstance(line.get("sequence"), dict):
                self.sequence = line["sequence"]

    def add_unit(self, unit: Unit, kernels: list[Replayed]) -> None:
        self.units[unit.key] = kernels
        artifact.append(self.path, {"unit": unit.key, "kernels": codec.to_json(kernels)}, JOURNAL)

    def add_sequence(self, answer: dict[str, Any]) -> None:
        self.sequence = answer
        artifact.append(self.path, {"sequence": answer}, JOURNAL)


def replay_units(
    units: Sequence[Unit], pool: WorkerPool, journal: ReplayJournal, settings: ReplaySettings, limit_s: float
) -> tuple[Replayed, ...]:
    """Results of every unit, those that are in the journal already from there."""
    todo = [u for u in units if u.key not in journal.units]
    with Progress(len(todo), "replay") as progress:
        for i in range(0, len(todo), UNITS_PER_REQUEST):
            some = todo[i : i + UNITS_PER_REQUEST]
            for unit in some:
                called = unit.operator.name if unit.operator else unit.members[0].kernel.name
                progress.step(f"tier {unit.tier} {called}")
            for unit, answer in zip(some, _ask(some, pool, settings, limit_s)):
                again = isinstance(answer, str) and len(some) > 1
                journal.add_unit(unit, _results(unit, _ask([unit], pool, settings, limit_s)[0] if again else answer))
    return tuple(r for unit in units for r in journal.units[unit.key])


def _ask(units: Sequence[Unit], pool: WorkerPool, settings: ReplaySettings, limit_s: float) -> list[Any]:
    """The worker's answer to each unit, or why there is none."""
    request = {"settings": codec.to_json(settings), "units": codec.to_json(list(units))}
    answer = pool.ask(request, limit_s + 3 * settings.energy_s * len(units))
    if "units" in answer:
        return list(answer["units"])
    return [str(answer.get("lost") or answer.get("error"))] * len(units)


def _results(unit: Unit, answer: Any) -> list[Replayed]:
    if isinstance(answer, str):
        return [Replayed(member.key, "failed", answer) for member in unit.members]
    return codec.from_json(list[Replayed], answer, "worker")


def replay_sequence(step: Step, pool: WorkerPool, journal: ReplayJournal) -> tuple[Sequenced, dict[str, Placed]] | str:
    """The whole and each kernel in its places, or why not."""
    if journal.sequence is None:
        print("replay: all of them in the model's order", file=sys.stderr)
        pool.fresh()  # the profiler slows every graph of its process, and the capture's was timed before it
        journal.add_sequence(pool.ask({"sequence": codec.to_json(step)}, SEQUENCE_S))
    answer = journal.sequence or {}
    if "sequence" not in answer:
        return str(answer.get("lost") or answer.get("error"))
    whole = codec.from_json(Sequenced, answer["sequence"], "worker")
    return whole, codec.from_json(dict[str, Placed], answer["places"], "worker")
