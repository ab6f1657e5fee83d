"""The figures of the pages, each computed by a function of this folder.

    1.8 %, 4.1 %<!-- from: native.errors tpot -->       what stands before the mark is what the function says
    <!-- table: accuracy.by_limit -->                   rows that the function yields
    <!-- end of table -->

`python tests/pure/test_docs.py` writes them, `test_doc_figures.py` compares them. In front of a mark only numbers and
yes or no are replaced, so that lines may break anywhere.
"""

from __future__ import annotations

import re
import shlex
from importlib import import_module

TABLE = re.compile(r"(?<=<!-- table: )(?P<call>[^\n]*?) -->\n(?P<rows>.*?)(?=<!-- end of table -->)", re.DOTALL)
MARK = re.compile(r"<!-- from: (?P<call>.*?) -->")
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?|\byes\b|\*\*no\*\*")


class StaleError(Exception):
    """What a page says is of another form than what is computed."""


def computed(call: str):
    """What `module.function word ...` gives."""
    name, *words = shlex.split(call)
    module, _, function = name.partition(".")
    return getattr(import_module(f"doc_figures.{module}"), function)(*words)


def has_figures(text: str) -> bool:
    return bool(TABLE.search(text) or MARK.search(text))


def written(text: str) -> str:
    """The page as its figures are today."""
    text = TABLE.sub(lambda m: f"{m['call']} -->\n" + "".join(f"{row}\n" for row in computed(m["call"])), text)
    out, at = [], 0
    for mark in MARK.finditer(text):
        out.append(_renewed(text[at : mark.start()], computed(mark["call"]), mark["call"]) + mark[0])
        at = mark.end()
    return "".join([*out, text[at:]])


def _renewed(before: str, value: str, call: str) -> str:
    """`before`, whose end is of the form of `value`, with the numbers of `value`."""
    forms = [r"\s+".join(map(re.escape, words.split(" "))) for words in NUMBER.split(value)]
    found = re.search(f"(?:{NUMBER.pattern})".join(forms) + r"\Z", before)
    if not found:
        raise StaleError(f"in front of `{call}` stands {before[-40:]!r}, which is not of the form of {value!r}")
    numbers = iter(NUMBER.findall(value))
    return before[: found.start()] + NUMBER.sub(lambda _: next(numbers), found[0])
