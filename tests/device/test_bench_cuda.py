"""What only a GPU can show of real runs: graphs say what eager says and are not slower; shares and joules are sane."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import bundled  # noqa: E402

from chip.decoders import library  # noqa: E402
from chip.lab import run  # noqa: E402
from chip.lab.measure.energy import CHECKED_S  # noqa: E402
from chip.lab.run.model import from_config  # noqa: E402
from chip.lab.run.steps import Eager, Graph, Static  # noqa: E402
from chip.stats import median  # noqa: E402
from chip.types import ChipError, Scenario  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
POINT = Scenario(1, 128, 17, "fp16")


def tinyllama(layers=2):
    from chip.files import artifact

    return {**artifact.read_json(library.locate("tinyllama-1.1b")[0]), "num_hidden_layers": layers}


def measured(engine, **settings):
    job = run.Job("two-layers", tinyllama(), dtype="fp16", device="cuda:0", energy_s=CHECKED_S, **settings)
    with run.get(engine).open(job) as session:
        found = session.measure(POINT, 3)
        return found if found.busy else session.look(found)


def check(found):
    assert found.status == "ok"
    assert set(found.busy) == {"prefill", "decode"}
    assert all(0 < share <= 1 for share in found.busy.values())
    assert found.memory["allocated_peak_bytes"] <= found.memory["reserved_peak_bytes"]
    assert found.memory["reserved_peak_bytes"] <= found.memory["device_peak_bytes"]
    assert found.energy is not None
    assert found.energy.counter_j > 0
    parts = (found.energy.prefill_j, found.energy.decode_j)
    if None in parts:  # where the device is not ours alone
        assert any(f.endswith("W idle") for f in found.energy.flags)
    else:
        assert min(parts) > 0
        assert found.energy.counter_j > sum(parts)


def test_engines_agree_with_each_other():
    eager, graph = measured("hf-eager", sdpa="flash"), measured("hf-graph")
    check(eager)
    check(graph)
    steps = {r.engine: median([ns for each in r.step_ns[1:] for ns in each]) for r in (eager, graph)}
    assert steps["hf-graph"] <= 1.05 * steps["hf-eager"]
    assert graph.setup_s["capture"] > 0
    assert graph.busy["decode"] >= eager.busy["decode"]


def test_the_default_backend_is_told_apart_where_it_plans_anew():
    found = measured("hf-eager")
    first, later = (median([ns for each in some for ns in each[2:]]) for some in (found.step_ns[:1], found.step_ns[1:]))
    assert any("each new KV length" in w for w in found.waits) == (first > 1.2 * later)


@pytest.mark.slow
def test_compiled():
    found = measured("hf-compile")
    check(found)
    assert found.setup_s["compile"] > 0


@pytest.mark.parametrize(
    "name", ["tinyllama-1.1b", "gemma-3-1b", "mistral-7b-v0.1", "phi-3-mini", "gpt-neox-20b", "opt-125m"]
)
def test_graphs_say_what_eager_says(name):
    """Also across the moment when a sliding window of 12 tokens is full."""
    model = from_config(bundled(name), torch.float32, "cuda:0").eval()
    ids = torch.randint(3, 256, (2, 8), device="cuda:0", generator=torch.Generator("cuda:0").manual_seed(1))
    said = {}
    with torch.inference_mode():
        for kind, steps in (("eager", Eager(model, ids, True)), ("graph", Graph(Static(model, ids, 72, True), 9))):
            for _ in range(2):
                steps.rewind()
                said[kind] = [steps.prefill().tolist(), *(steps.decode().tolist() for _ in range(8))]
    assert said["graph"] == said["eager"]


def test_experts_are_captured_in_bf16_alone():
    """torch's grouped product reads its offsets on the host in any other dtype. The same kernels run one by one say the
    same; over a DynamicCache others do, and bf16 rounds otherwise."""
    config = bundled("qwen3-30b-a3b")
    model = from_config(config, torch.bfloat16, "cuda:0").eval()
    ids = torch.randint(3, 256, (2, 8), device="cuda:0", generator=torch.Generator("cuda:0").manual_seed(1))
    said = {}
    with torch.inference_mode():
        for kind, steps in (
            ("one by one", Static(model, ids, 72, True)),
            ("graph", Graph(Static(model, ids, 72, True), 9)),
        ):
            for _ in range(2):
                steps.rewind()
                said[kind] = [steps.prefill().tolist(), *(steps.decode().tolist() for _ in range(8))]
    assert said["graph"] == said["one by one"]
    job = run.Job("tiny", config, dtype="fp16", device="cuda:0", energy_s=0)
    with (
        run.get("hf-graph").open(job) as session,
        pytest.raises(ChipError, match="use --dtype bf16 or --engine hf-eager"),
    ):
        session.measure(Scenario(2, 8, 4, "fp16"), 2)


def test_out_of_memory_is_one_line_and_the_next_point_runs():
    job = run.Job("two-layers", tinyllama(), dtype="fp16", device="cuda:0", energy_s=0)
    with run.get("hf-eager").open(job) as session:
        with pytest.raises(ChipError, match="out of memory: pp1024\\+tg2xb1048576 does not fit into"):
            session.measure(Scenario(2**20, 1024, 2, "fp16"), 2)
        assert session.measure(POINT, 2).status == "ok"


LOSES_ITS_CONTEXT = """
from tiny_models import bundled
from chip.lab import run
from chip.lab.run import session
from chip.types import Scenario
session.refuse_too_long = lambda *_: None
job = run.Job("opt", bundled("opt-125m"), dtype="fp16", device="cuda:0", energy_s=0)
with run.get("hf-eager").open(job) as opened:
    assert opened.measure(Scenario(1, 32, 2, "fp16"), 2).status == "ok"
    try:
        opened.measure(Scenario(1, 300, 2, "fp16"), 2)  # 256 positions
    except run.ContextLost as e:
        print("lost:", e)
"""


def test_a_lost_context_is_told_apart():
    """In a process of its own, since nothing can run in it afterwards."""
    path = os.pathsep.join([str(Path(run.__file__).parents[3]), str(Path(__file__).parent)])
    done = subprocess.run(
        [sys.executable, "-c", LOSES_ITS_CONTEXT],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert "lost: failed (" in done.stdout, done.stderr[-2000:]
    assert "the context is lost: CUDA error: device-side assert" in done.stdout


def test_points_leave_nothing_to_the_next():
    """Peak memory of a point, first and after others: sliding caches, graphs and workspaces are gone in between."""
    job = run.Job("tiny", bundled("mistral-7b-v0.1"), dtype="fp16", device="cuda:0", energy_s=0)
    with run.get("hf-graph").open(job) as session:
        peaks = [session.measure(Scenario(batch, 64, 4, "fp16"), 2).memory for batch in (2, 64, 2)]
    assert peaks[2]["allocated_peak_bytes"] == pytest.approx(peaks[0]["allocated_peak_bytes"], rel=0.01)
