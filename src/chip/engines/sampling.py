"""How tokens are chosen: `greedy`, or `temperature`, `top-k`, `top-p`, `penalties` and `logprobs`, joined by +.

What each costs an engine is in its folder. The values asked for (a temperature of 0.7, the 50 likeliest) change nothing
of it: every kernel goes over the whole vocabulary.
"""

from __future__ import annotations

from chip.types import ChipError

GREEDY = "greedy"
PARTS = ("temperature", "top-k", "top-p", "penalties", "logprobs")
ASKED: dict[str, dict[str, float]] = {  # as a request to an OpenAI-compatible server asks for each, at usual values
    "temperature": {"temperature": 0.8}, "top-k": {"temperature": 0.8, "top_k": 50},
    "top-p": {"temperature": 0.8, "top_p": 0.9}, "logprobs": {"logprobs": 5},
    "penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.2},
}  # fmt: skip
DRAWING = ("temperature", "top-k", "top-p")  # instead of the largest logit


def parts_of(text: str) -> tuple[str, ...]:
    """The parts of a choice, in the order in which they run; none of a greedy one."""
    words = [word for word in text.split("+") if word != GREEDY]
    for word in words:
        if word not in PARTS:
            raise ChipError(
                f"--sampling {text[:60]!r}: {word[:20]!r} must be {GREEDY}, {', '.join(PARTS)}, joined by +"
            )
    if GREEDY in text.split("+") and any(word in DRAWING for word in words):
        raise ChipError(f"--sampling {text[:60]!r}: {GREEDY} takes the largest logit, the others draw: choose one")
    return tuple(part for part in ("penalties", *DRAWING, "logprobs") if part in words)


def request_fields(text: str) -> dict[str, float]:
    """What a request to a server says of it."""
    fields: dict[str, float] = {"temperature": 0.0}
    for part in parts_of(text):
        fields |= ASKED[part]
    return fields
