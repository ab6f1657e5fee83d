"""What only a GPU can show: kernels tied to their operators, cuBLAS called as torch calls it, graphs recorded."""

import json

import pytest

torch = pytest.importorskip("torch")

from chip import cli, stats, traces  # noqa: E402
from chip.measure import capture  # noqa: E402
from chip.measure.device import open_device  # noqa: E402
from chip.measure.kineto import Looked, passes  # noqa: E402
from chip.measure.recorder import Recorder  # noqa: E402
from chip.measure.replay import cublas, cudart  # noqa: E402
from chip.measure.replay.unit import Settings, replay_unit  # noqa: E402
from chip.replay import gemm, signatures  # noqa: E402
from chip.traces import Trace  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BLANK = Trace("made up", "", "forward", 0, 0, "bf16", "", "", (), (), ())


def random(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)


def cases():
    yield "linear", lambda: (random(64, 1024), random(3072, 1024).t()), torch.mm
    yield "one token", lambda: (random(1, 1024), random(3072, 1024).t()), torch.mm
    yield "bias", lambda: (random(3072), random(40, 1024), random(3072, 1024).t()), torch.addmm
    yield "batched", lambda: (random(16, 40, 64), random(16, 64, 40)), torch.bmm


@pytest.mark.parametrize("case", list(cases()), ids=lambda c: c[0])
def test_cublas_called_directly_computes_the_same_with_the_same_kernel(case):
    _, make, func = case
    device, tensors = open_device("cuda:0"), make()
    recorder = Recorder(device)
    with torch.inference_mode(), recorder.mode():
        wanted = func(*tensors)
    asked = gemm.gemm_of(recorder.calls[-1])
    into = torch.empty_like(wanted)
    call = cublas.product(asked, tensors, into)
    call()
    torch.testing.assert_close(into, wanted)
    theirs, ours = passes([Looked(lambda: func(*tensors), 1), Looked(call, 1)], device)
    assert [e.name for e in ours[0]] == [e.name for e in theirs[0]]


def test_the_runtime_copies_and_fills():
    a, b = torch.arange(1000, device="cuda"), torch.zeros(1000, dtype=torch.int64, device="cuda")
    cudart.copy(b, a, 8000, cudart.KINDS["DtoD"])()
    assert torch.equal(a, b)
    cudart.fill(b, 4000)()
    assert int(b[:500].sum()) == 0
    assert int(b[500]) == 500


@pytest.mark.parametrize("graph", [False, True])
def test_a_step_is_recorded_and_every_kernel_replayed(graph):
    device = open_device("cuda:0")
    # as in a model, sums stay near one: softmax takes twice as long over values in the thousands
    w, v = random(4096, 1024) / 32, random(1024, 4096) / 64
    x = random(64, 1024)

    def step():
        for _ in range(8):
            torch.softmax(torch.relu(x @ w.t()) @ v.t(), -1)

    with torch.inference_mode():
        trace = capture.capture(capture.Subject(step, graph=graph), device, BLANK)
    assert trace.source == ("graph" if graph else "eager")
    assert "graph" in trace.timings
    workload = signatures.workload_of(trace)
    assert len(trace.events) >= 32
    assert all(s.tier for s in workload.signatures)
    assert {s.tier for s in workload.signatures} >= {2, 3}
    rows = []
    for unit in signatures.units_of(workload):
        for found, member in zip(replay_unit(unit, device, Settings(runs=20)), unit.members):
            assert found.status == "ok", found.reason
            assert found.name == member.kernel.name
            assert found.gap_ns is not None
            assert (found.again_ns is not None) == bool(unit.before), found.flags
            captured = [e.duration_ns for e in trace.events if trace.kernels[e.kernel] == member.kernel]
            rows.append((unit.operator.name, member.kernel.name[:60], member.kernel.grid, captured, found))
    said = "\n".join(
        f"{op} {name} {grid}: captured {captured}, after others {f.median_ns:.0f}, again {f.again_ns}, "
        f"cold {f.cold_ns:.0f}, gap {f.gap_ns:.0f}"
        for op, name, grid, captured, f in rows
    )
    for *_, captured, found in rows:
        if len(captured) == 1:
            continue  # of the first layer: the device was at rest before, and its code far away
        assert found.median_ns == pytest.approx(stats.median(captured), rel=0.3, abs=1000), said


def test_a_model_from_capture_to_report(tmp_path):
    pytest.importorskip("transformers")
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000,
    }  # fmt: skip
    (tmp_path / "m.json").write_text(json.dumps(config))
    words = ["--engine", "hf-graph", "--phase", "decode", "--prompt", "64", "--batch", "2", "--runs", "20"]
    assert cli.main(["replay", str(tmp_path / "m.json"), *words, "--output-dir", str(tmp_path / "out"), "--force"]) == 0
    report = json.loads((tmp_path / "out" / "comparison_report.json").read_text())
    assert report["coverage"]["launches"] > 0.98
    assert report["full_model"] == "graph"
    _, trace = traces.read(tmp_path / "out" / "trace.json")
    assert not trace.missing
