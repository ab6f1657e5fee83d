"""Names: a class name means one thing, neighbouring modules are told apart, no word of the old dialect comes back."""

import ast
import re
from collections import defaultdict

from source_trees import FILES, SRC, nodes, tree

DIALECT = re.compile(r"(^|_)(?i:paces?|paced|dumm(y|ies)|spelled|said|watched|alike)(_|$)|^(IN_TURN|HELD|ONE_PASS)$")


def test_a_class_name_has_one_meaning():
    homes = defaultdict(list)
    for path in FILES:
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(SRC)))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def test_no_module_is_the_plural_or_the_gerund_of_its_neighbour():
    for folder in {path.parent for path in FILES}:
        names = {path.stem for path in folder.glob("*.py")}
        near = [(a, b) for a in names for b in names if b in (a + "s", a + "ing", re.sub("er$", "ing", a)) and a != b]
        assert near == [], folder


def test_defined_names_are_the_fields_own_words():
    """Functions, classes, attributes and constants; a local variable is its function's own affair."""
    assert {str(p.relative_to(SRC)): bad for p in FILES if (bad := [n for n in defined(p) if DIALECT.search(n)])} == {}


def defined(path):
    found = {n.name for n in nodes(path) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    for scope in [tree(path), *(n for n in nodes(path) if isinstance(n, ast.ClassDef))]:
        for node in scope.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            found |= {t.id for t in targets if isinstance(t, ast.Name)}
    return sorted(found)
