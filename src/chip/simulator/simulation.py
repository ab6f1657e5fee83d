"""Live traffic through a simulated engine: what `chip simulate` and `chip.simulate` answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from chip.engines.server import NONE
from chip.question import SYSTEM, Model, Question, complete, decoder_of, question_of
from chip.simulator import slo, synthetic, workload
from chip.simulator.answer import Simulation, answer
from chip.simulator.disaggregated import with_split
from chip.simulator.fleet import ROUTERS, serve
from chip.simulator.intervals import intervals
from chip.simulator.jobs import Pool, spread_out
from chip.simulator.occupancy import Occupancy
from chip.simulator.server import given as server_of
from chip.simulator.setup import DRAWS, LINK, REQUESTS, SEED, Fleet, behind_server, run, setup
from chip.simulator.workload import Workload
from chip.types import ChipError

MOST_REQUESTS = 100_000_000
MOST_REPLICAS, MOST_DRAWS = 4096, 10_000


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
        made = synthetic.make(described, requests or REQUESTS, seed, str(source))
    elif str(source) in workload.names():
        made = workload.named(str(source))
        requests = requests or REQUESTS
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
    model: Model,
    *,
    workload: str | Path | Workload,
    rate: float | None = None,
    requests: int | None = None,
    seed: int = SEED,
    replicas: int = 1,
    router: str = ROUTERS[0],
    goals: str = "",
    draws: int = DRAWS,
    timeline: bool = False,
    server: bool = False,
    server_request_ms: float = 0.0,
    server_token_us: float = 0.0,
    split: str = "",
    kv_link: str = LINK,
    pool: Pool | None = None,
    **system: Any,
) -> Simulation:
    """Simulate traffic through `replicas` engines. `system`: the fields of `chip.question.Question`, with the same
    defaults as `chip.predict` (gpu, engine, dtype, kv_dtype, tp, pp, ep, engine_settings, host, ...).

    `goals` is what goodput counts by, "ttft=500ms,tpot=40ms"; `draws` simulations with resampled errors make the
    intervals, 0 for none; `pool` spreads those over processes or machines. `server` puts the engine's own HTTP server
    before it; `server_request_ms` and `server_token_us` one in figures of the asker (`chip.simulator.server`). `split`
    is like "2p1d": for each replica two engines compute prompts and one decodes; `kv_link` is between them.
    """
    if not 1 <= replicas <= MOST_REPLICAS:
        raise ChipError(f"--replicas must be between 1 and {MOST_REPLICAS}, got {replicas}")
    if not 0 <= draws <= MOST_DRAWS:
        raise ChipError(f"--draws must be between 0 and {MOST_DRAWS}, got {draws}")
    q = system_of(model, system)
    fleet = Fleet(q, replicas, router, server_of(server_request_ms, server_token_us))
    if server and fleet.server == NONE:
        fleet = behind_server(fleet)
    fleet = with_split(fleet, split, kv_link)
    if split and timeline:
        raise ChipError("--timeline and --plot are of engines that run prompts and decodes; leave out --split")
    targets = slo.parse(goals, percentiles=False) if goals else ()
    w = traffic(workload, requests, rate, seed)
    watches = tuple(Occupancy() for _ in range(replicas * fleet.lockstep)) if timeline else ()
    made = setup(fleet)
    if fleet.before:
        served = run(made, fleet, w)
    else:
        served = serve(made.maker(watches), w, made.longest, replicas, router, None, fleet.lockstep)
    found = answer(fleet, made, w, served, seed, targets)
    interval = intervals(fleet, w, seed, draws, pool) if draws else None
    return replace(found, interval=interval, served=served, timelines=watches)


def system_of(model: Model, system: Mapping[str, Any]) -> Question:
    """The question in plain values, without `auto`. Axes of a batch are refused: traffic has its own."""
    decoder = decoder_of(model, system.get("answer_as", ""))
    return question_of(complete({"model": decoder.name, **system}, SYSTEM, ("model", *SYSTEM)), decoder).with_formats()


def sweep(model: Model, rates: Sequence[float | None], pool: Pool | None = None, **asked: Any) -> list[Simulation]:
    """`simulate` at several rates, spread over a pool; single requests and timelines are not kept."""
    if len(rates) == 1:
        return [simulate(model, rate=rates[0], pool=pool, **asked)]
    return spread_out(_at_one_rate, [(model, rate, asked) for rate in rates], pool)


def _at_one_rate(task: tuple[Model, float | None, dict[str, Any]]) -> Simulation:
    model, rate, asked = task
    return replace(simulate(model, rate=rate, **asked), served=None, timelines=())
