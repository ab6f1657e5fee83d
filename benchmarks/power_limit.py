"""What a GPU draws where its power limit holds it: products without a pause, and bursts of products after a rest.

    python benchmarks/power_limit.py OUT.json

Products are of `rows` x 8192 x 8192 in bf16 with cold weights, bursts of 8192^3. `watts` has idle power in it; that of
a burst is what it draws beyond the burst before it, so that what a rested GPU draws afterwards does not count.
"""

import sys
import time
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch

from chip.files import artifact
from chip.lab.measure.device import open_device
from chip.lab.measure.energy import each, idle_watts, probe_for
from chip.lab.measure.environment import environment
from chip.lab.measure.timing import events

SIDE, WEIGHTS, REST_S, SECONDS = 8192, 6, 0.8, 2.0
ROWS = (8, 64, 128, 192, 256, 512, 1024, 2048)
BURSTS = (4, 8, 16, 36, 72, 150, 300)


def main(out: str) -> None:
    device = open_device("cuda:0")
    probe, normal = probe_for(device), partial(torch.randn, device="cuda", dtype=torch.bfloat16)
    idle_w, weights = idle_watts(probe, SECONDS), [normal(SIDE, SIDE).t() for _ in range(WEIGHTS)]
    steady, bursts = [], []
    for rows in ROWS:
        calls = [partial(torch.mm, normal(rows, SIDE), w) for w in weights]
        take = events(device, calls, int(0.2 * SECONDS / (1e-9 * events(device, calls, 600)())))
        used = each(probe, take, 2 * SECONDS, idle_w)
        used = each(probe, take, SECONDS, idle_w)  # at the clock that the first left
        steady.append({"rows": rows, "us": take() * 1e-3, "watts": used.joules / used.seconds})
    for count in BURSTS:
        take, times = events(device, [partial(torch.mm, weights[0], weights[1])], count), []

        def burst(take=take, times=times) -> None:
            time.sleep(REST_S)
            times.append(take())

        used = each(probe, burst, 8.0, idle_w)
        ms = count * 1e-6 * sum(times) / len(times)
        bursts.append({"ms": ms, "joules": used.joules - idle_w * used.seconds})
    for before, after in pairwise(bursts):
        after["watts"] = idle_w + 1e3 * (after["joules"] - before["joules"]) / (after["ms"] - before["ms"])
    found = {"idle_w": idle_w, "steady": steady, "bursts": bursts}
    artifact.write(Path(out), artifact.new("chip.power_limit/1", found, environment(device)))
    print(*steady, *bursts, sep="\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
