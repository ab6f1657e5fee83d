"""Live traffic: a workload, the engine's scheduler, the time of each step, percentiles; and plans of what to buy.

`chip.simulate(...)` calls `chip.simulate.simulation.simulate`: this package can be called.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from chip.simulate.simulation import simulate

        return simulate(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
