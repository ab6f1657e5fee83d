"""What holds for all tests: one thread a process, few examples of each property, short collections of garbage."""

import gc
import os

import pytest
from hypothesis import settings

# Workers fill the cores already: threads of torch that wait for each other there take several times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")
# On a busy machine any example may take long. `make campaign` tries many more
settings.register_profile("suite", deadline=None, max_examples=30)
settings.load_profile("suite")
# A session of ours thaws what is frozen at its end, and each collection would search all modules again. What leaks
# of the tiny models of tests is small
unfreeze, gc.unfreeze = gc.unfreeze, lambda: None


def pytest_unconfigure():
    unfreeze()  # libraries complain of what is left at the end of the process


@pytest.fixture(scope="module", autouse=True)
def imported_modules_are_no_garbage():
    """`gc.collect()` before a measurement walks all that torch and transformers have made: 0.2 s and more."""
    gc.collect()
    gc.freeze()
