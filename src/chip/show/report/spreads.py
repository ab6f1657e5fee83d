"""How far off predictions are, as a few quantiles for each class: what the report's first chart draws."""

from __future__ import annotations

from chip.show.report.summary import Summary
from chip.stats import quantile

CHIP = "chip"
METRICS = {"tpot": "TPOT", "ttft": "TTFT", "e2e": "end to end", "joules_per_token": "energy"}
QUANTILES = {"p5": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95}
FEW = 5


def add(out: Summary) -> None:
    """A row for each class of CHIP's predictions and for each other predictor, where GPU or host is the limit apart;
    classes of CHIP first, those with the smallest spread on top."""
    ratios: dict[tuple[str, str, str, str], list[float]] = {}
    for row in out.rows("predictions"):
        error = row["error_percent"]
        if row["metric"] in METRICS and row["bound"] and isinstance(error, float) and abs(error) < 1e6:
            key = (str(row["who"]), str(row["engine"]), str(row["metric"]), str(row["bound"]))
            ratios.setdefault(key, []).append(1 + error / 100)
    spreads = {
        key: {name: quantile(sorted(values), q) for name, q in QUANTILES.items()}
        for key, values in ratios.items()
        if len(values) >= FEW
    }
    order = sorted(spreads.items(), key=lambda s: (s[0][0] != CHIP, s[0][3] != "gpu", s[1]["p95"] - s[1]["p5"]))
    for (who, engine, metric, bound), spread in order:
        name = f"{engine} {METRICS[metric]}, {bound}-bound"
        points = len(ratios[who, engine, metric, bound])
        out.add(
            "spreads", name=name if who == CHIP else f"{who}: {name}", who=who, engine=engine, metric=metric,
            bound=bound, points=points, **spread,
        )  # fmt: skip
