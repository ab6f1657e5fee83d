"""The modules of a package, by listing its folder. `pkgutil` finds them too, and imports `inspect` to do so: every
command would wait for it."""

from __future__ import annotations

import os
from collections.abc import Iterable


def modules(folders: Iterable[str]) -> list[str]:
    """Of a package's `__path__`: files and packages, sorted."""
    found = {entry.name for folder in folders for entry in os.scandir(folder) if entry.name.endswith(".py")}
    return sorted({name.removesuffix(".py") for name in found} - {"__init__"} | set(packages(folders)))


def packages(folders: Iterable[str]) -> list[str]:
    paths = [entry.path for folder in folders for entry in os.scandir(folder) if entry.is_dir()]
    return sorted(os.path.basename(path) for path in paths if os.path.isfile(os.path.join(path, "__init__.py")))
