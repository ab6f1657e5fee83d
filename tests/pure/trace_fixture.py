"""Real traces of an H200 as fixtures: NAME.trace.json.gz, and NAME.expected.json with what is to be read from it.

From folders that `chip replay MODEL --output-dir FOLDER` wrote, with the tables printed for review:

  PYTHONPATH=src python tests/pure/trace_fixture.py FOLDER ...

Where a folder has a chrome.json (`chip capture --chrome`), its last pass becomes NAME.chrome.json.gz, read as a foreign
trace, with NAME.chrome.expected.json.
"""

import gzip
import json
import sys
from pathlib import Path

from chip.files import output, traces
from chip.lab.replay import chrome, foreign, signatures

FOLDER = Path(__file__).parent / "h200_traces"
KEPT = ("chip", "torch", "cuda", "driver", "device", "versions")  # of the environment
LARGEST = 200_000  # bytes, compressed
PASS = "chip.pass#"  # annotation around each profiled run of the step
EVENT = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
ARGS = ("correlation", "stream", "grid", "block", "bytes", *chrome.INPUTS)


def names():
    return sorted(p.name.removesuffix(".trace.json.gz") for p in FOLDER.glob("*.trace.json.gz"))


def chrome_names():
    return sorted(p.name.removesuffix(".chrome.json.gz") for p in FOLDER.glob("*.chrome.json.gz"))


def unpack(name, folder):
    """The fixture as the file that `chip capture` wrote."""
    path = folder / "trace.json"
    path.write_bytes(gzip.decompress((FOLDER / f"{name}.trace.json.gz").read_bytes()))
    return path


def expected(name):
    return json.loads((FOLDER / f"{name}.expected.json").read_text())


def table(trace):
    """What is read from a trace, small enough to be looked through."""
    workload = signatures.workload_of(trace)
    return {
        "title": trace.title,
        "source": trace.source,
        "launches": len(trace.events),
        "operators": len(trace.operators),
        "units": len(signatures.units_of(workload)),
        "tiers": {
            name: {"launches": share.launches, "unique": share.unique, "families": dict(sorted(share.families.items()))}
            for name, share in signatures.shares(workload).items()
        },
        "products": sorted(_product(s, workload.operators) for s in workload.signatures if s.gemm is not None),
        "kernels": sorted(_kernel(s, workload.operators) for s in workload.signatures),
    }


def _product(s, operators):
    g = s.gemm
    ops = "".join("T" if x.transposed else "N" for x in (g.a, g.b))
    shape = f"{g.batch} x {g.m} x {g.n} x {g.k}"
    lds = f"ld {g.a.ld} {g.b.ld} {g.c.ld}"
    scale = f"alpha {g.alpha:g} beta {g.beta:g} {g.epilogue}".strip()
    called = operators[s.kernel.operator].name
    return f"{called}[{s.kernel.position}] {g.api} {g.dtype} {ops} {shape} {lds} {scale}: {s.launches}"


def _kernel(s, operators):
    called = "-" if s.kernel.operator is None else operators[s.kernel.operator].name
    return f"{called}[{s.kernel.position}] tier {s.tier} {s.family} grid {s.kernel.grid} {s.key}: {s.launches}"


def last_pass(path):
    """The events of a Chrome trace that belong to its last annotated pass, with what of them matters."""
    every = [e for e in chrome.events(path) if e.get("ph") == "X"]
    passes = [e for e in every if e.get("cat") == "user_annotation" and e["name"].startswith(PASS)]  # not the device's
    begun = max(passes, key=lambda e: e["ts"])
    end = begun["ts"] + begun["dur"]
    device = [e for e in every if e.get("cat") in chrome.DEVICE and begun["ts"] <= e["ts"] <= end]
    host = [e for e in every if e.get("cat") == "cpu_op" and begun["ts"] <= e["ts"] <= end]
    wanted = {e["args"]["correlation"] for e in device}
    launches = [e for e in every if e.get("cat") in chrome.LAUNCHES and e["args"].get("correlation") in wanted]
    return [_trimmed(e, begun["ts"]) for e in (*host, *launches, *device)]


def _trimmed(event, since):
    args = {k: v for k, v in event["args"].items() if k in ARGS}
    kept = {k: v for k, v in event.items() if k in EVENT}
    return {**kept, "ts": round(event["ts"] - since, 3), "pid": 1, "tid": str(event["tid"])[-4:], "args": args}


def make(run):
    """Write the fixtures of a run folder; their names and sizes."""
    found, trace = traces.read(run / "trace.json")
    kept = {k: v for k, v in found.environment.items() if k in KEPT}
    made = {**json.loads((run / "trace.json").read_text()), "environment": kept}
    name = f"{trace.model}-{trace.phase}-{trace.batch}x{trace.prompt}"
    if (run / "chrome.json").exists():
        name = f"{name}-{trace.engine.removeprefix('hf-')}"
        path = FOLDER / f"{name}.chrome.json.gz"
        yield write(path, {"traceEvents": last_pass(run / "chrome.json")}, lambda: foreign.trace_of(path))
    yield write(FOLDER / f"{name}.trace.json.gz", made, lambda: trace)


def write(path, document, read):
    """The fixture and what is read from it."""
    packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0)
    if len(packed) > LARGEST:
        raise SystemExit(f"{path.name}: {len(packed)} bytes compressed, more than {LARGEST}")
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed)
    name = path.name.removesuffix(".json.gz").removesuffix(".trace")
    output.write(path.parent / f"{name}.expected.json", json.dumps(table(read()), indent=1) + "\n", output.ANY)
    return name, len(packed)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        for name, size in make(Path(word)):
            print(f"{name}: {size} bytes\n{(FOLDER / f'{name}.expected.json').read_text()}")
