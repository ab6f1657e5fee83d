"""Measured operators, each placed under the roofs of the device it was measured on."""

from __future__ import annotations

import json
from typing import Any

from chip import stats
from chip.explain import advice
from chip.files import measurements
from chip.files.measurements import operator
from chip.hardware import gpus, roofline
from chip.show.report.collect.calibration import add_roofs
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary
from chip.types import ChipError, Measurement

SCHEMAS = ("chip.measurement",)
ORDER = 1
MEASURED = ("implementation", "context", "status", "reason", "clock_hz", "watts")


def collect(opened: Opened, out: Summary) -> int:
    header, found = measurements.read(opened.path)
    device = header["device"]
    roofs = _roofs(out, device)
    for m in found:
        op = operator(m.op)
        cost = op.cost()
        about: dict[str, Any] = {"op": op.kind, "label": roofline.label(op), "dtype": str(m.op.get("dtype", ""))}
        about |= {key: getattr(m, key) for key in MEASURED}
        about |= {"device": m.device or device, "flags": ", ".join(m.flags), "axes": json.dumps(m.op)}
        about |= {"flops": cost.flops, "bytes": cost.bytes, "intensity": cost.intensity, "source": opened.name}
        out.add("operators", **about, **(_times(m, roofs) if m.status == "ok" else {}))
    return len(found)


def _times(m: Measurement, roofs: roofline.Roofs | None) -> dict[str, Any]:
    ns = m.samples_ns
    times = {
        "p50_us": stats.median(ns) / 1e3,
        "p95_us": stats.quantile(ns, 0.95) / 1e3,
        "mean_us": sum(ns) / len(ns) / 1e3,
        "samples": len(ns),
    }
    try:
        point = roofline.place(m, roofs) if roofs else None
    except ChipError:  # no ceiling for this dtype: times are shown, shares are not
        point = None
    if point is None or roofs is None:
        return times
    placed: dict[str, Any] = {
        "flops_per_s": point.flops_per_s,
        "bytes_per_s": point.bytes_per_s,
        "share_of_roof": point.share,
    }
    placed |= {"bound": point.bound, "roof": point.roof.name}
    return times | placed | {"verdict": advice.verdict(point), "would_help": advice.help_for(point, roofs)}


def _roofs(out: Summary, device: str) -> roofline.Roofs | None:
    """Of a profile of that device among the results, else the bundled ones."""
    if device in out.profiles:
        return roofline.from_profile(out.profiles[device])
    name = gpus.match_device(device)
    if not name:
        return None
    found = roofline.roofs_of(gpus.find(name))
    if not any(out.rows("roofs", device=device)):
        add_roofs(out, f"bundled: {name}", device, found)
    return found
