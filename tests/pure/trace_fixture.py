"""Real traces of an H200 as fixtures: NAME.trace.json.gz, and NAME.expected.json with what is to be read from it.

From folders that `chip replay MODEL --output-dir FOLDER` wrote, with the tables printed for review:

  PYTHONPATH=src python tests/pure/trace_fixture.py FOLDER ...
"""

import gzip
import json
import sys
from pathlib import Path

from chip import artifact, traces
from chip.replay import signatures

FOLDER = Path(__file__).parent / "h200_traces"
KEPT = ("chip", "torch", "cuda", "driver", "device", "versions")  # of the environment
LARGEST = 200_000  # bytes, compressed


def names():
    return sorted(p.name.removesuffix(".trace.json.gz") for p in FOLDER.glob("*.trace.json.gz"))


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


def make(run):
    """Write the fixture of a run folder; its table."""
    found, trace = traces.read(run / "trace.json")
    kept = {k: v for k, v in found.environment.items() if k in KEPT}
    made = {**json.loads((run / "trace.json").read_text()), "environment": kept}
    name = f"{trace.model}-{trace.phase}-{trace.batch}x{trace.prompt}"
    packed = gzip.compress(json.dumps(made, separators=(",", ":")).encode(), 9, mtime=0)
    if len(packed) > LARGEST:
        raise SystemExit(f"{run}: {len(packed)} bytes compressed, more than {LARGEST}")
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.trace.json.gz").write_bytes(packed)
    artifact.write_text(FOLDER / f"{name}.expected.json", json.dumps(table(trace), indent=1) + "\n")
    return name, len(packed)


if __name__ == "__main__":
    for word in sys.argv[1:]:
        name, size = make(Path(word))
        print(f"{name}: {size} bytes\n{(FOLDER / f'{name}.expected.json').read_text()}")
