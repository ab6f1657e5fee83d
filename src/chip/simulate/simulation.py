"""Live traffic through a simulated engine: what `chip simulate` and `chip.simulate` answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chip.records import replace
from chip.simulate import slo, synthetic, workload
from chip.simulate.answer import Simulation, answer
from chip.simulate.fleet import serve
from chip.simulate.intervals import intervals
from chip.simulate.jobs import Pool, spread_out
from chip.simulate.occupancy import Occupancy
from chip.simulate.server import given as server_of
from chip.simulate.setup import DEFAULTS, Question, setup
from chip.simulate.workload import Workload
from chip.types import ChipError

MOST_REQUESTS = 100_000_000
MOST_LAUNCH_NS = 1e6


def traffic(source: str | Path | Workload, requests: int | None, rate: float | None, seed: int) -> Workload:
    """A workload by its name, file or description; `rate` 0 lets all requests come at once."""
    if requests is not None and not 1 <= requests <= MOST_REQUESTS:
        raise ChipError(f"--requests must be between 1 and {MOST_REQUESTS}, got {requests}")
    if rate is not None and not (0 <= rate < 1e9):
        raise ChipError(f"--rate must be requests a second, 0 for all at once, got {rate:g}")
    if isinstance(source, Workload):
        made = source
    elif str(source).partition(":")[0] in synthetic.KINDS:
        described = synthetic.parse(str(source))
        made = synthetic.make(described, requests or DEFAULTS["requests"], seed, str(source))
    elif str(source) in workload.names():
        made = workload.named(str(source))
        requests = requests or DEFAULTS["requests"]
    else:
        made = _file(str(source))
    if requests:
        made = workload.first(made, requests)
    if rate is not None and made.users:
        raise ChipError(f"{made.name}: users of a closed loop wait for their answers, so --rate does not go with it")
    return made if rate is None else workload.at_rate(made, rate)


def _file(name: str) -> Workload:
    path = Path(name)
    if not path.exists():
        raise ChipError(
            f"workload {name[:80]!r}: no such file; bundled: {', '.join(workload.names())}; "
            f"synthetic: {', '.join(synthetic.KINDS)}, as in poisson:prompt=512,output=128"
        )
    return workload.read(path)


def simulate(
    model: str,
    *,
    workload: str | Path | Workload,
    gpu: str = DEFAULTS["gpu"],
    engine: str = DEFAULTS["engine"],
    dtype: str = DEFAULTS["dtype"],
    tp: int = DEFAULTS["tp"],
    pp: int = DEFAULTS["pp"],
    ep: int = DEFAULTS["ep"],
    rate: float | None = None,
    requests: int | None = None,
    seed: int = DEFAULTS["seed"],
    replicas: int = DEFAULTS["replicas"],
    router: str = DEFAULTS["router"],
    engine_settings: Mapping[str, Any] | None = None,
    goals: str = "",
    draws: int = DEFAULTS["draws"],
    timeline: bool = False,
    launch_ns: float = 0.0,
    host: str | Path = "",
    server_request_ms: float = 0.0,
    server_token_us: float = 0.0,
    pool: Pool | None = None,
) -> Simulation:
    """Simulate traffic through `replicas` engines. `goals` is what goodput counts by, "ttft=500ms,tpot=40ms"; `draws`
    simulations with resampled errors make the intervals, 0 for none; `pool` spreads those over processes or machines.
    `server_request_ms` and `server_token_us` are the asker's own figures of a server before the engine (`chip.simulate.
    server`).
    """
    if not 1 <= replicas <= 4096:
        raise ChipError(f"--replicas must be between 1 and 4096, got {replicas}")
    if not 0 <= launch_ns <= MOST_LAUNCH_NS:
        raise ChipError(f"--launch-ns must be between 0 and {MOST_LAUNCH_NS:g} ns, got {launch_ns:g}")
    if not 0 <= draws <= 10_000:
        raise ChipError(f"--draws must be between 0 and 10000, got {draws}")
    given, server = tuple((engine_settings or {}).items()), server_of(server_request_ms, server_token_us)
    q = Question(model, gpu, engine, dtype, tp, given, replicas, router, launch_ns, pp, ep, str(host), server)
    targets = slo.parse(goals, percentiles=False) if goals else ()
    w = traffic(workload, requests, rate, seed)
    watches = tuple(Occupancy() for _ in range(replicas * q.lockstep)) if timeline else ()
    made = setup(q)
    served = serve(made.maker(watches), w, made.longest, replicas, router, None, q.lockstep, q.server.request_s)
    found = answer(q, made, w, served, seed, targets)
    interval = intervals(q, w, seed, draws, pool) if draws else None
    return replace(found, interval=interval, served=served, timelines=watches)


def sweep(model: str, rates: Sequence[float | None], pool: Pool | None = None, **asked: Any) -> list[Simulation]:
    """`simulate` at several rates, spread over a pool; single requests and timelines are not kept."""
    if len(rates) == 1:
        return [simulate(model, rate=rates[0], pool=pool, **asked)]
    return spread_out(_at_one_rate, [(model, rate, asked) for rate in rates], pool)


def _at_one_rate(task: tuple[str, float | None, dict[str, Any]]) -> Simulation:
    model, rate, asked = task
    return replace(simulate(model, rate=rate, **asked), served=None, timelines=())
