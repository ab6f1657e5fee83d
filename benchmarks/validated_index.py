"""Make the index of validated runs that `chip predict` names the nearest of: src/chip/data/validated.csv.

    python benchmarks/validated_index.py results/h200/validation.json build/argonne.json

Takes documents of `chip validate -o` (our own runs) and `chip validate --suite ... -o` (published ones). A row is a
scenario of a model on a GPU and an engine; its errors are signed, in percent, the median where several hosts ran it.
Of published runs only the errors of predictions are kept, no measurement.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from chip import artifact, stats
from chip.models import library
from chip.predict.nearest import INDEX, METRICS

ROOT = Path(__file__).parents[1]
HEAD = "gpu,engine,version,model,active,experts,batch,prompt,output,tp," + ",".join(METRICS) + ",source"
SCENARIO = ("batch", "prompt", "output", "tp")


def points(path: Path) -> list[tuple[tuple[Any, ...], str, float]]:
    """(what ran, metric, error) of every point of a document."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    data, found = raw["data"], []
    source = data.get("suite") or "our runs"
    for p in data["points"]:
        if p["metric"] in METRICS and p.get("fits", True):
            gpu = p.get("gpu") or data["gpu"]
            what = (gpu, p["engine"], p.get("version", ""), p["model"], *(p[k] for k in SCENARIO), source)
            found.append((what, p["metric"], p["error"]))
    return found


def index(files: list[Path]) -> str:
    errors: dict[tuple[Any, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in files:
        for what, metric, error in points(path):
            errors[what][metric].append(error)
    made = []
    for (gpu, engine, version, model, *sizes, source), by_metric in sorted(errors.items()):
        d = library.find(model)
        told = [f"{100 * stats.median(by_metric[m]):.1f}" if by_metric[m] else "" for m in METRICS]
        size = (f"{d.active_params():.3g}", str(int(d.experts > 0)))
        made.append(",".join((gpu, engine, version, model, *size, *map(str, sizes), *told, source)))
    names = ", ".join(str(f.resolve().relative_to(ROOT)) for f in files)
    about = f"# made by: python benchmarks/validated_index.py {names}\n# errors of predictions, in percent"
    return "\n".join((about, HEAD, *made)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, help="every document that is to be in the index")
    parser.add_argument("-o", "--output", type=Path, default=INDEX)
    args = parser.parse_args()
    artifact.write_text(args.output, index(args.files))
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
