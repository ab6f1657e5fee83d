"""docs/status.md and docs/kernels.md: our own kernels on an H200, from the samples in results/h200/kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import test_kernel_records as timed

from chip.lab.kernels import catalog
from doc_figures.records import met

ROWS = ("layer_norm", "rms_norm", "softmax")
CUBES = ("4096x4096x4096", "8192x8192x8192")
MMA, WGMMA = "hgemm_4_mma", "hgemm_5_wgmma"


def listed(values: Iterable[float], digits: int = 1, unit: str = " %") -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values) + unit


def span(values: Iterable[float], digits: int = 1, unit: str = " %") -> str:
    values = list(values)
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}{unit}"


def shares(kernel: str, columns: Iterable[int]) -> list[float]:
    """Percent of the copy bandwidth at rows of so many columns."""
    calls = [timed.timed(kernel)[f"{kernel} {(256 << 20) // (2 * n)}x{n}"] for n in columns]
    return [100 * timed.of_copy(rows) for rows in calls]


def of_ten(kernel: str, is_ahead: Callable[[dict], bool]) -> int:
    return sum(is_ahead(rows) for rows in timed.timed(kernel).values())


def ahead(rows: dict) -> bool:
    return timed.over(rows, timed.best(rows)) > 1


def clearly(rows: dict) -> bool:
    return timed.verdict(rows, timed.best(rows)) == "faster"


def products(rung: str, dtypes: Iterable[str] = ("", " fp16"), shapes: Iterable[str] = timed.PRODUCTS) -> list[float]:
    """Percent of cuBLAS, as PyTorch calls it."""
    calls = timed.timed("hgemm")
    return [100 * timed.over(calls[f"linear {shape}{d}"], "torch", rung) for d in dtypes for shape in shapes]


def _of_best(rung: str, shapes: Iterable[str] = timed.PRODUCTS) -> str:
    calls = [timed.timed("hgemm")[f"linear {shape}{dtype}"] for dtype in ("", " fp16") for shape in shapes]
    return span([100 * min(timed.p50(r["torch"]), timed.p50(r["cublaslt"])) / timed.p50(r[rung]) for r in calls])


def of_best(rung: str) -> str:
    """Percent of the faster of cuBLAS and cublasLt, over all products."""
    return _of_best(rung)


def at_cubes(rung: str) -> str:
    return _of_best(rung, CUBES)


def bars() -> Iterator[str]:
    yield "| what | target | measured | met |"
    yield "|---|---|---|---|"
    for what, target, reached, holds in (*of_steps(), *of_rows(), *of_fused(), *of_products()):
        yield f"| {what} | {target} | {reached} | {met(holds)} |"


def of_steps() -> Iterator[tuple[str, str, str, bool]]:
    *small, large = timed.timed("row_normalize").values()
    last = "row_normalize_3_optimised"
    faster, most = [timed.over(rows, "torch", last) for rows in small], timed.over(large, "torch", last)
    what, said = "row normalisation, fp32, over the composed expression", f"{listed(faster, 1, 'x')}; {most:.1f}x"
    yield what, "3x; 2.7x at 65536 x 4096", said, min(faster) >= 3 and most >= 2.7
    reached = 100 * timed.of_copy(large, last)
    yield "the same at 65536 x 4096", "90 % of copy bandwidth", f"{reached:.0f} %", reached >= 90


def of_rows() -> Iterator[tuple[str, str, str, bool]]:
    by = {call: timed.over(rows, timed.best(rows)) for kernel in ROWS for call, rows in timed.timed(kernel).items()}
    call = min(by, key=by.__getitem__)
    slower, (kernel, shape) = 100 * (1 / by[call] - 1), call.split()
    what = "`layer_norm`, `rms_norm`, `softmax`: slower than the best of PyTorch and torch.compile"
    said = f"by {slower:.1f} % at most (`{kernel}`, {shape.split('x')[1]} columns)"
    yield what, "by 2 % at most", said, slower <= 2
    for what, is_ahead in (
        ("the same: most calls faster, by the median", ahead),
        ("the same, by more than the noise and 1 %", clearly),
    ):
        counts = [of_ten(kernel, is_ahead) for kernel in ROWS]
        yield what, "6 of 10 each", f"{counts[0]}, {counts[1]} and {counts[2]} of 10", min(counts) >= 6
    for kernels in (("layer_norm", "rms_norm"), ("softmax",)):
        title = ", ".join(f"`{kernel}`" for kernel in kernels)
        middle = [s for k in kernels for s in shares(k, (4096, 8192, 16384, 32768))]
        yield (
            f"{title}, 4096 to 32768 columns",
            "92 % of copy bandwidth",
            f"{min(middle):.1f} % and more",
            min(middle) >= 92,
        )
        short = [s for k in kernels for s in shares(k, (256, 512, 1024))]
        long = [s for k in kernels for s in shares(k, (65536,))]
        said = f"{min(short):.1f} % and more; {listed(long)}"
        yield "the same, up to 1024 columns; at 65536", "85 %", said, min(*short, *long) >= 85


def of_fused() -> Iterator[tuple[str, str, str, bool]]:
    kernels = ("add_rms_norm", "silu_mul", "rope")
    calls = [list(timed.timed(kernel).values()) for kernel in kernels]
    said = "; ".join(span([timed.over(rows, "compile") for rows in mine], 3, "x") for mine in calls)
    slower = [rows for mine in calls for rows in mine if timed.verdict(rows, "compile") == "slower"]
    yield ", ".join(f"`{k}`" for k in kernels), "no slower than torch.compile", said, not slower
    faster = [timed.over(rows, "flash") for rows in timed.timed("decode_attention").values()]
    yield "decode attention", "within 1.1x of flash", f"{span(faster, 2, '')} times as fast", min(faster) >= 1 / 1.1


def of_products() -> Iterator[tuple[str, str, str, bool]]:
    mma = products(MMA)
    yield "HGEMM, mma rung, ten products", "55 % of cuBLAS", span(mma), min(mma) >= 55
    bf16, fp16 = (products(WGMMA, (dtype,), CUBES) for dtype in ("", " fp16"))
    what, said = "HGEMM, last rung, 4096 and 8192 cubed", f"{listed(bf16)} in bf16, {listed(fp16)} in fp16"
    yield what, "95 % of cuBLAS", said, min(*bf16, *fp16) >= 95


def roofs(*names: str) -> str:
    """What the instructions of a path reach on data that is in place, in TFLOP/s."""
    found = timed.artifact_of("hgemm")["data"]["ladder"][0]["roofs_flops_per_s"]
    return ", ".join(f"{found[name] / 1e12:.0f}" for name in names)


def copy_bandwidth() -> str:
    return f"{timed.COPY / 1e12:.2f} TB/s"


def counts(reading: str) -> str:
    first, second, third = (of_ten(kernel, {"ahead": ahead, "clearly": clearly}[reading]) for kernel in ROWS)
    return f"{first}, {second} and {third}"


def share_of_copy(kernel: str, *columns: str) -> str:
    return listed(shares(kernel, map(int, columns)))


def span_of_copy(kernel: str, *columns: str) -> str:
    return span(shares(kernel, map(int, columns)), 0)


# -- what Nsight Compute counted
def _counted(kernel: str) -> dict[str, dict]:
    return {row["variant"].removeprefix(f"{kernel}_"): row for row in timed.counters(kernel.replace("_", ""))}


def moved(kernel: str, variant: str) -> str:
    """Bytes of memory over those that must be read and written."""
    return f"{_counted(kernel)[variant]['dram_over_counted']:.2f}"


def counted_us(kernel: str, *variants: str) -> str:
    return " against ".join(f"{1e6 * _counted(kernel)[variant]['seconds']:.0f} us" for variant in variants)


def counted() -> Iterator[str]:
    """Row normalisation, step by step."""
    yield "| by | read | written | over the 2 GiB that must be moved | through L2 | time | memory rate |"
    yield "|---|---|---|---|---|---|---|"
    for name, row in _counted("row_normalize").items():
        read, written, through = (row[key] / 2**30 for key in ("dram_read_bytes", "dram_write_bytes", "l2_bytes"))
        time, rate = f"{1e3 * row['seconds']:.2f} ms", f"{row['dram_bytes_per_s'] / 1e12:.2f} TB/s"
        title = {"torch": "composed"}.get(name, name.replace("_", " "))
        over = f"{row['dram_over_counted']:.2f}"
        yield f"| {title} | {read:.2f} GiB | {written:.2f} GiB | {over} | {through:.1f} GiB | {time} | {rate} |"


# -- forms of softmax, as they were tuned


def climbed(dtype: str) -> str:
    """TFLOP/s of every rung at 4096 cubed, and of PyTorch's cuBLAS."""
    call = timed.timed("hgemm")[f"linear {CUBES[0]}{' fp16' if dtype == 'fp16' else ''}"]
    rates = [2 * 4096**3 / timed.p50(call[who]) / 1e3 for who in (*catalog.steps("hgemm"), "torch")]
    return listed(rates, 1, "")


def normalised() -> str:
    """The composed row normalisation and ours, at the largest shape."""
    rows = timed.timed("row_normalize")["row_normalize 65536x4096 fp32"]
    ours = "row_normalize_3_optimised"
    composed_ms, ours_us = timed.p50(rows["torch"]) / 1e6, timed.p50(rows[ours]) / 1e3
    faster = timed.over(rows, "torch", ours)
    return f"{composed_ms:.3f} ms, the optimised kernel {ours_us:.1f} us: {faster:.2f} times as fast"
