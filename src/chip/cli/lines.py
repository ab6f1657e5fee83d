"""JSON Lines in, JSON Lines out: each question answered in order and flushed, errors in their place."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from chip import artifact, cli, forked, garbage
from chip.cli import forks, incoming
from chip.cli.incoming import Numbered

MANY = 256  # lines that are there at once, from which on several processes are faster
SHARED = ("gpu", "engine", "model", "dtype", "tp")  # keys of lines that have much to work out in common, most first


def answer_stdin(answer: Callable[[Mapping[str, Any]], str], jobs: int = 1) -> int:
    """`answer` gives one line of JSON. `jobs`: processes, 0 for one a core. 0 when every line was answered, 1 when any
    was an error."""

    def answered(line: Numbered) -> str:
        try:
            out = answer(artifact.parse_question(line[1]))
        except BrokenPipeError:
            raise
        except Exception as e:  # one line's trouble is never the end of a sweep
            out = json.dumps({"error": cli.told(e), "line": line[0]})
        garbage.after_answer()
        return out

    failed, several = 0, None
    for lines in incoming.rounds():
        if several is None and jobs != 1 and len(lines) >= MANY and (count := forked.processes(jobs)) > 1:
            several = forks.Forks(count, answered, _setting)
        together = several if len(lines) >= MANY else None
        for out in together.answers(lines) if together else map(answered, lines):
            failed += out.startswith('{"error"')
            sys.stdout.write(out + "\n")
            if not together:  # whose answers are all there when the first one comes
                sys.stdout.flush()
        sys.stdout.flush()
    if failed:
        print(f"chip: {failed} line{'s' if failed > 1 else ''} could not be answered", file=sys.stderr)
    return 1 if failed else 0


def _setting(line: Numbered) -> str:
    try:
        asked = artifact.parse_question(line[1])
        return str([asked.get(key) for key in SHARED])
    except Exception:  # whoever answers it says what is wrong
        return ""
