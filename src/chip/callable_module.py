"""Packages that are functions too: `chip.predict(...)` predicts, `chip.predict.request` is a module."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


def make_callable(package: str, function: str) -> None:
    """Calling the package calls `function` of `chip.api`, which is imported when it is first called."""

    class CallablePackage(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            found: Callable[..., Any] = getattr(import_module("chip.api"), function)
            return found(*args, **kwargs)

    sys.modules[package].__class__ = CallablePackage
