"""Python's garbage collector in a process that answers for long.

A collection looks at every object that is not frozen: half a second once a process knows hundreds of models, in the
middle of somebody's answer. Answers and the tables they are kept in make no cycles: when one is dropped, its last
reference frees it. So there is a collection every few answers, and what it leaves is not looked at again.
"""

from __future__ import annotations

import gc
from itertools import count

THRESHOLD = 50_000  # new objects between two collections: at every 700 they are a tenth of the time
EVERY = 32  # answers: as many new models, with some thousand objects each

_answers = count(1)


def after_answer() -> None:
    """For commands, not for whoever imports chip: it holds for the whole process."""
    if next(_answers) % EVERY == 0:
        gc.collect()
        gc.freeze()
