"""Anyone's trace: the same step as our own recorder, torch's profiler and Nsight Systems write it tells the same."""

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from chip.explain import breakdown
from chip.files import traces
from chip.lab.replay import foreign
from chip.show import cli
from chip.types import ChipError

ROOT = Path(__file__).parents[2]
VLLM = ROOT / "results" / "h200" / "traces" / "vllm" / "llama-3.1-8b-vllm-decode-8x512.json"
EAGER = Path(__file__).parent / "h200_traces" / "bloom-560m-prefill-1x5-eager.chrome.json.gz"
AS = ("llama-3.1-8b", "vllm", "decode", 8, 512, "bf16")


def own():
    return traces.read(VLLM)[1]


def launches():
    trace = own()
    return [(trace.kernels[e.kernel], e) for e in trace.events]


def as_chrome(path):
    """As /start_profile of a server whose steps are CUDA graphs: kernels without operators."""
    events = [
        {"ph": "X", "cat": "kernel", "name": k.name, "ts": e.start_ns / 1e3, "dur": e.duration_ns / 1e3, "tid": 7,
         "args": {"stream": e.stream, "grid": k.grid, "block": k.block, "correlation": 1}}
        for k, e in launches()
    ]  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()))
    return path


def as_sqlite(path):
    """The tables of `nsys export --type sqlite` that matter here."""
    names = list(dict.fromkeys(k.name for k, _ in launches()))
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL)")
        db.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate(names))
        axes = ", ".join(f"{of}{axis} INTEGER" for of in ("grid", "block") for axis in "XYZ")
        head = "start INTEGER, end INTEGER, streamId INTEGER, correlationId INTEGER, demangledName INTEGER"
        db.execute(f"CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL ({head}, {axes})")
        rows = [
            (e.start_ns, e.start_ns + e.duration_ns, e.stream, 1, names.index(k.name), *k.grid, *k.block)
            for k, e in launches()
        ]
        db.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({', '.join('?' * 11)})", rows)
        db.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, textId INTEGER, globalTid INTEGER)"
        )
    db.close()
    return path


def as_json(path):
    names = list(dict.fromkeys(k.name for k, _ in launches()))
    lines = [{"data": names}, {"TraceProcessEvent": {"startNs": "1"}}]
    for k, e in launches():
        kernel = {"demangledName": str(names.index(k.name)), "gridX": k.grid[0]}
        times = {"startNs": str(e.start_ns), "endNs": str(e.start_ns + e.duration_ns)}
        lines.append({"CudaEvent": {**times, "streamId": e.stream, "kernel": kernel}})
    path.write_text("\n".join(json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize(
    ("write", "name"), [(as_chrome, "t.pt.trace.json.gz"), (as_sqlite, "t.sqlite"), (as_json, "t.json")]
)
def test_a_trace_tells_the_same_whoever_wrote_it(write, name, tmp_path):
    found = breakdown.breakdown(breakdown.named(foreign.trace_of(write(tmp_path / name)), *AS), "h200")
    known = breakdown.breakdown(own(), "h200")
    assert found["steps"] == known["steps"] == 4
    theirs, ours = ({r["operator"]: r for r in one["rows"]} for one in (found, known))
    assert set(theirs) == set(ours)
    for operator, row in ours.items():
        assert theirs[operator]["us"] == pytest.approx(row["us"], rel=0.02, abs=5), (
            operator
        )  # a step ends in other small kernels
        assert theirs[operator]["expected_us"] == row["expected_us"]
    assert [w["operator"] for w in found["worth_work"]] == [w["operator"] for w in known["worth_work"]]


def test_rows_add_up_and_lie_under_their_roofs():
    found = breakdown.breakdown(own(), "h200")
    rows = {r["operator"]: r for r in found["rows"]}
    assert sum(r["share"] for r in rows.values()) == pytest.approx(1)
    assert found["step_us"] == pytest.approx(sum(r["us"] for r in rows.values()))
    layers, width, inner = 32, 4096, 14336
    assert rows["down_proj"]["flops"] == layers * 2 * 8 * width * inner
    assert rows["gate_up_proj"]["bound"] == "memory"
    assert 1 < rows["gate_up_proj"]["times_roof"] < 1.2
    assert found["expected_us"] == pytest.approx(found["step_us"], rel=0.03)
    assert len(found["worth_work"]) == breakdown.WORTH


def test_an_eager_trace_is_told_by_its_operators():
    rows = {r["operator"]: r for r in breakdown.breakdown(foreign.trace_of(EAGER), "h200")["rows"]}
    head = rows["mm 1x1024 1024x250880"]
    assert head["flops"] == 2 * 1024 * 250880
    assert head["bound"] == "memory"
    assert 1 < head["times_roof"] < 1.2
    assert rows["index_select 250880x1024 5"]["bytes"] == 2 * 5 * 1024 * 2


def test_another_model_than_ran_is_told(tmp_path):
    trace = breakdown.named(foreign.trace_of(as_chrome(tmp_path / "t.json.gz")), "qwen2.5-7b", *AS[1:])
    assert "its products are not those of the predicted step" in " ".join(breakdown.breakdown(trace, "h200")["notes"])


def test_graphs_that_nsys_did_not_trace_node_by_node(tmp_path):
    path = tmp_path / "t.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER)")
    db.close()
    with pytest.raises(ChipError, match="--cuda-graph-trace=node"):
        foreign.trace_of(path)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.json", b'{"data": ["k"]}\n{"CudaEvent": {"startNs": "1", "kernel": {"demangledName": "9"}}}', "x.json:2"),
        ("x.sqlite", b"SQLite format 3\x00 and no more", "not an export of Nsight Systems"),
        ("x.json.gz", b"nothing", "no traceEvents"),
    ],
)
def test_a_bad_trace_is_one_clear_line(name, content, told, tmp_path, capsys):
    (tmp_path / name).write_bytes(content)
    assert cli.main(["explain", str(tmp_path / name)]) == 2
    assert told in capsys.readouterr().err


def test_the_command_prints_the_table(tmp_path, capsys):
    path = as_chrome(tmp_path / "t.json.gz")
    words = ["--model", "llama-3.1-8b", "--batch", "8", "--prompt", "512"]
    assert cli.main(["explain", str(path), "--gpu", "h200", *words]) == 0
    out = capsys.readouterr().out
    assert "most time to lose\n1. attention" in out
    assert cli.main(["explain", str(path), "--json"]) == 0
    assert "told by" not in out
    assert json.loads(capsys.readouterr().out)["notes"][0].startswith("no operator was recorded")
