"""Traces: what a file may hold, and what the profiler's own files are refused for."""

import gzip
import json
from dataclasses import replace

import pytest

from chip.files import traces
from chip.files.traces import Kernel, KernelEvent, Operator, TensorArg, Timing, Trace
from chip.lab.replay import chrome, foreign
from chip.types import ChipError

X = TensorArg((4, 8), (8, 1), "bfloat16", 0)
W = TensorArg((8, 16), (1, 8), "bfloat16", 1)
MM = Operator("aten::mm", "default", (X, W), ({"tensor": 0}, {"tensor": 1}), {}, (128,))
TRACE = Trace(
    "tiny", "hf-graph", "decode", 8, 512, "bf16", "Some GPU", "graph", (MM,),
    (Kernel("nvjet_a", "kernel", (1, 2, 3), (128, 1, 1), 0, 0, 0), Kernel("Memset", "memset", size_bytes=64)),
    (KernelEvent(0, 0, 1000, 7, 0), KernelEvent(1, 1500, 500, 7, -1), KernelEvent(0, 1800, 400, 8, 1)),
    {"graph": Timing((3000, 3100), "events")}, {}, 2**20,
)  # fmt: skip


def test_a_trace_reads_back_as_it_was_written(tmp_path):
    path = tmp_path / "trace.json"
    ident = traces.write(path, TRACE, {"torch": "2.11"})
    held, trace = traces.read(path)
    assert trace == TRACE
    assert held.id == ident
    assert held.environment == {"torch": "2.11"}


def test_busy_time_counts_what_ran_together_once():
    assert TRACE.gpu_ns == 1900
    assert TRACE.overlap_ns == 200  # 1800 to 2000 on two streams
    assert TRACE.busy_ns == 1700


def test_a_step_at_the_boost_clock_was_slowed_by_no_load():
    graph = Timing((3000,), "events", clock_hz=1.97e9)
    assert replace(TRACE, timings={"graph": graph}).at_full_clock(1.98e9)
    assert not replace(TRACE, timings={"graph": graph}).at_full_clock(2.1e9)
    assert not TRACE.at_full_clock(1.98e9)  # nobody knows


def test_sizes_of_tensors():
    assert X.span_bytes == X.touched_bytes == 64
    expanded = TensorArg((4, 8), (0, 1), "float32", 0)
    assert expanded.touched_bytes == 32
    assert MM.touched_bytes == 64 + 256 + 128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["events"].append([9, 0, 1, 7, 0]), "events[3] is of kernel 9, there are 2"),
        (lambda d: d["events"].append([0, 0, -1, 7, 0]), "events[3] has a negative duration"),
        (lambda d: d["events"].append([0, 0]), "events[3]: expected 5 items, got 2"),
        (lambda d: d["events"].append("x"), "events[3]: expected a list, got str 'x'"),
        (lambda d: d["kernels"][0].update(kind="cake"), "kernels[0]: kind 'cake' is not known"),
        (lambda d: d["kernels"][0].update(operator=4), "kernels[0]: is of operator 4, there are 1"),
        (lambda d: d["operators"][0]["tensors"][0].update(dtype="int3"), "tensors[0] has dtype 'int3'"),
        (lambda d: d["operators"][0]["tensors"][0].update(stride=[1]), "needs a stride for each size"),
        (lambda d: d["operators"][0].update(args=[{"tensor": 7}]), "names tensor 7, there are 2"),
        (lambda d: d.update(extra=1), "unknown field 'extra'"),
    ],
)
def test_a_broken_trace_is_refused_by_the_name_of_its_fault(tmp_path, change, message):
    path = tmp_path / "trace.json"
    traces.write(path, TRACE, {})
    raw = json.loads(path.read_text())
    change(raw["data"])
    path.write_text(json.dumps(raw))
    with pytest.raises(ChipError) as error:
        traces.read(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


# -- Chrome traces ----------------------------------------------------------------------------------------------------
def op(name, ts, dur, dims, kinds, values=None):
    args = {"Input Dims": dims, "Input type": kinds, "Concrete Inputs": values or [""] * len(dims)}
    return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def launch(ts, correlation):
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts, "dur": 1,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(name, ts, dur, correlation, cat="kernel", **args):
    given = {"correlation": correlation, "stream": 7, "grid": [2, 1, 1], "block": [128, 1, 1], **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur, "args": given}


BF16 = "c10::BFloat16"
EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 1},
    op("aten::linear", 10, 50, [[4, 8], [16, 8], []], [BF16, BF16, ""]),
    op("aten::mm", 20, 30, [[4, 8], [8, 16]], [BF16, BF16]),
    launch(25, 1),
    op("aten::add_", 70, 10, [[4, 16], [], []], [BF16, "Scalar", "Scalar"], ["", "0.5", "1"]),
    launch(75, 2),
    launch(90, 3),
    kernel("nvjet_hsh", 100, 2.5, 1),
    kernel("void at::native::vectorized_elementwise_kernel<4>", 103, 1.25, 2),
    kernel("Memset (Device)", 105, 1, 3, "gpu_memset", bytes=64, grid=None, block=None),
]


