"""The Python API of live traffic: what `chip.simulate` and `chip.plan` answer. Times are in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, SupportsFloat, SupportsIndex

from chip.api import File, column, plain, plain_values
from chip.engines.options import Settings
from chip.question import SYSTEM, Model
from chip.simulator import plan as plans
from chip.simulator import simulation
from chip.simulator.answer import Simulation
from chip.simulator.fleet import ROUTERS
from chip.simulator.jobs import Pool
from chip.simulator.plan import Plan
from chip.simulator.setup import DRAWS, LINK, SEED
from chip.simulator.workload import Workload

Goals = str | Mapping[str, SupportsFloat]  # "ttft=500ms", or seconds by name


def simulate(
    model: Model,
    *,
    workload: File | Workload,
    rate: SupportsFloat | None = None,
    requests: SupportsIndex | None = None,
    seed: SupportsIndex = SEED,
    replicas: SupportsIndex = 1,
    router: str = ROUTERS[0],
    goals: Goals = "",
    draws: SupportsIndex = DRAWS,
    timeline: bool = False,
    server: bool = False,
    server_request_s: SupportsFloat = 0.0,
    server_token_s: SupportsFloat = 0.0,
    split: str = "",
    kv_link: str = LINK,
    pool: Pool | None = None,
    gpu: str = SYSTEM["gpu"],
    engine: str = SYSTEM["engine"],
    dtype: str = SYSTEM["dtype"],
    kv_dtype: str = SYSTEM["kv_dtype"],
    tp: SupportsIndex = SYSTEM["tp"],
    pp: SupportsIndex = SYSTEM["pp"],
    ep: SupportsIndex = SYSTEM["ep"],
    engine_settings: Mapping[str, Any] | Settings = SYSTEM["engine_settings"],
    engine_version: str = SYSTEM["engine_version"],
    engine_profile: File = SYSTEM["engine_profile"],
    host: File = SYSTEM["host"],
    sampling: str = SYSTEM["sampling"],
    launch_s: SupportsFloat = SYSTEM["launch_ns"],
    sdpa: str = SYSTEM["sdpa"],
    deep_gemm: bool = SYSTEM["deep_gemm"],
    answer_as: str = SYSTEM["answer_as"],
) -> Simulation:
    """Live traffic through `replicas` engines: percentiles of TTFT, TPOT and queue, goodput, cache and energy.

    `workload` is a bundled trace, synthetic traffic such as "poisson:prompt=512,output=128", or a file; `rate` is in
    requests a second, 0 for all at once. `goals` is what goodput counts by: "ttft=500ms,tpot=40ms", or seconds by
    name. `draws` simulations with resampled errors make the 90 % intervals, 0 for none. `server` puts the engine's own
    HTTP server before it, `server_request_s` and `server_token_s` one with figures of yours. `split` is like "2p1d":
    two engines compute prompts for each one that decodes, `kv_link` between them. From `gpu` on as in `predict`.
    """
    values = plain_values(locals())
    values["server_request_ms"] = 1e3 * values.pop("server_request_s")
    values["server_token_us"] = 1e6 * values.pop("server_token_s")
    return simulation.simulate(**values)


def plan(
    model: Model,
    *,
    workload: File | Workload,
    goals: Goals,
    rate: SupportsFloat | None = None,
    gpus: Iterable[str] = (SYSTEM["gpu"],),
    tps: Iterable[SupportsIndex] = (SYSTEM["tp"],),
    pps: Iterable[SupportsIndex] = (SYSTEM["pp"],),
    eps: Iterable[SupportsIndex] = (SYSTEM["ep"],),
    dtypes: Iterable[str] = (SYSTEM["dtype"],),
    splits: Iterable[str] = ("",),
    kv_link: str = LINK,
    prices: Mapping[str, SupportsFloat] | None = None,
    requests: SupportsIndex = plans.REQUESTS,
    seed: SupportsIndex = SEED,
    intervals: bool = True,
    pool: Pool | None = None,
    engine: str = SYSTEM["engine"],
    kv_dtype: str = SYSTEM["kv_dtype"],
    engine_settings: Mapping[str, Any] | Settings = SYSTEM["engine_settings"],
    engine_version: str = SYSTEM["engine_version"],
    engine_profile: File = SYSTEM["engine_profile"],
    host: File = SYSTEM["host"],
    sampling: str = SYSTEM["sampling"],
    launch_s: SupportsFloat = SYSTEM["launch_ns"],
    sdpa: str = SYSTEM["sdpa"],
    deep_gemm: bool = SYSTEM["deep_gemm"],
    answer_as: str = SYSTEM["answer_as"],
) -> Plan:
    """Which GPUs, and how many, serve a rate within the goals: all combinations of `gpus`, `tps`, `pps`, `eps`,
    `dtypes` and `splits` ("auto" tries several), the best first.

    `goals` are of percentiles: "ttft_p99=500ms,tpot_p99=40ms", or seconds by name. `prices` are of one GPU for an hour,
    in your money; with them the cheapest comes first, else the fewest GPUs. Without a `rate` each choice serves its own
    highest. The rest is as in `simulate`.
    """
    values = plain_values(locals())
    for axis in ("gpus", "tps", "pps", "eps", "dtypes", "splits"):
        values[axis] = [plain(v) for v in column(values[axis])]
    values["prices"] = {name: float(price) for name, price in (prices or {}).items()}
    return plans.plan(**values)
