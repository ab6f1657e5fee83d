"""Capture, replay and explain for real on the CPU, and the parts of them that need torch."""

import json
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from test_replay_workers import FRAGILE  # noqa: E402

from chip.files import traces  # noqa: E402
from chip.files.traces import Operator, TensorArg, Trace  # noqa: E402
from chip.lab.measure import capture, disturbance  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.disturbance import Reading  # noqa: E402
from chip.lab.measure.recorder import Recorder  # noqa: E402
from chip.lab.measure.replay import pool, worker  # noqa: E402
from chip.lab.measure.replay.arguments import PITCH, lookup, rotating  # noqa: E402
from chip.lab.measure.replay.unit import ReplaySettings  # noqa: E402
from chip.lab.measure.stopping import StopRule  # noqa: E402
from chip.lab.replay import gemm, results, signatures  # noqa: E402
from chip.lab.replay.results import Replay  # noqa: E402
from chip.lab.replay.rotation import Rotation  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.types import ChipError  # noqa: E402

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
BLOOM = {"architectures": ["BloomForCausalLM"], "model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 4,
         "vocab_size": 256}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(capture, "RULE", StopRule(0.5, 3, 3, 1.0))
    monkeypatch.setattr(capture, "WARM_S", 0.0)


def config(tmp_path, raw=TINY):
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(raw))
    return str(path)


def recorded(step):
    recorder = Recorder(open_device("cpu"))
    with torch.inference_mode(), recorder.mode():
        step()
    return [c for i, c in enumerate(recorder.calls) if i not in recorder.views]


# -- recording -------------------------------------------------------------------------------------------------------
def test_composites_are_taken_apart_and_views_left_out():
    linear = torch.nn.Linear(16, 32)
    x = torch.randn(3, 4, 16)
    found = recorded(lambda: torch.nn.functional.gelu(linear(x), approximate="tanh"))
    assert [c.name for c in found] == ["aten::addmm", "aten::gelu"]
    product, activation = found
    assert [(t.shape, t.stride) for t in product.tensors] == [((32,), (1,)), ((12, 16), (16, 1)), ((16, 32), (1, 16))]
    assert activation.kwargs == {"approximate": "tanh"}
    assert product.outputs == (12 * 32 * 4,)


def test_what_was_just_written_is_near_and_what_comes_first_is_far():
    x = torch.randn(64)
    add, mul = recorded(lambda: (x + 1) * 2)
    assert add.tensors[0].reuse_bytes is None
    assert mul.tensors[0].reuse_bytes == 0


def test_tensors_of_one_allocation_keep_their_places():
    base = torch.randn(8, 64)
    (found,) = recorded(lambda: torch.mul(base[:, 32:], base[:, :32]))
    first, second = found.tensors
    assert first.memory == second.memory
    assert first.offset_bytes - second.offset_bytes == 32 * 4
    assert first.stride == (64, 1)


def test_indices_keep_their_range():
    table, ids = torch.randn(50, 8), torch.tensor([3, 41, 7])
    (found,) = recorded(lambda: torch.nn.functional.embedding(ids, table))
    assert (found.tensors[1].low, found.tensors[1].high) == (3, 41)


