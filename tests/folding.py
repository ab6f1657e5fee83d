"""Many small cases as one test: pytest and its workers take longer to tell of each than most of them take."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each(cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """As `pytest.mark.parametrize`, for a test without fixtures: all cases are tried, and all that fail are told."""
    held = list(cases)
    assert held

    def fold(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            failed: list[BaseException] = []
            for case in held:
                try:
                    check(*case) if isinstance(case, tuple) else check(case)
                except (Exception, SystemExit, pytest.fail.Exception) as e:
                    e.add_note(f"case: {case!r:.200}")
                    failed.append(e)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(held)} cases", failed)

        test.__name__, test.__qualname__, test.__doc__ = check.__name__, check.__qualname__, check.__doc__
        test.__module__ = check.__module__
        return test

    return fold
