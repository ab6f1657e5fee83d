"""Leave one out: a host fitted to one run of each record, all others of it predicted: python benchmarks/fitted_hosts.py

Writes results/validated/fitted_hosts.json: errors of each figure before and after, and whether it lay in the interval.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from chip.files import artifact, codec
from chip.types import HostProfile
from chip.validate import client_errors, clients, host_fit

FOLDER = Path(__file__).resolve().parents[1] / "results" / "h200" / "traffic" / "server"
RECORD = FOLDER.parents[2] / "validated" / "fitted_hosts.json"
RECORDS = ("llama-3.1-8b.json.gz", "reference-llama-3.1-8b.json", "qwen3-30b-a3b.json.gz", "llama-3.2-1b.json.gz")
FIGURES = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms", "output_throughput")
RUNS = 5  # the first of a record: its rates, and a closed loop
DRAWS = 10


def rows_of(record: str, folder: Path) -> list[dict[str, object]]:
    results = clients.read(FOLDER / record)[:RUNS]
    before = [client_errors.judge(r, {}, DRAWS) for r in results]
    rows = list[dict[str, object]]()
    for i, fitted_to in enumerate(results):
        fitted = host_fit.fit([fitted_to], {}, "fitted")
        host = folder / f"{record.split('.json')[0]}-{i}.json"
        artifact.write(host, artifact.new(HostProfile.SCHEMA, codec.to_json(fitted.host), {}, []))
        for k, result in enumerate(results):
            if k == i:
                continue
            after = client_errors.judge(result, {"host": str(host)}, DRAWS)
            for name in FIGURES:
                was, now = before[k].figure(name), after.figure(name)
                if was and now:
                    row = {"record": record, "fitted_to": i, "run": k, "metric": name}
                    errors = {"before": round(was.error, 4), "after": round(now.error, 4)}
                    rows.append(row | errors | {"inside": now.inside})
        print(record, i, {name: round(term.value, 8) for name, term in fitted.host.terms.items()}, flush=True)
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for record in RECORDS for row in rows_of(record, Path(folder))]
    lines = ",\n".join(json.dumps(row) for row in rows)
    RECORD.write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
