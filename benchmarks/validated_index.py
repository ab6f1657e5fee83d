"""Make the index of validated runs that `chip predict` names the nearest of: src/chip/data/validated.csv.

    python benchmarks/validated_index.py results/h200/validation.json build/argonne.json

Takes documents of `chip validate -o` (our own runs) and `chip validate --suite ... -o` (published ones). A row is a
scenario of a bundled model on a GPU and an engine; its errors are signed, in percent, the median where several hosts
ran it. Our own runs carry the measured TTFT and TPOT, medians as well. Of published runs only the errors of predictions
are kept, no measurement.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from chip import stats
from chip.decoders import library
from chip.files import output
from chip.predictor.validated_runs import INDEX, MEASURED, METRICS, OURS

ROOT = Path(__file__).parents[1]
HEAD = ",".join(
    ("gpu,engine,version,model,active,experts,batch,prompt,output,tp", *METRICS, "dtype", *MEASURED, "source")
)
SCENARIO = ("batch", "prompt", "output", "tp")


def points(path: Path) -> list[tuple[tuple[Any, ...], str, float, float | None]]:
    """(what ran, metric, error, measured ms) of every point of a document; what others measured is None."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    data, found = raw["data"], []
    source = data.get("suite") or OURS
    for p in data["points"]:
        if p["metric"] in METRICS and p.get("fits", True):
            gpu = p.get("gpu") or data["gpu"]
            measured_ms = 1e3 * p["measured"] if source == OURS else None
            what = (gpu, p["engine"], p.get("version", ""), p["model"], *(p[k] for k in SCENARIO), p["dtype"], source)
            found.append((what, p["metric"], p["error"], measured_ms))
    return found


def index(files: list[Path]) -> str:
    errors: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    times: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in files:
        for what, metric, error, measured_ms in points(path):
            errors[what][metric].append(error)
            if measured_ms is not None:
                times[what][f"{metric}_ms"].append(measured_ms)
    made, known = [], {*library.names()}
    for what, by_metric in sorted(errors.items()):
        gpu, engine, version, model, *sizes, dtype, source = what
        if model not in known:  # cut to fewer layers
            continue
        d = library.find(model)
        took = [f"{stats.median(times[what][m]):.5g}" if times[what][m] else "" for m in MEASURED]
        told = [f"{100 * stats.median(by_metric[m]):.1f}" if by_metric[m] else "" for m in METRICS]
        size = (f"{d.active_params():.3g}", str(int(d.experts > 0)))
        made.append(",".join((gpu, engine, version, model, *size, *map(str, sizes), *told, dtype, *took, source)))
    names = ", ".join(str(f.resolve().relative_to(ROOT)) for f in files)
    units = "# errors of predictions, in percent; measured times, in ms, of our own runs"
    about = f"# made by: python benchmarks/validated_index.py {names}\n{units}"
    return "\n".join((about, HEAD, *made)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="every document that is to be in the index")
    parser.add_argument("-o", "--output", type=Path, default=INDEX)
    args = parser.parse_args()
    output.write(args.output, index(args.files), output.ANY)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
