"""The way of a question through the code is short: each file of the predictor builds on those before it, and the walk
from `chip.predict` to the number goes through few files, without going to and fro."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import chip

PACKAGE = Path(chip.__file__).parent
STEPS = (
    *("stages", "interpolate", "clock", "roof", "peaks", "kernels", "operator_time", "estimator"),
    *("schedule", "program", "phase", "steps", "parallel", "memory", "notes", "prediction", "request"),
)
MOST_FILES, MOST_MOVES = 54, 2500
WALK = """
import json, sys, chip, chip.api, chip.engines.vllm
files, moves, last, batches = set(), 0, None, []
def entered(frame, event, _):
    global moves, last
    name = frame.f_code.co_filename
    if event != "call" or not name.startswith(sys.argv[1]) or frame.f_code.co_name == "<module>":
        return
    moves += last is not None and last != name
    last = name
    files.add(name)
    step = frame.f_locals.get("step")
    if frame.f_code.co_name == "play" and step.decode:
        batches.append(step.sequences)
sys.setprofile(entered)
tpot_s = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=1024, output=128).tpot_s
sys.setprofile(None)
print(json.dumps({"files": len(files), "moves": moves, "batches": batches, "tpot_s": tpot_s}))
"""


def test_files_of_the_predictor_are_read_in_order():
    for at, name in enumerate(STEPS):
        tree = ast.parse((PACKAGE / "predictor" / f"{name}.py").read_text(encoding="utf-8"))
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        imported |= {f"{n.module}.{a.name}" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) for a in n.names}
        assert not imported & {f"chip.predictor.{later}" for later in STEPS[at:]}, name


def test_the_walk_from_a_question_to_its_number():
    """In a process of its own, where nothing is known yet."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    asked = [sys.executable, "-c", WALK, str(PACKAGE)]
    ran = subprocess.run(asked, capture_output=True, text=True, check=True, env=environment)
    walk = json.loads(ran.stdout)
    assert walk["batches"] == [8, 8, 8], "as expected, at the least, at the most"
    assert walk["files"] <= MOST_FILES
    assert walk["moves"] <= MOST_MOVES
    again = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=1024, output=128)
    assert again.tpot_s == walk["tpot_s"]
