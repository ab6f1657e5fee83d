"""The source files of the package as syntax trees, each parsed once a process and only where a test asks."""

import ast
from functools import cache
from pathlib import Path

import chip

SRC = Path(chip.__file__).parent
FILES = sorted(SRC.rglob("*.py"))


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path):
    """Every node of the tree: to walk it anew for each question costs more than to parse it."""
    return tuple(ast.walk(tree(path)))
