"""Independent work over processes of this machine or over a Ray cluster: the order is kept, and work that was lost with
its worker is done again."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

from chip.types import ChipError, install

T = TypeVar("T")
R = TypeVar("R")
CONNECT_S = 5.0
TRIES = 3  # of work that ends its worker: after that the work itself is to blame


@dataclass(frozen=True, slots=True)
class Pool:
    """`jobs` processes here, or `ray`: "local" or the address of a cluster. `tell` is told how much is done."""

    jobs: int = 1
    ray: str = ""
    tell: Callable[[int, int], None] | None = None


def pool_of(jobs: int, ray: str = "", tell: Callable[[int, int], None] | None = None) -> Pool:
    if not 0 <= jobs <= 4096:
        raise ChipError(f"--jobs must be between 1 and 4096, or 0 for one a core, got {jobs}")
    return Pool(jobs or os.cpu_count() or 1, ray, tell)


def spread_out(work: Callable[[T], R], items: Sequence[T], pool: Pool | None) -> list[R]:
    """`work` of each item, in the order of the items. It must be a function that other processes can import."""
    if pool is None or (pool.jobs <= 1 and not pool.ray) or len(items) < 2:
        return [_told(pool, work(item), i, len(items)) for i, item in enumerate(items)]
    return _over_ray(work, items, pool) if pool.ray else _over_processes(work, items, pool)


def _told(pool: Pool | None, result: R, i: int, total: int) -> R:
    if pool and pool.tell:
        pool.tell(i + 1, total)
    return result


def _over_processes(work: Callable[[T], R], items: Sequence[T], pool: Pool) -> list[R]:
    results: dict[int, R] = {}
    errors: dict[int, ChipError] = {}
    tries = 0
    while left := [i for i in range(len(items)) if i not in results and i not in errors]:
        try:
            with ProcessPoolExecutor(min(pool.jobs, len(left)), get_context("spawn")) as executor:
                asked: dict[Future[R], int] = {executor.submit(work, items[i]): i for i in left}
                for done in as_completed(asked):
                    try:
                        results[asked[done]] = done.result()
                    except ChipError as e:
                        errors[asked[done]] = e
                    if pool.tell:
                        pool.tell(len(results) + len(errors), len(items))
        except BrokenProcessPool:  # one was killed; what the others had answered is kept
            tries += 1
            if tries >= TRIES:
                raise ChipError(f"workers died {tries} times in a row; try --jobs 1 to see why") from None
            print(f"chip: a worker died; {len(left)} of {len(items)} were left and are done again", file=sys.stderr)
    return _in_order(results, errors, len(items))


def _in_order(results: dict[int, R], errors: dict[int, ChipError], count: int) -> list[R]:
    """Where work failed, the error is that of the first item, whoever was quicker."""
    if errors:
        raise errors[min(errors)]
    return [results[i] for i in range(count)]


def _over_ray(work: Callable[[T], R], items: Sequence[T], pool: Pool) -> list[R]:
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise ChipError(f"--ray needs Ray: {install('cluster')}") from None
    started = not ray.is_initialized()
    if started:
        _connect(ray, pool)
    try:
        remote = ray.remote(max_retries=TRIES)(work)
        return _gathered(ray, [remote.remote(item) for item in items], pool)
    finally:
        if started:
            ray.shutdown()


def _answers(address: str) -> bool:
    """Whether anybody listens at host:port: Ray itself tries for minutes before it says that nobody does."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return True  # "auto" and the like: Ray knows
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_S):
            return True
    except OSError:
        return False


def _connect(ray: Any, pool: Pool) -> None:
    if pool.ray != "local" and not _answers(pool.ray):
        raise ChipError(f"--ray {pool.ray}: no cluster answers there; `--ray local` starts one here")
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    try:
        if pool.ray == "local":
            ray.init(num_cpus=pool.jobs if pool.jobs > 1 else None, **quiet)
        else:
            ray.init(address=pool.ray, log_to_driver=False, logging_level="ERROR")
    except Exception as e:
        raise ChipError(f"--ray {pool.ray}: no cluster answers there ({str(e).splitlines()[0][:120]})") from None


def _gathered(ray: Any, asked: list[Any], pool: Pool) -> list[Any]:
    place = {reference: i for i, reference in enumerate(asked)}
    results: dict[int, Any] = {}
    errors: dict[int, ChipError] = {}
    waiting = list(asked)
    while waiting:
        ready, waiting = ray.wait(waiting, num_returns=1)
        for reference in ready:
            try:
                results[place[reference]] = ray.get(reference)
            except ray.exceptions.RayTaskError as e:
                known = isinstance(e.cause, ChipError)
                errors[place[reference]] = e.cause if known else ChipError(_failed(e))
            except ray.exceptions.RayError as e:
                lost = f"workers of the cluster died {TRIES + 1} times on one task ({type(e).__name__})"
                errors[place[reference]] = ChipError(lost)
        if pool.tell:
            pool.tell(len(results) + len(errors), len(asked))
    return _in_order(results, errors, len(asked))


def _failed(error: Exception) -> str:
    lines = str(getattr(error, "cause", None) or error).strip().splitlines()
    return f"a worker failed: {lines[0][:200]}" if lines else "a worker failed"


def in_chunks(items: Iterable[T], size: int) -> Iterable[list[T]]:
    chunk: list[T] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
