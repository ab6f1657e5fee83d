"""The real vLLM on a GPU: our stamps against the walls of `LLM.generate`, in one engine. It takes about two minutes.

vLLM is looked for as `chip bench` does: in this interpreter (or VLLM_PYTHON) with CHIP_ENGINE_PYTHONPATH.
"""

import json
import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")

from chip.decoders.library import CONFIGS  # noqa: E402
from chip.lab.run import Job, vllm  # noqa: E402
from chip.stats import median  # noqa: E402
from chip.types import Scenario  # noqa: E402

PYTHON = os.environ.get("VLLM_PYTHON", sys.executable)
MODEL = os.environ.get("VLLM_MODEL", "llama-3.1-8b")
SETTINGS = {"max_model_len": "4608"}
POINTS = (Scenario(8, 512, 65), Scenario(1, 1024, 65))
WITHIN = 0.03
STEADY_TOKENS = 4096  # prefills of fewer tokens vary by more than that from one to the next
BOTH = """
import importlib.util, time
spec = importlib.util.spec_from_file_location("vllm_worker", {path!r})
worker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(worker)

class Both(worker.Server):
    def generate(self, output, count):
        walls = []
        for _ in range(count):
            params = worker.greedy(output)
            began = time.perf_counter_ns()
            self.llm.generate(self.prompts, params, use_tqdm=False)
            walls.append(time.perf_counter_ns() - began)
        return {{"wall_ns": walls}}

worker.Server = Both
worker.main()
"""


def has_vllm():
    env = vllm.environment(Job("", {}))
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([PYTHON, "-c", find], env=env, check=False).returncode == 0


pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_steps_agree_with_generate_and_profiling_leaves_no_trace(monkeypatch, tmp_path):
    if not has_vllm():
        pytest.skip("vLLM is not installed")
    both = tmp_path / "both.py"
    both.write_text(BOTH.format(path=str(vllm.WORKER)))
    monkeypatch.setattr(vllm, "WORKER", both)
    config = json.loads((CONFIGS / f"{MODEL}.json").read_text())
    with vllm.open(Job(MODEL, config, python=PYTHON, settings=SETTINGS)) as session:
        assert session.opened["kv_cache_tokens"] > 10_000
        seen = []
        for point in POINTS:
            first, again = session.measure(point, 8), session.measure(point, 8)
            one, whole = (
                median(session.worker.ask("generate", time.monotonic() + 60, output=n, count=8)["wall_ns"])
                for n in (1, point.output)
            )
            assert median(again.e2e_ns) == pytest.approx(whole, rel=WITHIN)
            if point.batch * point.prompt >= STEADY_TOKENS:
                assert median(again.ttft_ns) == pytest.approx(one, rel=WITHIN)
            assert again.tpot_s * 1e9 == pytest.approx((whole - one) / (point.output - 1), rel=WITHIN)
            assert again.tpot_s == pytest.approx(first.tpot_s, rel=WITHIN)
            seen.append(again)
        for again in map(session.look, seen):  # not before all is timed: the profiler slows what comes after it
            assert set(again.busy) == {"prefill", "decode"}
            assert again.busy["decode"] > 0.8
            assert again.energy is not None
            assert again.energy.decode_j > 0
            assert len(again.settings["kernels"]["decode"]) > 5
            assert {"load", "compile", "capture"} <= set(again.setup_s)
