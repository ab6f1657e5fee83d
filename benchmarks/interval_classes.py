"""Derive how wide intervals must be for each kind of GPU: src/chip/data/interval_classes.csv.

    python benchmarks/interval_classes.py

Every run of the index (src/chip/data/validated.csv) is predicted again, its truth being the prediction less the error
that the index has. Kinds of GPUs are those of chip.predictor.basis, on one GPU or several. A kind whose
intervals hold 80 to 97 % of its runs as they are keeps them. Narrower ones are widened by the least scale that holds
90 %, wider ones narrowed by the largest that holds no more than 97 %. No GPU has a scale of its own. Runs of GPUs
that are answered from another of their chip judge datasheets too, as if nothing of that chip had been measured. The
index must be of the present predictor: `chip validate` and benchmarks/validated_index.py renew it.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections import defaultdict
from dataclasses import replace
from functools import cache
from pathlib import Path

from chip.decoders import library
from chip.engines import profile
from chip.files import artifact, codec, output
from chip.hardware import gpus as hardware
from chip.predictor import basis, validated_runs
from chip.predictor.request import predict
from chip.question import Question
from chip.types import HardwareSpec, Scenario

WANTED, LEAST, MOST = 0.90, 0.80, 0.97
STEP, LARGEST = 0.05, 10.0
Kind = tuple[str, bool]
HOST = profile.ENGINES / "h200.vllm.json"
HEAD = "kind;gpus;scale;runs;models;inside unscaled;inside"


def runs() -> dict[Kind, list[dict[str, str]]]:
    """Rows of the index by kind of GPU."""
    found: dict[Kind, list[dict[str, str]]] = defaultdict(list)
    lines = (line for line in artifact.read_text(validated_runs.INDEX).splitlines() if not line.startswith("#"))
    for row in csv.DictReader(lines):
        h, several = hardware.find(row["gpu"]), int(row["tp"]) > 1
        found[basis.kind_of(h), several].append({**row, "answered": row["gpu"]})
        if h.sibling:
            found[basis.DATASHEET, several].append({**row, "answered": datasheet_alone(row["gpu"])})
    return dict(sorted(found.items()))


@cache
def datasheet_alone(gpu: str) -> str:
    """A file of its datasheet that does not say which chip it is."""
    sheet = codec.to_json(replace(hardware.spec(gpu), chip=None))
    path = Path(tempfile.mkdtemp()) / f"{gpu}.json"
    path.write_text(json.dumps({"schema": HardwareSpec.SCHEMA, **sheet}), encoding="utf-8")
    return str(path)


def inside(rows: list[dict[str, str]], scale: float) -> list[bool]:
    """Whether each measured figure of these runs lies in its interval."""
    found: list[bool] = []
    for row in rows:
        asked = Scenario(*(int(row[k]) for k in ("batch", "prompt", "output")), "bf16", int(row["tp"]))
        version = row["version"] if row["engine"] == "vllm" else ""
        # over several GPUs the host counts as known: its interval, wide as hosts differ, must not hide what links do
        known_ns = profile.read(HOST).launch_ns if int(row["tp"]) > 1 else 0.0
        model, terms = library.find(row["model"]), {"engine_version": version, "launch_ns": known_ns}
        answers = {}
        for gpu in (row["gpu"], row["answered"]):
            if gpu not in answers:
                q = Question.of(model, gpu, row["engine"], asked, **terms)
                answers[gpu] = predict(q, asked, interval_scale=scale).figures()
        for metric in validated_runs.METRICS:
            if row[metric] and answers[row["gpu"]][f"{metric}_ms"]:
                truth = answers[row["gpu"]][f"{metric}_ms"] / (1 + float(row[metric]) / 100)
                low, high = answers[row["answered"]]["interval"][f"{metric}_ms"]
                found.append(low <= truth <= high)
    return found


def share(rows: list[dict[str, str]], scale: float) -> float:
    found = inside(rows, scale)
    return sum(found) / len(found)


def scale_for(rows: list[dict[str, str]], plain: float) -> float:
    """A multiple of STEP, found by bisection: the share inside only grows with the scale."""
    if LEAST <= plain <= MOST:
        return 1.0
    widen = plain < LEAST
    low, high = (round(1 / STEP), round(LARGEST / STEP)) if widen else (0, round(1 / STEP))
    while high - low > 1:
        middle = (low + high) // 2
        held = share(rows, middle * STEP)
        enough = held >= WANTED if widen else held > MOST
        low, high = (low, middle) if enough else (middle, high)
    return round((high if widen else low) * STEP, 2)


def main() -> None:
    made: list[str] = []
    for (kind, several), rows in runs().items():
        plain = share(rows, 1.0)
        scale = scale_for(rows, plain)
        models = len({row["model"] for row in rows})
        gpus = "several" if several else "one"
        held = share(rows, scale)
        made.append(f"{kind};{gpus};{scale:g};{len(rows)};{models};{plain:.3f};{held:.3f}")
        print(made[-1], flush=True)
    about = "# made by: python benchmarks/interval_classes.py, from validated.csv"
    output.write(basis.FILE, "\n".join((about, HEAD, *made)) + "\n", output.ANY)
    print(f"wrote {basis.FILE}")


if __name__ == "__main__":
    main()
