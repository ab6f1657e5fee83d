"""Steps recorded on an H200: what is read from them exactly, and that it is what the model's config demands."""

import gzip
import json
import re
from collections import Counter

import pytest
import trace_fixture

from chip.decoders import library
from chip.files import artifact, codec, traces
from chip.lab.replay import chrome, foreign, signatures

NAMES = trace_fixture.names()


@pytest.fixture(params=NAMES)
def recorded(request, tmp_path):
    return request.param, traces.read(trace_fixture.unpack(request.param, tmp_path))[1]


def test_there_are_recorded_steps():
    assert set(NAMES) == {
        "bloom-560m-prefill-1x5",
        "bloom-560m-prefill-1x5-eager",
        "bloom-560m-prefill-8x512",
        "llama-3.1-8b-prefill-1x1024",
        "tinyllama-1.1b-decode-8x512",
    }


def test_what_is_read_is_what_was_reviewed(recorded):
    name, trace = recorded
    assert trace_fixture.table(trace) == trace_fixture.expected(name)


@pytest.mark.parametrize("name", trace_fixture.chrome_names())
def test_the_profilers_own_trace_is_read_as_a_foreign_one(name):
    trace = foreign.trace_of(trace_fixture.FOLDER / f"{name}.chrome.json.gz")
    assert trace_fixture.table(trace) == trace_fixture.expected(f"{name}.chrome")


@pytest.mark.parametrize("name", trace_fixture.chrome_names())
def test_capture_and_foreign_trace_of_one_step_hold_the_same(name):
    """Every launch and its tier, and the products but for one: the capture is from before the mend of the recorder and
    calls the head of one sequence a bmm, the profiler mm."""
    read, seen = trace_fixture.expected(name), trace_fixture.expected(f"{name}.chrome")
    assert read["launches"] == seen["launches"]
    for tier in read["tiers"]:
        assert read["tiers"][tier]["families"] == seen["tiers"][tier]["families"]
    shapes = [Counter(), Counter()]
    for found, table in zip(shapes, (read, seen)):
        for line in table["products"]:
            what, count = line.rsplit(": ", 1)
            found[what.split(" ", 1)[1]] += int(count)
    assert shapes[0] == shapes[1]


def test_a_chrome_trace_is_cut_to_its_last_pass(tmp_path):
    def event(cat, name, ts, dur, tid=1, **args):
        return {"ph": "X", "cat": cat, "name": name, "pid": 77, "tid": tid, "ts": ts, "dur": dur, "args": args}

    shapes = dict(zip(chrome.INPUTS, ([[2, 4], [4, 8]], [[4, 1], [1, 4]], ["float", "float"], ["", ""])))
    written = []
    for number, at in enumerate((1000.0, 2000.0)):
        written += [
            event("user_annotation", f"chip.pass#{number}", at, 500.0),
            event("gpu_user_annotation", f"chip.pass#{number}", at + 40, 3.5, 7),
            event("cpu_op", "aten::mm", at + 10, 20.0, **shapes, **{"Record function id": 5}),
            event("cuda_runtime", "cudaLaunchKernel", at + 15, 5.0, correlation=number + 1),
            event("kernel", "nvjet_a", at + 40, 3.5, 7, correlation=number + 1, stream=7, grid=[1, 1, 1], device=0),
        ]
    path = tmp_path / "chrome.json"
    path.write_text(json.dumps({"hostName": "somebody", "traceEvents": written}))
    cut = tmp_path / "m.chrome.json.gz"
    name, _ = trace_fixture.write(cut, {"traceEvents": trace_fixture.last_pass(path)}, lambda: foreign.trace_of(cut))
    assert name == "m.chrome"
    trace = foreign.trace_of(cut)
    assert [(k.name, trace.operators[k.operator].name) for k in trace.kernels] == [("nvjet_a", "aten::mm")]
    assert [e.duration_ns for e in trace.events] == [3500]
    text = gzip.decompress(cut.read_bytes()).decode()
    assert "somebody" not in text
    assert "77" not in text


def linears(config, rows, last):
    """(m, n, k) of every product with a weight, and how often a step computes it. `last`: rows that get logits."""
    h = config.get("hidden_size") or config["n_embed"]
    layers = config.get("num_hidden_layers") or config["n_layer"]
    heads = config["num_attention_heads"]
    found = Counter({(config["vocab_size"], last, h): 1})
    if config["model_type"] == "bloom":
        shapes = [(3 * h, h), (h, h), (4 * h, h), (h, 4 * h)]
    else:
        width = config.get("head_dim") or h // heads
        q, kv, inner = heads * width, config["num_key_value_heads"] * width, config["intermediate_size"]
        shapes = [(q, h), (kv, h), (kv, h), (h, q), (inner, h), (inner, h), (h, inner)]
    for out, inside in shapes:
        found[out, rows, inside] += layers
    return found


def test_products_with_weights_are_those_of_the_config(recorded):
    _, trace = recorded
    config = artifact.read_json(library.locate(trace.model)[0])
    calls = {}  # a product split along k is several kernels of one call
    for s in signatures.workload_of(trace).signatures:
        g = s.gemm
        if g is not None and g.k > 1 and (g.batch == 1 or not g.a.batch_stride):  # not angles; one weight for all
            shape = g.m, g.n * g.batch, g.k
            calls[s.kernel.operator] = shape, max(s.launches, calls.get(s.kernel.operator, (shape, 0))[1])
    found = Counter()
    for shape, launches in calls.values():
        found[shape] += launches
    rows = trace.batch * (trace.prompt if trace.phase == "prefill" else 1)
    assert found == linears(config, rows, trace.batch)


def test_every_launch_has_an_operator_and_a_tier(recorded):
    _, trace = recorded
    workload = signatures.workload_of(trace)
    assert sum(s.launches for s in workload.signatures) == len(trace.events)
    assert sum(s.total_ns for s in workload.signatures) == trace.gpu_ns
    assert all(s.tier for s in workload.signatures)
    alone = [trace.kernels[e.kernel].kind for e in trace.events if e.call < 0]
    assert alone == (["memcpy"] if trace.source == "eager" else []), "a scalar that torch.tensor itself copies"
    in_units = [m.key for unit in signatures.units_of(workload) for m in unit.members]
    assert sorted(in_units) == sorted(s.key for s in workload.signatures if s.tier)
    assert len(set(in_units)) == len(in_units)


def test_signatures_survive_their_file(recorded, tmp_path):
    _, trace = recorded
    workload = signatures.workload_of(trace)
    signatures.write(tmp_path / "k.json", workload, {}, ())
    again = signatures.read(tmp_path / "k.json")[1]
    assert codec.to_json(again) == codec.to_json(workload)


@pytest.mark.parametrize("path", sorted(trace_fixture.FOLDER.glob("*.gz")), ids=lambda p: p.name)
def test_fixtures_are_small_and_name_nobody(path):
    packed = path.read_bytes()
    assert len(packed) < trace_fixture.LARGEST
    text = gzip.decompress(packed).decode()
    assert not re.search(r'"/\w|/home/|/root|/tmp|host_?name', text)
