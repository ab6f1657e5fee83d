"""Scripts of benchmarks/ whose functions the pages' figures come from."""

from __future__ import annotations

import importlib.util
import sys
from functools import cache
from types import ModuleType

from doc_figures.accuracy import ROOT


@cache
def load(name: str) -> ModuleType:
    path = ROOT / "benchmarks" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
