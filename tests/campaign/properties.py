"""Property tests of the suite with ten times as many examples as it has time for, drawn from another seed each time.

A case is one file of tests/pure; it runs in a process of its own, and hypothesis makes a failing example small.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAME = "properties"
LIMIT_S = 1200.0
EXAMPLES = 300
COUNTED: Counter[str] = Counter()
FILES = sorted(
    p.name for p in (ROOT / "tests" / "pure").glob("test_*.py") if re.search(r"^from hypothesis", p.read_text(), re.M)
)


def case(draw: Random) -> dict[str, Any]:
    return {"file": draw.choice(FILES), "seed": draw.randrange(2**32)}


def check(case: dict[str, Any]) -> str:
    pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "_hypothesis_pytestplugin"]
    words = [f"tests/pure/{case['file']}", f"--hypothesis-seed={case['seed']}", "--hypothesis-show-statistics"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "CHIP_EXAMPLES": str(EXAMPLES)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # those of libraries take longer to import than some files run
    done = subprocess.run(
        [*pytest, "-m", "not gpu", *words], capture_output=True, text=True, cwd=ROOT, env=environment, check=False
    )
    COUNTED["examples"] += sum(map(int, re.findall(r"- (\d+) passing", done.stdout)))
    return "" if done.returncode == 0 else done.stdout[-500:]
