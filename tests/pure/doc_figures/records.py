"""docs/status.md: what was asked of the measurements of an H200, and what its records say."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace

import test_agreement
import test_h200_records as records
import test_h200_replay as replays

from chip import stats
from chip.files import runs
from chip.validate.classes import judge_classes
from doc_figures import accuracy

MEMORY = [name for name in records.MEMORY if name != "l2_knee"]
ASKED_MEMORY, ASKED_COMPUTE = 0.015, 0.03


def met(reached: bool) -> str:
    return "yes" if reached else "**no**"


def share(value: float, digits: int = 1) -> str:
    return f"{100 * value:.{digits}f} %"


def measured() -> Iterator[str]:
    yield "| what | target | measured | met |"
    yield "|---|---|---|---|"
    for what, target, reached, holds in (*calibrations(), *operators(), agreement(), replayed()):
        yield f"| {what} | {target} | {reached} | {met(holds)} |"


def calibrations() -> Iterator[tuple[str, str, str, bool]]:
    first, second = records.CALIBRATIONS
    bandwidths, knee = max(map(records.apart, MEMORY)), records.apart("l2_knee")
    said = f"bandwidths {share(bandwidths, 2)} at most, `l2_knee` {share(knee, 2)}"
    what = "two full calibrations, two fresh hosts: every memory ceiling"
    yield what, "within 1.5 %", said, max(bandwidths, knee) <= ASKED_MEMORY
    worst = max(records.SETTLED, key=records.apart)
    kind, bf16 = worst.split("_")[1], records.apart("matmul_bf16_settled")
    said = f"{share(records.apart(worst))} at most ({kind}); bf16 {share(bf16)}"
    yield "the same: every settled compute ceiling", "within 3 %", said, records.apart(worst) <= ASKED_COMPUTE
    launch = [1e6 * c.ceilings["launch_graph"].value for c in (first, second)]
    off = records.apart("launch_graph")
    said = f"`launch_graph` {share(off)} ({launch[0]:.3f} and {launch[1]:.3f} us)"
    yield "the same: overheads that are not the host's", "within 5 %", said, off <= 0.05
    copies = [c.ceilings["hbm_copy"].value / 1e12 for c in (first, second)]
    yield "`hbm_copy`", "at least 4.2 TB/s", f"{copies[0]:.2f} and {copies[1]:.2f} TB/s", min(copies) >= 4.2
    boosts = [
        max(map(float, re.findall(r"8192 \w+ ([\d.]+)", c.ceilings["matmul_bf16"].method))) for c in (first, second)
    ]
    said = f"{boosts[0]:.0f} and {boosts[1]:.0f} TFLOP/s"
    yield "bf16 boost at 8192 cubed", "760 to 800 TFLOP/s", said, all(760 <= b <= 800 for b in boosts)
    took = [
        json.loads((records.RECORDS / f"calibration-{n}.json").read_text())["environment"]["seconds"] for n in (1, 2)
    ]
    yield "`calibrate --full`, by the clock", "5 min", f"{took[0]:.0f} and {took[1]:.0f} s", max(took) <= 300


def operators() -> Iterator[tuple[str, str, str, bool]]:
    for what, compute_bound, asked in (
        ("operators, P50 of two runs, over 20 us, memory-bound", False, ASKED_MEMORY),
        ("the same, compute-bound", True, ASKED_COMPUTE),
    ):
        off = [d for _, d in records.repeated(compute_bound)]
        within = sum(d <= asked for d in off)
        said = f"{within} of {len(off)} cases; median {share(stats.median(off), 2)}, largest {share(max(off), 2)}"
        yield what, f"within {100 * asked:g} %", said, within == len(off)


def agreement() -> tuple[str, str, str, bool]:
    off = {key: abs(e) for key, e in test_agreement.compared().items() if key not in test_agreement.HOST_BOUND}
    said = [
        f"{engine} {share(min(mine))} to {share(max(mine))} at {len(mine)} figures"
        for engine in ("vllm", "hf-graph")
        if (mine := [e for key, e in off.items() if key[0] == engine])
    ]
    asked = "within 3 % where the GPU is the limit"
    return "agreement of `chip bench` with independent scripts", asked, "; ".join(said), max(off.values()) <= 0.03


def worst_agreement() -> str:
    off = {key: abs(e) for key, e in test_agreement.compared().items() if key not in test_agreement.HOST_BOUND}
    return share(max(off.values()))


def replayed() -> tuple[str, str, str, bool]:
    off = [abs(replays.bars(case)["error"][0]) for case in replays.CASES]
    return "replayed steps", "error within 3 %", f"{len(off)} steps, at most {max(off):.1f} %", max(off) <= 3


def replay_error(case: str) -> str:
    return f"{replays.bars(case)['error'][0]:+.2f} %"


def missed() -> Iterator[str]:
    """Classes of predictions whose target is missed while the host is unknown; met with the launch latency known."""
    yield "| what | asked: median, p90 | host unknown | launch latency known |"
    yield "|---|---|---|---|"
    unknown, known = accuracy.judged().points, [p for p in accuracy.judged(True).points if p.latency_known]
    for judged, otherwise in zip(judge_classes(known), judge_classes(unknown)):
        wanted = judged.wanted
        if wanted.median is None or wanted.p90 is None or otherwise.met:
            continue
        every = replace(wanted, latency_known=False)
        cells = [wanted.title, f"{100 * wanted.median:g} %, {100 * wanted.p90:g} %"]
        cells += [accuracy.pair(p.error for p in points if every.has(p)) for points in (unknown, known)]
        yield f"| {' | '.join(cells)}{' (met)' if judged.met else ''} |"


def tinyllama() -> str:
    rates: dict[str, float] = {}
    for run in runs.read(records.RECORDS / "runs" / "tinyllama-fp16.json")[1].runs:
        rates.setdefault(run.engine, run.tokens_per_s)
    return f"hf-graph {rates['hf-graph']:.4g} tokens/s, hf-eager {rates['hf-eager']:.4g}, vLLM {rates['vllm']:.4g}"
