"""Python's garbage collector in a process that answers for long.

A collection looks at every object that is not frozen: half a second once a process knows hundreds of models, in the
middle of somebody's answer. Answers and the tables they are kept in make no cycles: when one is dropped, its last
reference frees it. So there is a collection whenever some thousand objects are new, and what it leaves is not looked at
again.
"""

from __future__ import annotations

import gc

THRESHOLD = 50_000  # new objects between two collections: at every 700 they are a tenth of the time
NEW = 10_000  # after an answer: those of a few new models


def after_answer() -> None:
    """For commands, not for whoever imports chip: it holds for the whole process."""
    if gc.get_count()[0] > NEW:
        gc.collect()
        gc.freeze()