@pytest.mark.parametrize("graph", [True, False])
def test_a_step_that_asks_whether_it_is_captured_is_recorded_as_the_graph_runs_it(graph, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # without a GPU it raises
    x = torch.randn(8)

    def step():
        return torch.neg(x) if torch.cuda.is_current_stream_capturing() else torch.abs(x)

    blank = Trace("m", "", "forward", 0, 0, "fp32", "", "", (), (), ())
    trace = capture.capture(capture.CaptureSubject(step, graph=graph), open_device("cpu"), blank)
    assert [o.name for o in trace.operators] == ["aten::neg" if graph else "aten::abs"]
    assert not torch.cuda.is_current_stream_capturing()


# -- matrix products: what is asked of cuBLAS is what the operator computed ------------------------------------------
def column_major(tensor, matrix, rows, cols, batch):
    """The operand as cuBLAS reads it from the tensor's memory."""
    shape, ld = ((cols, rows) if matrix.transposed else (rows, cols)), matrix.ld
    flat = torch.as_strided(tensor, (batch, *shape), (matrix.batch_stride, 1, ld), tensor.storage_offset())
    return flat.transpose(1, 2) if matrix.transposed else flat


def products():
    x, w = torch.randn(5, 24), torch.randn(40, 24)
    fused = torch.randn(7, 4, 3, 8)  # tokens, heads, qkv, width: BLOOM's
    q, k = fused[:, :, 0].transpose(0, 1), fused[:, :, 1].permute(1, 2, 0)
    yield "linear", (x, w.t()), torch.mm
    yield "plain", (x, torch.randn(24, 40)), torch.mm
    yield "transposed", (torch.randn(24, 5).t(), w.t()), torch.mm
    yield "sliced", (torch.randn(5, 50)[:, :24], w.t()), torch.mm
    yield "one row", (torch.randn(1, 24), w.t()), torch.mm
    yield "batched", (torch.randn(6, 5, 8), torch.randn(6, 8, 3)), torch.bmm
    yield "heads", (torch.randn(4, 7, 7), q, k), lambda c, a, b: torch.baddbmm(c, a, b, beta=0.0, alpha=1.0)
    yield "bias", (torch.randn(40), x, w.t()), torch.addmm


@pytest.mark.parametrize("case", list(products()), ids=lambda c: c[0])
def test_recovered_product_computes_the_same(case):
    _, tensors, func = case
    (found,) = recorded(lambda: func(*tensors))
    asked = gemm.gemm_of(found)
    assert isinstance(asked, gemm.Gemm)
    a = column_major(tensors[asked.a.tensor], asked.a, asked.m, asked.k, asked.batch)
    b = column_major(tensors[asked.b.tensor], asked.b, asked.k, asked.n, asked.batch)
    made = torch.bmm(a, b)  # m x n, column-major: the row-major result transposed
    if asked.bias is not None:
        made = made + tensors[asked.bias][None, :, None]
    torch.testing.assert_close(made.transpose(1, 2).reshape(-1), func(*tensors).reshape(-1))


# -- arguments made anew ---------------------------------------------------------------------------------------------
def test_buffers_have_the_shape_stride_sharing_and_range_that_were_recorded():
    base, ids = torch.randn(8, 64), torch.tensor([[3, 9]])
    (mul,) = recorded(lambda: torch.mul(base[:, 32:], base[:, :32]))
    held = rotating(mul, torch.device("cpu"), Rotation({0: 3}))
    first, second = held.tensor(0, 0), held.tensor(1, 0)
    assert first.stride() == (64, 1)
    assert first.data_ptr() - second.data_ptr() == 128
    assert held.tensor(0, 1).data_ptr() != first.data_ptr()
    assert held.tensor(0, 3).data_ptr() == first.data_ptr()
    assert (held.tensor(0, 1).data_ptr() - first.data_ptr()) // PITCH % 2 == 1
    assert torch.equal(held.call(0)(), first * second)
    (embedding,) = recorded(lambda: torch.nn.functional.embedding(ids, base.reshape(64, 8)))
    again = rotating(embedding, torch.device("cpu"), Rotation({0: 1, 1: 1})).tensor(1, 0)
    assert 3 <= int(again.min()) <= int(again.max()) <= 9


def test_copies_begin_at_different_places_modulo_powers_of_two():
    """Of 2 MiB each, an even pitch would put all of them at the same one."""
    x = TensorArg((512, 1024), (1024, 1), "float32", 0)
    held = rotating(Operator("aten::neg", "default", (x,), ({"tensor": 0},)), torch.device("cpu"), Rotation({0: 16}))
    assert len({held.tensor(0, turn).data_ptr() % 2**21 for turn in range(16)}) == 16


def test_touching_changes_nothing():
    (found,) = recorded(lambda: torch.randn(10).neg())[1:]
    held = rotating(found, torch.device("cpu"), Rotation({0: 1}))
    before = held.tensor(0, 0).clone()
    held.touch(0, 0)()
    assert torch.equal(held.tensor(0, 0), before)


@pytest.mark.parametrize(
    ("name", "overload", "args", "message"),
    [
        ("aten::no_such_thing", "", (), "has no such operator to call"),
        ("os::system", "default", ("rm",), "has no such operator to call"),
        ("aten::from_file", "default", ("x",), "has no such operator to call"),
        ("aten::save", "default", ({"tensor": 0}, "tanh"), "has no such operator to call"),
        ("aten::neg", "wrong", (), "has no such overload"),
    ],
)
def test_only_operators_of_aten_are_called(name, overload, args, message):
    with pytest.raises(ChipError, match=message):
        lookup(Operator(name, overload, (), args))


def test_text_arguments_are_only_those_that_operators_know():
    x = TensorArg((4,), (1,), "float32", 0)
    bad = Operator("aten::gelu", "default", (x,), ({"tensor": 0},), {"approximate": "/etc/passwd"})
    with pytest.raises(ChipError, match="text argument"):
        rotating(bad, torch.device("cpu"), Rotation({0: 1})).call(0)


def test_arguments_listed_by_the_profiler_find_their_overload():
    a, b, c = (TensorArg((4, 4), (4, 1), "float32", i) for i in range(3))
    found = Operator("aten::addmm", "", (a, b, c), ({"tensor": 0}, {"tensor": 1}, {"tensor": 2}, 1, 2))
    held = rotating(found, torch.device("cpu"), Rotation({0: 1, 1: 1, 2: 1}))
    x, y, z = (held.tensor(i, 0) for i in range(3))
    torch.testing.assert_close(held.call(0)(), torch.addmm(x, y, z, alpha=2))


# -- the whole way ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("engine", "phase"), [("hf-eager", "decode"), ("hf-graph", "prefill"), ("hf-graph", "decode")])
def test_capture_of_each_step(tmp_path, engine, phase, capsys):
    path = tmp_path / "trace.json"
    words = ["--engine", engine, "--phase", phase, "--prompt", "8", "--batch", "2", "--device", "cpu", "-o", str(path)]
    assert cli.main(["capture", config(tmp_path), *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["title"] == f"tiny {engine} {phase} 2 x 8"
    assert said["tiers"]["tier3_framework"]["launch_share"] == 1.0
    _, trace = traces.read(path)
    names = [o.name for o in trace.operators]
    assert "aten::mm" in names
    rows = 2 if phase == "decode" else 16
    gate = [o for o in trace.operators if o.name == "aten::mm" and o.tensors[1].shape == (64, 128)]
    assert [gemm.gemm_of(o).n for o in gate] == [rows]
    assert sum(trace.kernels[e.kernel].operator == trace.operators.index(gate[0]) for e in trace.events) == 4
    assert ("aten::cat" if engine == "hf-eager" else "aten::index_copy_") in names


def test_bloom_is_recorded_without_cache(tmp_path, capsys):
    path = tmp_path / "trace.json"
    words = ["--engine", "hf-graph", "--prompt", "5", "--device", "cpu", "-o", str(path)]
    assert cli.main(["capture", config(tmp_path, BLOOM), *words]) == 0
    assert "cache: its position biases are made on the host" in capsys.readouterr().out
    _, trace = traces.read(path)
    assert {"aten::baddbmm", "aten::addmm"} <= {o.name for o in trace.operators}
    assert cli.main(["capture", config(tmp_path, BLOOM), *words, "--phase", "decode"]) == 2
    assert "has no decode step" in capsys.readouterr().err


def test_model_to_report_in_one_go_and_a_file_without_transformers(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out"
    words = ["--device", "cpu", "--prompt", "8", "--runs", "5", "--warmup", "1", "--output-dir", str(folder)]
    assert cli.main(["replay", config(tmp_path), *words]) == 0
    out = capsys.readouterr().out
    assert "replayed              100.0 % of launches, 100.0 % of GPU time" in out
    report = json.loads((folder / "comparison_report.json").read_text())
    total = sum(r["us"] for r in report["breakdown"] if not r.get("total"))
    assert total == pytest.approx(report["full_model_inference_us"], abs=0.01)
    assert report["tier_breakdown"]["tier3_framework"]["same_kernel_share"] == 1.0
    _, replay = results.read(folder / "replay.json")
    assert all(k.status == "ok" and len(k.samples_ns) == 5 and k.cold_ns for k in replay.kernels)
    assert not (folder / "replay.json.jsonl").exists()

    # an edited workload, elsewhere: one kernel, no transformers
    path = folder / "kernel_signatures.json"
    raw = json.loads(path.read_text())
    kept = [s for s in raw["data"]["signatures"] if s["kernel"]["name"].startswith("aten::mm")][:1]
    raw["data"]["signatures"] = kept
    alone = tmp_path / "alone.json"
    alone.write_text(json.dumps(raw))
    assert alone.stat().st_size < 100_000
    monkeypatch.setitem(sys.modules, "transformers", None)
    words = ["--device", "cpu", "--runs", "3", "--output-dir", str(tmp_path / "there"), "--json"]
    assert cli.main(["replay", str(alone), *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)["kernels"]
    assert row["kernel"] == "aten::mm.default"
    assert row["alone_us"] > 0
    assert row["placed_us"] is None


def test_a_capture_and_a_worker_beside_others_say_so(tmp_path, monkeypatch, capsys):
    looks = (Reading(*(n * each for each in (1.0, 1.9, 0.1, 0.0, 0.4))) for n in range(100))
    monkeypatch.setattr(disturbance, "read", lambda: next(looks))
    path = tmp_path / "trace.json"
    assert cli.main(["capture", config(tmp_path), "--device", "cpu", "--prompt", "8", "-o", str(path)]) == 0
    first = "DISTURBED: other processes used 1.5 of 2 CPUs while it was timed; capture again when the machine is idle"
    assert capsys.readouterr().out.startswith(first)
    found = worker.units_beside([], open_device("cpu"), ReplaySettings())
    assert found == []
    unit = signatures.units_of(signatures.workload_of(traces.read(path)[1]))[0]
    ((kernel,),) = worker.units_beside([unit], open_device("cpu"), ReplaySettings(warmup=1, runs=3))
    assert kernel.flags == ("disturbed: other processes used 1.5 of 2 CPUs while it was timed",)
    shown = Replay("m", "CPU", "hot", 1, 3, (kernel,))
    assert shown.disturbed == "other processes used 1.5 of 2 CPUs while it was timed (1 of 1 kernels)"


def test_an_interrupted_model_goes_on_with_its_own_step_only(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "out"
    words = ["replay", config(tmp_path), "--device", "cpu", "--prompt", "8", "--runs", "3", "--output-dir", str(folder)]
    words += ["-o", str(folder / "mine.json")]

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pool, "command", lambda device: [sys.executable, "-c", FRAGILE])  # nothing is asked of it
        with monkeypatch.context() as also:
            also.setattr(pool, "replay_units", interrupted)
            assert cli.main(words) == 130
        before = (folder / "trace.json").read_bytes()
        for other in (["--dtype", "bf16"], ["--no-cache"], ["--sdpa", "math"], ["--runs", "4"]):
            changed = [w for i, w in enumerate(words) if not (w == other[0] or words[i - 1] == other[0])]
            assert cli.main([*changed, *other]) == 2
            assert "mine.json.jsonl: was begun for another replay" in capsys.readouterr().err
    assert cli.main(words) == 0
    assert f"replay: going on with {folder / 'trace.json'}" in capsys.readouterr().err
    assert (folder / "trace.json").read_bytes() == before


def test_a_prompt_beyond_the_positions_is_one_line(tmp_path, capsys):
    learned = {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2,
        "n_positions": 16, "vocab_size": 64,
    }  # fmt: skip
    words = ["capture", config(tmp_path, learned), "--device", "cpu", "-o", str(tmp_path / "trace.json")]
    assert cli.main([*words, "--prompt", "17"]) == 2
    assert "--prompt 17: the model has 16 positions; shorten it" in capsys.readouterr().err.splitlines()[-1]
    assert cli.main([*words, "--prompt", "16"]) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["capture", "tinyllama-1.1b", "--engine", "nobody"], "steps of hf-eager, hf-graph, native can be recorded"),
        (["capture", "tinyllama-1.1b", "--batch", "0"], "--batch must be between 1 and 2^20, got 0"),
        (["capture", "tinyllama-1.1b", "--energy-seconds", "-1"], "--energy-seconds must be between 0 and 3600"),
        (["capture", "tinyllama-1.1b", "-o", "."], ".: is a folder, a file was expected"),
        (["replay", "trace.json", "--energy-seconds", "nan"], "--energy-seconds must be between 0 and 3600, got nan"),
        (["replay", "trace.json", "--timeout", "nan"], "--timeout above 0"),
        (["capture", "tinyllama-1.1b", "--sdpa", "fast"], "--sdpa fast is not known"),
        (["capture", "tinyllama-1.1b", "--chrome", "c.json"], "there is no such trace of a CPU"),
        (["replay", "trace.json", "-o", "."], ".: is a folder, a file was expected"),
        (["replay", "tinyllama-1.1b", "--tier", "4"], "tiers are 1, 2 and 3"),
        (["replay", "tinyllama-1.1b", "--runs", "1"], "--runs must be at least 3"),
        (["replay", "tinyllama-1.1b", "--plot", "w.txt"], "w.txt: a plot is written as .png, .svg or .pdf"),
        (["replay", "no-such-file.json"], "no-such-file.json: no such file"),
    ],
)
def test_bad_input_is_one_line(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*words, "--device", "cpu"]) == 2
    err = capsys.readouterr().err
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err
