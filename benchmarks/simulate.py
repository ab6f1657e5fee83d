"""Speed of the simulator: 10,000 requests against ten million additions, a plan over processes, and memory.

python benchmarks/simulate.py [-o results/cpu/simulate.json] [--million]
"""

import argparse
import json
import os
import platform
import resource
import time
from pathlib import Path

from chip.simulator.jobs import Pool
from chip.simulator.plan import plan
from chip.simulator.simulation import simulate


def additions_s() -> float:
    began, total = time.perf_counter(), 0
    for i in range(10_000_000):
        total += i
    return time.perf_counter() - began


def ten_thousand() -> dict[str, float]:
    loop_s = additions_s()
    began = time.perf_counter()
    found = simulate("llama-3.1-8b", gpu="h200", workload="azure-conversation", requests=10_000, rate=20, draws=0)
    took_s = time.perf_counter() - began
    return {
        "additions_s": loop_s,
        "simulation_s": took_s,
        "ratio": took_s / loop_s,
        "requests_per_s": 10_000 / took_s,
        "steps": found.steps,
    }


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def planned(jobs: int) -> dict[str, float]:
    """Wall time depends on who else uses the machine; CPU time does not."""
    began, before = time.perf_counter(), cpu_s()
    plan(
        "llama-3.1-8b",
        workload="azure-conversation",
        rate=50,
        goals="ttft_p99=500ms,tpot_p99=40ms",
        gpus=["h100", "h200", "l40s"],
        tps=[1, 2, 4, 8],
        requests=2000,
        pool=Pool(jobs),
    )
    return {"wall_s": round(time.perf_counter() - began, 2), "cpu_s": round(cpu_s() - before, 2)}


def million() -> dict[str, float]:
    began = time.perf_counter()
    asked = {"workload": "poisson:prompt=400~0.9,output=120~0.8", "requests": 1_000_000, "rate": 15}
    found = simulate("llama-3.1-8b", draws=0, **asked)
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": time.perf_counter() - began, "peak_mb": peak_kb / 1024, "completed": found.completed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", type=Path, default=Path("results/cpu/simulate.json"))
    parser.add_argument("--million", action="store_true", help="also a million requests, for memory (minutes)")
    args = parser.parse_args()
    made = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "python": platform.python_version()}
    made["ten_thousand"] = ten_thousand()
    made["plan_of_12_choices"] = {str(jobs): planned(jobs) for jobs in (1, 2)}
    if args.million:
        made["million"] = million()
    args.o.write_text(json.dumps(made, indent=1) + "\n")
    print(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
