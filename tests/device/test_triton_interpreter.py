"""Our Triton kernels in Triton's interpreter: each alone, in all its forms, and as the kernels of the native engine."""

import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
if not importlib.util.find_spec("triton"):
    pytest.skip("Triton is not installed", allow_module_level=True)

from unchanged import unless_unchanged

import chip

PARTS = (
    "every_kernel",
    "plans_of_row_kernels",
    "rows_far_from_zero_and_rows_with_nan",
    "biases_and_gates_of_skinny_gemm",
    "pages_and_splits_of_attention",
    "slots_that_rope_store_writes",
    "tokens_of_llama",
    "tokens_of_qwen",
)


def inputs():
    """What decides how it comes out: the kernels, the engine, the tests, and the versions of what runs them."""
    src = Path(chip.__file__).parent
    return [
        *sorted((src / "lab" / "kernels" / "triton").glob("*.py")),
        *(src / "lab" / "kernels" / name for name in ("check.py", "plans.py")),
        *sorted((src / "lab" / "run" / "native").glob("*.py")),
        Path(__file__).with_name("interpreted.py"),
        *map(version, ("torch", "triton")),
    ]


def test_every_part_is_right(saved):
    """One process for all: to import torch takes as long as most of them."""

    def run():
        env = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1])}
        folders = [str(saved(name)[1]) for name in ("llama-3.2-1b", "qwen3-0.6b")]
        words = [sys.executable, str(Path(__file__).with_name("interpreted.py")), *folders]
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=600)
        assert done.returncode == 0, done.stderr[-2000:]
        found = json.loads(done.stdout.splitlines()[-1])
        assert {part: why for part, why in found.items() if why} == {}
        assert set(found) == set(PARTS)

    unless_unchanged("interpreter", inputs(), run)
