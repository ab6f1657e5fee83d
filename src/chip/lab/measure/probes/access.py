"""How much of the streaming bandwidth is left when access is not a stream: turnaround, strides, random rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from chip.lab.measure.bench import Bench, ProbeCase, ratio
from chip.lab.measure.journal import Outcome
from chip.lab.measure.stopping import Samples
from chip.lab.measure.timing import Call, events, inner_for
from chip.stats import median
from chip.types import Ceiling, Curve

WORD_BYTES = 8  # int64: wide enough that addresses cost no more than data
LINE_BYTES = 128
PIECE_BYTES = 32  # one sector


def cases(bench: Bench) -> list[ProbeCase]:
    seconds = 1 + bench.budget.rule.max_seconds + len(bench.budget.access_bytes) * bench.budget.trial.max_seconds
    return [
        ProbeCase("memory_turnaround", ("memory_turnaround",), seconds, _turnaround),
        ProbeCase("memory_strided", ("memory_strided",), seconds, _strided),
        ProbeCase("memory_random", ("memory_random",), seconds, _random),
    ]


def _samples(bench: Bench, call: Call, final: bool) -> Samples:
    call()
    take = events(bench.device, [call], inner_for(bench.device, [call], bench.budget.sample_s, limit=200))
    return bench.collect(take, bench.budget.rule if final else bench.budget.trial)


def _factor(bench: Bench, call: Call, useful_bytes: float, method: str) -> Ceiling:
    rate = bench.rate(_samples(bench, call, final=True), useful_bytes, "B/s", method)
    return ratio(rate, bench.need("hbm_copy"), method)


def _share(bench: Bench, call: Call, useful_bytes: float) -> float:
    samples = _samples(bench, call, final=False)
    return useful_bytes / (median(samples.samples_ns) * 1e-9) / bench.need("hbm_copy").value


def _turnaround(bench: Bench) -> Outcome:
    """Write a chunk, read back what was just written, over and over; against a copy of as many bytes."""
    bench.need("hbm_copy")
    whole = bench.buffer(0, bench.buffer_bytes())
    out = torch.empty((), device=whole.device)

    def write_then_read(chunk: torch.Tensor) -> Call:
        def call() -> None:
            chunk.fill_(1.5)
            torch.sum(chunk, dim=0, out=out)

        return call

    largest = whole.numel() * 4
    x = [float(largest >> shift) for shift in (8, 6, 4, 2)]
    y = [_share(bench, write_then_read(whole[: int(size) // 4]), 2 * size) for size in x]
    method = f"fill_ then sum of the same {largest >> 20} MiB, bytes moved per second over hbm_copy"
    factor = _factor(bench, write_then_read(whole), 2 * largest, method)
    curve = _curve("chunk", (*x, float(largest)), (*y, factor.value), "write a chunk, then read it, over hbm_copy")
    return Outcome(factors={"memory_turnaround": factor}, curves={"turnaround_by_chunk": curve})


def _strided(bench: Bench) -> Outcome:
    """Copy the first 32 bytes of every stride into a dense buffer; useful bytes against a copy's."""
    bench.need("hbm_copy")
    words, target = (bench.buffer(i, bench.buffer_bytes()).view(torch.int64) for i in range(2))

    def gather(stride: int) -> tuple[Call, float]:
        lines = words.view(-1, stride // WORD_BYTES)[:, : PIECE_BYTES // WORD_BYTES]
        dense = target[: lines.numel()].view(lines.shape)
        return lambda: dense.copy_(lines), 2.0 * lines.numel() * WORD_BYTES

    strides = {s for s in (64, 256, 512, 2048) if s in bench.budget.access_bytes} | {256}
    method = (
        f"{PIECE_BYTES} bytes of every {LINE_BYTES} copied to a dense buffer, useful bytes per second over hbm_copy"
    )
    factor, (x, y) = _by_size(bench, gather, strides, method)
    curve = _curve("stride", x, y, f"{PIECE_BYTES} bytes of every stride, over hbm_copy")
    return Outcome(factors={"memory_strided": factor}, curves={"strided_by_stride": curve})


def _random(bench: Bench) -> Outcome:
    """Gather rows in random order, each once; useful bytes against a copy's."""
    bench.need("hbm_copy")
    table, target = (bench.buffer(i, bench.buffer_bytes()).view(torch.int64) for i in range(2))

    def gather(row_bytes: int) -> tuple[Call, float]:
        rows = table.view(-1, row_bytes // WORD_BYTES)
        count = min(rows.shape[0], 2**22)
        index = torch.randint(rows.shape[0], (count,), device=table.device)
        dense = target[: count * rows.shape[1]].view(count, -1)
        return lambda: torch.index_select(rows, 0, index, out=dense), 2.0 * count * row_bytes + 8 * count

    method = f"index_select of {LINE_BYTES}-byte rows in random order, useful bytes per second over hbm_copy"
    factor, (x, y) = _by_size(bench, gather, bench.budget.access_bytes, method)
    return Outcome(
        factors={"memory_random": factor}, curves={"random_by_row": _curve("row", x, y, "random rows, over hbm_copy")}
    )


def _by_size(
    bench: Bench, gather: Callable[[int], tuple[Call, float]], sizes: Iterable[int], method: str
) -> tuple[Ceiling, tuple[Sequence[float], Sequence[float]]]:
    """The factor at LINE_BYTES, and the shares at all sizes as a curve."""
    shares = {float(s): _share(bench, *gather(s)) for s in sorted(set(sizes) - {LINE_BYTES})}
    factor = _factor(bench, *gather(LINE_BYTES), method)
    x, y = zip(*sorted({**shares, float(LINE_BYTES): factor.value}.items()))
    return factor, (x, y)


def _curve(x_name: str, x: Sequence[float], y: Sequence[float], method: str) -> Curve:
    return Curve(x_name, "B", "share of hbm_copy", "1", tuple(x), tuple(y), method)
