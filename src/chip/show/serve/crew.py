"""Processes that answer questions, so that a server uses more than one core.

They are forked before the server has threads, with all that was read. A question goes to the one that has least to do;
a grid is shared out by its first axis. One that dies is not asked again, and its question is answered by another, or by
the server itself once none is left.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from chip.forked import Forked
from chip.show import garbage
from chip.show.serve import api, planning, ranking, sweep
from chip.show.serve.limit import Overrun
from chip.show.serve.reply import Reply, failure, parsed, told
from chip.show.serve.turn import Turn
from chip.types import ChipError

WHOLE, PART = b"whole", b"part"
FEW = 16  # points of a grid that are not worth sharing out
MEMBERS = 4  # at most, unless more are asked for: each remembers tables of its own


class Gone(Exception):
    """No process is left."""


class Member:
    """One of the processes, asked by one thread at a time."""

    def __init__(self, fork: Forked) -> None:
        self.fork, self.turn, self.alive = fork, Turn(), True

    def ask(self, message: bytes) -> None:
        try:
            self.fork.ask(message)
        except OSError:
            self.alive = False

    def told(self) -> Reply | None:
        """None where it has died."""
        found = self.fork.told() if self.alive else None
        if found is None:
            self.alive = False
            return None
        status, _, body = found.partition(b"\n")
        return Reply(int(status), body)


class Crew:
    def __init__(
        self, count: int, limit_s: float, begin: Callable[[], object] = int, expected: dict[str, Any] | None = None
    ) -> None:
        """`begin`: what each process does first. `expected`: a ranking that will be asked for, worked out while nobody
        asks for something else."""
        self._limit_s = limit_s
        self._members: list[Member] = []
        for i in range(count):
            idle = planning.steps_of({**expected, "gpu": expected["gpu"][i::count]}) if expected else ()
            self._members.append(Member(Forked(self._answered, [m.fork for m in self._members], begin, idle)))

    # -- in the server
    def answer(self, path: str, body: bytes) -> Reply:
        """`Gone` where none is left, `Busy` where none had time."""
        parts = self._parts(path, body)
        while members := [m for m in self._members if m.alive]:
            found = self._together(members, path, *parts) if parts and len(members) > 1 else None
            if found is None:
                found = self._alone(min(members, key=lambda m: m.turn.load), path, body)
            if found is not None:
                return found
        raise Gone

    def _alone(self, member: Member, path: str, body: bytes) -> Reply | None:
        with member.turn.within(self._limit_s):
            member.ask(_message(WHOLE, path, body))
            return member.told()

    def _together(self, members: Sequence[Member], path: str, question: dict[str, Any], axis: str) -> Reply | None:
        """Every n-th value of the axis to each. None where one has died."""
        values, count = question[axis], len(members)
        with ExitStack() as turns:
            for member in members:  # all of them before the first is asked: its answer must be waited for
                turns.enter_context(member.turn.within(self._limit_s))
            for i, member in enumerate(members):
                asked = {**question, axis: values[i::count]}
                member.ask(_message(PART, path, json.dumps(asked).encode()))
            found = [member.told() for member in members]
        told_all = [one for one in found if one is not None]
        if len(told_all) < count:
            return None
        for one in told_all:
            if one.status != 200:
                return one
        parts = [json.loads(one.body) for one in told_all]
        try:
            if path == "/api/rank":
                whole = ranking.whole(question, parts)
            elif path == api.PLAN:
                whole = planning.whole(question, parts)
            else:
                whole = sweep.whole(question, _in_order([part["rows"] for part in parts], len(values)))
        except ChipError as e:
            return Reply(422, told(str(e)))
        return Reply(200, json.dumps(whole, separators=(",", ":"), allow_nan=False).encode())

    def _parts(self, path: str, body: bytes) -> tuple[dict[str, Any], str] | None:
        """The question and the axis that it is shared out by; None where one process answers all of it."""
        if path not in api.PARTS:
            return None
        question = parsed(body)
        if not isinstance(question, dict):
            return None
        lists = [axis for axis in sweep.AXES if isinstance(question.get(axis), list) and len(question[axis]) > 1]
        if not lists or (path != "/api/sweep" and lists[0] != "gpu"):
            return None
        if path == api.PLAN:
            return question, lists[0]
        each = ranking.TRIES if question.get("batch") == ranking.LARGEST else 1
        points = each * prod(len(question[axis]) for axis in lists)
        return (question, lists[0]) if FEW <= points <= sweep.MOST_POINTS else None

    # -- in a process
    def _answered(self, message: bytes) -> bytes:
        kind, path, body = message.split(b"\n", 2)
        asked = (api.PARTS if kind == PART else api.ASKED)[path.decode()]
        try:
            with _limited(self._limit_s):
                found = Reply(200, asked(parsed(body)).encode())
        except Exception as e:
            found = failure(e, f"POST {path.decode()}", self._limit_s)
        garbage.after_answer()
        return f"{found.status}\n".encode() + found.body


def _message(kind: bytes, path: str, body: bytes) -> bytes:
    return b"\n".join((kind, path.encode(), body))


def _in_order(parts: Sequence[Sequence[Any]], values: int) -> list[Any]:
    """Rows of the first value of the axis, of the second, ...: each has as many, and every n-th is in one part."""
    each, count = sum(map(len, parts)) // values, len(parts)
    return [row for i in range(values) for row in parts[i % count][i // count * each : (i // count + 1) * each]]


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """In the main thread of a process."""

    def stop(*_: Any) -> None:
        raise Overrun

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