def write(path, events=EVENTS, text=None):
    path.write_text(text if text is not None else json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_a_foreign_trace_gives_operators_and_kernels(tmp_path):
    trace = foreign.trace_of(write(tmp_path / "theirs.json"))
    assert [(k.name, k.operator, k.kind) for k in trace.kernels] == [
        ("nvjet_hsh", 0, "kernel"),
        ("void at::native::vectorized_elementwise_kernel<4>", 1, "kernel"),
        ("Memset (Device)", None, "memset"),
    ]
    assert [o.name for o in trace.operators] == ["aten::mm", "aten::add_"]
    assert trace.operators[0].tensors[1] == TensorArg((8, 16), (16, 1), "bfloat16", 1)
    assert trace.operators[1].args == ({"tensor": 0}, 0.5, 1)
    assert [e.duration_ns for e in trace.events] == [2500, 1250, 1000]
    assert [e.start_ns for e in trace.events] == [0, 3000, 5000]
    assert trace.kernels[2].size_bytes == 64


def test_only_the_last_marked_step_counts(tmp_path):
    steps = [
        {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{i}", "pid": 1, "tid": 1, "ts": ts, "dur": dur}
        for i, (ts, dur) in enumerate([(0, 60), (65, 20)])
    ]
    trace = foreign.trace_of(write(tmp_path / "steps.json", EVENTS + steps))
    assert [trace.kernels[e.kernel].name for e in trace.events] == ["void at::native::vectorized_elementwise_kernel<4>"]


def test_packed_and_bare_lists_are_read_too(tmp_path):
    packed = tmp_path / "trace.json.gz"
    packed.write_bytes(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode()))
    bare = write(tmp_path / "bare.json", text=json.dumps(EVENTS))
    assert len(chrome.read(packed).device) == len(chrome.read(bare).device) == 3


def test_events_across_the_edges_of_chunks_are_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome, "CHUNK", 37)
    assert len(list(chrome.events(write(tmp_path / "t.json")))) == len(EVENTS)


HALF = json.dumps({"traceEvents": EVENTS})[:700]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no traceEvents: not a Chrome trace"),
        ('{"a": 1}', "has no traceEvents: not a Chrome trace"),
        (HALF, "is not JSON or is cut short after"),
        ('{"traceEvents": [', "is cut short: traceEvents has no end"),
        ('{"traceEvents": [1]}', "event 0 is no object"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', "event 0 is not one of the torch profiler (KeyErr"),
        ('{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": "soon"}]}', "event 0 is not one of"),
        ('{"traceEvents": [{"ph": "X", "cat": "cuda_runtime", "ts": 1}]}', "event 0 is not one of the torch profiler"),
        ('{"traceEvents": [' + '{"a":[' * 100_000 + "]}" * 100_000 + "]}", "event 0 is too deeply nested"),
        ('{"traceEvents": [{"name": "' + "x" * 6_000_000 + '"}]}', "cut short after 0 events"),
        ("{}" * 3_000_000, "has no traceEvents"),
    ],
    ids=["empty", "no list", "cut", "no end", "number", "no name", "no time", "no thread", "deep", "long", "no start"],
)  # fmt: skip
def test_hostile_traces_are_refused_in_one_line(tmp_path, text, message):
    with pytest.raises(ChipError) as error:
        chrome.read(write(tmp_path / "bad.json", text=text))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.json"
    with open(path, "wb") as f:
        f.truncate(10 * 10**9)  # sparse: takes no room
    with pytest.raises(ChipError, match="is larger than 4096 MiB"):
        chrome.read(path)


def test_a_bomb_stops_at_the_same_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome, "MAX_FILE", 2**22)
    path = tmp_path / "bomb.json.gz"
    many = b",".join([json.dumps(EVENTS[0]).encode()] * 200_000)
    path.write_bytes(gzip.compress(b'{"traceEvents": [' + many + b"]}", 1))
    with pytest.raises(ChipError, match="is larger than"):
        chrome.read(path)


def test_too_many_events_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(chrome, "MAX_KEPT", 5)
    with pytest.raises(ChipError, match="more than 5 events of interest"):
        chrome.read(write(tmp_path / "many.json"))


def test_a_trace_without_kernels_says_so(tmp_path):
    with pytest.raises(ChipError, match="holds neither a kernel nor an operator"):
        foreign.trace_of(write(tmp_path / "cpu.json", EVENTS[:1]))
