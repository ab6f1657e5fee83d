"""The Python API: real signatures, seconds, what people pass, and the page that says so."""

import inspect
import subprocess
import sys
import time
from pathlib import Path

import pytest

import chip

ROOT = Path(__file__).parents[2]
SCRIPT = """\
import chip

p = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=1024, output=128)
low, high = p.interval["tpot_s"]
print(p.ttft_s * 1e3, p.bound["ttft"], p.dtype, low, high)
rows = chip.sweep("llama-3.1-8b", gpu=["h100", "h200"], batch=range(1, 9, 4))
fastest: float = min(row["e2e_s"] for row in rows if "error" not in row)
s = chip.simulate("llama-3.1-8b", workload="poisson", rate=4, requests=40, draws=0, goals={"ttft": 0.5})
if s.ttft_s is not None:
    print(s.ttft_s.p99, s.output_tokens_per_s)
fleet = chip.plan("llama-3.1-8b", workload="poisson", goals="tpot_p99=9ms", rate=20, requests=60, intervals=False)
print(fleet.choices[0].replicas, fleet.choices[0].at_rate_s)
e = chip.estimate("linear", m=8, n=4096, k=4096)
print(e.seconds, e.bound, fastest)
times = chip.StepTimes("llama-3.1-8b", gpu="h200", engine="vllm")
print(times.step_s([(1, 700), (1, 512), (256, 0)]))
try:
    chip.predict("no-such-model")
except chip.ChipError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_script_of_twenty_lines_is_typed_and_runs(tmp_path):
    mypy = pytest.importorskip("mypy.api")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    wrong = tmp_path / "wrong.py"
    wrong.write_text('import chip\n\nchip.predict("gpt2", batch="8")\nchip.predict("gpt2", batches=8)\n')
    options = ["--strict", "--config-file=", "--python-version=3.11", f"--cache-dir={tmp_path / 'cache'}"]
    out, err, code = mypy.run([*options, str(script), str(wrong)])
    assert not err
    assert code == 1
    assert "script.py" not in out
    assert "wrong.py:3" in out
    assert "wrong.py:4" in out
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert "no model 'no-such-model'" in ran.stdout


def test_help_shows_what_is_taken():
    for name in chip.__all__:
        value = getattr(chip, name)
        if inspect.isfunction(value) and name != "estimate":
            assert all(p.kind is not p.VAR_KEYWORD for p in inspect.signature(value).parameters.values()), name
        assert inspect.getdoc(value), name


def test_numbers_of_numpy_and_columns_are_taken():
    class Column(list):
        """As pandas and polars have it."""

        def to_list(self):
            return list(self)

        to_dict = None

    np = pytest.importorskip("numpy")
    (row,) = chip.sweep("gpt2", batch=np.array([2]), gpu=Column(["h200"]), prompt=np.int64(64))
    p = chip.predict("gpt2", batch=np.int32(2), prompt=64, launch_s=np.float32(0))
    assert (row["ttft_s"], row["tpot_s"], row["batch"]) == (p.ttft_s, p.tpot_s, 2)
    with pytest.raises(chip.ChipError, match="batch must be a whole number"):
        chip.predict("gpt2", batch=2.5)


def test_a_prediction_says_its_bound_its_format_and_shows_memory():
    p = chip.predict("llama-3.1-8b", batch=8)
    assert p.bound == {"ttft": "compute", "tpot": "memory"}
    assert p.dtype == "bf16"
    shown = p._repr_html_()
    assert "fits the" in shown
    assert "rests on" in shown


def test_a_step_is_what_predict_says_and_is_quick():
    times = chip.StepTimes("llama-3.1-8b", gpu="h200", engine="vllm")
    p = chip.predict("llama-3.1-8b", gpu="h200", batch=8)
    assert times.step_s([(1, 1024 + 64)] * 8) == pytest.approx(p.tpot_s, rel=0.02)
    assert times.step_s([(1024, 0)] * 8) == pytest.approx(p.ttft_s, rel=0.06)
    steps = [[(1, 500 + i + j) for j in range(63)] + [(200, 0)] * (i % 2) for i in range(100)]
    for step in steps:
        times.step_s(step)
    began = time.process_time()
    for step in steps:
        times.step_s(step)
    assert (time.process_time() - began) / len(steps) < 0.2e-3
    for bad in ([], [(0, 5)], [(1, -1)]):
        with pytest.raises(chip.ChipError):
            times.step_s(bad)
    with pytest.raises(chip.ChipError, match="no scheduler"):
        chip.StepTimes("gpt2", engine="hf-eager")


def test_the_page_has_every_name():
    page = (ROOT / "docs/api.md").read_text()
    assert {line.removeprefix("### chip.") for line in page.splitlines() if line.startswith("### chip.")} == set(
        chip.__all__
    )
