"""Notebooks in examples/ run, and print what they show. No jupyter: a notebook is JSON.

After a change of output: `python tests/pure/test_examples.py` writes the outputs anew; read the diff.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "src"))
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Code cells in order, each with what it really prints."""
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec("".join(cell["source"]), names)
            yield cell, out.getvalue()


def shown(cell: dict[str, Any]) -> str:
    return "".join(line for o in cell["outputs"] for line in o["text"])


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_cells_print_what_is_shown(path: Path) -> None:
    for cell, printed in cells(json.loads(path.read_text(encoding="utf-8"))):
        assert printed == shown(cell), f"{path.name}: run `python tests/pure/test_examples.py`"


def rewrite(path: Path) -> None:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, (cell, printed) in enumerate(cells(notebook), 1):
        cell["execution_count"] = number
        cell["outputs"] = [{"name": "stdout", "output_type": "stream", "text": printed.splitlines(True)}]
    path.write_text(json.dumps(notebook, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for found in NOTEBOOKS:
        rewrite(found)
