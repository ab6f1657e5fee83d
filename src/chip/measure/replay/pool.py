"""Units replayed one after another in a worker process; what breaks or hangs costs its unit and a new worker."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from chip import artifact, codec
from chip.measure.progress import Progress
from chip.measure.replay.unit import Settings
from chip.replay.results import Replayed
from chip.replay.signatures import Unit
from chip.types import ChipError

START_S = 180.0  # for importing torch and opening the device
SCHEMA = "chip.replay_journal/1"


class Worker:
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
        found: dict[str, Any] = json.loads(line)
        return found

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


def command(device: str, settings: Settings) -> list[str]:
    return [sys.executable, "-m", "chip.measure.replay.worker", device, json.dumps(codec.to_json(settings))]


def replay_all(
    units: Sequence[Unit], start: Sequence[str], journal: Path, header: dict[str, Any], limit_s: float
) -> Iterator[Replayed]:
    """Results of every unit, those in the journal first; `header` is what must be the same to go on with one. What the
    worker prints goes to a .log beside the journal."""
    done = _resume(journal, header)
    log = journal.with_suffix(".log")
    worker: Worker | None = None
    todo = [u for u in units if u.key not in done]
    for unit in units:
        if unit.key in done:
            yield from done[unit.key]
    try:
        with Progress(len(todo), "replay") as progress:
            for unit in todo:
                progress.step(
                    f"tier {unit.tier} {unit.operator.name if unit.operator else unit.members[0].kernel.name}"
                )
                if worker is not None and worker.ended:
                    worker = None
                if worker is None:
                    worker = Worker(start, log)
                    ready = worker.ask(None, START_S)
                    if "ready" not in ready:
                        raise ChipError(f"the replay worker did not start: {ready.get('lost', ready)}; see {log}")
                answer = worker.ask(codec.to_json(unit), limit_s)
                if "lost" in answer:
                    worker = None
                found = _results(unit, answer)
                artifact.append(journal, {"unit": unit.key, "kernels": codec.to_json(found)})
                yield from found
    finally:
        if worker is not None:
            worker.stop()


def _results(unit: Unit, answer: dict[str, Any]) -> list[Replayed]:
    if "kernels" in answer:
        return codec.from_json(list[Replayed], answer["kernels"], "worker")
    reason = str(answer.get("lost") or answer.get("error"))
    return [Replayed(member.key, "failed", reason) for member in unit.members]


def _resume(journal: Path, header: dict[str, Any]) -> dict[str, list[Replayed]]:
    lines = artifact.read_lines(journal)
    wanted = {"schema": SCHEMA, **header}
    if not lines:
        artifact.append(journal, wanted)
        return {}
    if lines[0] != wanted:
        raise ChipError(f"{journal}: was begun for another replay; remove it, or choose another --output-dir")
    return {
        str(line["unit"]): codec.from_json(list[Replayed], line["kernels"], str(journal))
        for line in lines[1:]
        if isinstance(line, dict) and "unit" in line
    }
