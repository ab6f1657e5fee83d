"""Kernels of one's own, one a line, and the traces of a CPU: what replay is asked to run."""

import json

import pytest

from chip.lab.replay import foreign, kernel_list, signatures
from chip.show.cli.replay import kind_of
from chip.types import ChipError

LINES = (
    {"op": "aten::addmm", "shapes": [[192], [8, 64], [64, 192]], "dtype": "float32", "count": 3, "us": 5.5},
    {"m": 8, "n": 64, "k": 32, "dtype": "bf16", "kernel": "nvjet_sm90"},
    {"operator": "mul", "input_shapes": [[8, 64], []], "Input type": ["c10::BFloat16", "Scalar"], "args": [None, 2.0]},
)


def write(path, *lines):
    path.write_text("\n".join(json.dumps(line) if isinstance(line, dict) else line for line in lines))
    return path


def test_a_list_is_a_workload(tmp_path):
    path = write(tmp_path / "mine.jsonl", *LINES)
    assert kind_of(path) == "list"
    workload = signatures.workload_of(kernel_list.trace_of(path))
    assert {(s.kernel.name, s.launches, s.median_ns) for s in workload.signatures} == {
        ("aten::addmm", 3, 5500), ("nvjet_sm90", 1, 0), ("aten::mul", 1, 0),
    }  # fmt: skip
    product = next(o for o in workload.operators if o.name == "aten::mm")
    assert [(t.shape, t.stride, t.dtype) for t in product.tensors] == [
        ((8, 32), (32, 1), "bfloat16"), ((32, 64), (64, 1), "bfloat16"),
    ]  # fmt: skip
    scaled = next(o for o in workload.operators if o.name == "aten::mul")
    assert scaled.args == ({"tensor": 0}, 2.0)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ({"op": "mm"}, "needs op and shapes, or m, n and k"),
        ({"m": 8, "n": 0, "k": 4}, "whole numbers from 1"),
        ({"m": 8, "n": 1, "k": 4, "dtype": "fp12"}, "dtype 'fp12' is not known"),
        ({"m": 8, "n": 1, "k": 4, "count": 0}, "count must be at least 1"),
        ({"m": 8, "n": 1, "k": 4, "count": 10**7}, "lower the counts"),
        ("{", "mine.jsonl:2"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, told):
    with pytest.raises(ChipError, match=r"mine\.jsonl:2") as e:
        kernel_list.trace_of(write(tmp_path / "mine.jsonl", LINES[0], line))
    assert told in str(e.value)


def test_the_operators_of_a_cpu_trace_that_call_no_others(tmp_path):
    def call(name, start, length, dims):
        inputs = {"Input Dims": dims, "Input type": ["float"] * len(dims), "Concrete Inputs": [""] * len(dims)}
        return {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": 1,
            "ts": start,
            "dur": length,
            "args": inputs,
        }

    events = [call("aten::linear", 0, 10, [[8, 4], [2, 4]]), call("aten::addmm", 1, 8, [[2], [8, 4], [4, 2]])]
    events.append(call("aten::relu", 20, 3, [[8, 2]]))
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"traceEvents": events}))
    trace = foreign.trace_of(path)
    assert trace.source == "operators"
    assert [(k.name, k.kind) for k in trace.kernels] == [("aten::addmm", "operator"), ("aten::relu", "operator")]
    assert [e.duration_ns for e in trace.events] == [8000, 3000]
    path.write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(ChipError, match="neither a kernel nor an operator"):
        foreign.trace_of(path)
