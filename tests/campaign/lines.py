"""Lines of a sweep, whole and damaged: a JSON answer or a JSON error each, finite, within the time limit."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import scenarios
from damage import damaged_text, damaged_value

from chip.files import artifact
from chip.predictor import operator, request
from chip.show import cli, garbage

NAME = "lines"
LIMIT_S = 0.5
GROUP = 400  # numbers in a row ask about one model and GPU, as sweeps do


def case(draw: Random, group: Random) -> dict[str, str]:
    command = draw.choice(("predict", "estimate"))
    question: Any = scenarios.scenario(draw, group) if command == "predict" else scenarios.operator(draw)
    how = draw.randrange(4)
    if how == 1:
        question = damaged_value(question, draw)
    text = json.dumps(question)
    return {"command": command, "line": damaged_text(text, draw) if how == 2 else text}


def check(case: dict[str, str]) -> str:
    try:
        question = artifact.parse_question(case["line"])
        found = request.answer_line(question) if case["command"] == "predict" else json.dumps(operator.answer(question))
    except Exception as e:
        said = cli.told(e)
        return said if "fault" in said else ""
    finally:
        garbage.after_answer()  # as a sweep does
    return "" if _alone(question) and json.loads(found)["us"] == 0 else judge(found)


def _alone(question: Any) -> bool:
    """One GPU exchanges nothing, in no time."""
    return isinstance(question, dict) and question.get("ranks") == 1


def _not_finite(word: str) -> None:
    raise ValueError(f"{word} in an answer")


def judge(text: str) -> str:
    """ "" for an answer that is JSON with finite, positive times."""
    try:
        answer = json.loads(text, parse_constant=_not_finite)  # whole numbers may be long: FLOPs are exact
    except ValueError as e:
        return f"the answer is not JSON: {e}"
    for key in ("ttft_ms", "tpot_ms", "e2e_ms", "us"):
        if answer.get(key) is not None and not answer[key] > 0:
            return f"{key} is {answer[key]}"
    return ""
