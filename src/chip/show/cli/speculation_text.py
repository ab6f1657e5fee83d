"""What `chip predict --speculative` says, from its JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.show.cli.text import Column, gib, ms, percent, span, table, times

STEPS: tuple[Column, ...] = (
    ("batch", "batch", str), ("step", "step_ms", ms), ("to draft", "draft_ms", ms), ("to verify", "verify_ms", ms),
    ("TPOT", "tpot_ms", ms), ("without", "plain_tpot_ms", ms), ("speedup", "speedup", times),
    ("90 % interval", "speedup_interval", span(times)), ("pays from", "pays_from", percent),
)  # fmt: skip


def render(made: Mapping[str, Any]) -> str:
    by = f" by {made['model']} ({gib(made['draft_bytes'])} of weights)" if made["model"] else ""
    drafts = f"{made['method']}: {made['tokens']} tokens drafted{by}"
    parts = [
        f"{drafts}, {made['tokens_a_step']:.2f} a step ({made['source']}), {percent(made['rejected'])} of drafts wrong",
        f"at a context of {made['context']}; `pays from` is the share of drafted tokens that must be right",
        "",
        table(made["steps"], STEPS),
        "",
        _where(made),
    ]
    return "\n".join(parts)


def _where(made: Mapping[str, Any]) -> str:
    pays = [step["batch"] for step in made["steps"] if step["speedup"] > 1]
    sure = [step["batch"] for step in made["steps"] if step["speedup_interval"][0] > 1]
    if not pays:
        return "it pays at none of these batches"
    where = "at all of these batches" if len(pays) == len(made["steps"]) else f"at a batch of {_span(pays)}"
    surely = f", surely at {_span(sure)}" if sure and sure != pays else "" if sure else ", surely at none"
    return f"it pays {where}{surely}"


def _span(batches: list[int]) -> str:
    return f"{batches[0]} to {batches[-1]}" if len(batches) > 1 else str(batches[0])
