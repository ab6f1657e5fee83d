"""docs/native.md: our own engine on an H200, from the records in results/h200/native."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import chip
from chip.decoders import library
from chip.hardware import gpus
from chip.validate import judge
from chip.validate.points import Point
from doc_figures.accuracy import RECORDS, pair
from doc_figures.kernels import span
from doc_figures.records import met

FOLDER = RECORDS / "native"
COPY = gpus.find("h200").profile.ceilings["hbm_copy"].value
BATCHES = (1, 8, 32)
ROUNDS = {  # of models whose runs were predicted: files of runs, and the models of them
    "all": ("runs-3", "runs-4", "runs-5"),
    "three models whose kernels were looked at": ("runs-3",),
    "five models that showed what was missing": ("runs-4",),
    "four models, looked at last": ("runs-5",),
}
SMALL = ("qkv", "out")  # products that take a few microseconds


@cache
def beside_vllm() -> dict[str, Any]:
    return json.loads((FOLDER / "beside-vllm.json").read_text())


@cache
def part(name: str) -> Any:
    return json.loads((FOLDER / "native.json").read_text())["parts"][name]["result"]


def rounds() -> str:
    return f"{beside_vllm()['made']['rounds']} rounds"


def in_turn() -> Iterator[str]:
    yield "| batch | TPOT native | TPOT vLLM | ratio | TTFT native | TTFT vLLM | ratio |"
    yield "|---|---|---|---|---|---|---|"
    for row in beside_vllm()["rows"]:
        cells = [str(row["batch"])]
        for metric, digits in (("tpot_s", 2), ("ttft_s", 1)):
            cells += [f"{1e3 * row[f'{engine}_{metric}']:.{digits}f} ms" for engine in ("native", "vllm")]
            cells.append(f"{row[f'{metric}_native_over_vllm']:.2f}")
        yield f"| {' | '.join(cells)} |"


def asked_in_turn() -> str:
    """TPOT at most 1.05 of vLLM's, below it at batch 1; prefill of 8 x 512 within 1.10."""
    by = {row["batch"]: row for row in beside_vllm()["rows"]}
    steps = all(row["tpot_s_native_over_vllm"] <= 1.05 for row in by.values())
    return met(steps and by[1]["tpot_s_native_over_vllm"] < 1 and by[8]["ttft_s_native_over_vllm"] <= 1.10)


# -- who computes
def engine(kernels: str, batch: int, what: str = "step_device_s") -> float:
    return next(row[what] for row in part("engine")["rows"] if (row["kernels"], row["batch"]) == (kernels, batch))


def who_computes() -> Iterator[str]:
    columns = ("torch", "triton", "chip", "chip, one after another")
    yield "| batch | `torch` | `triton` | `chip` | `chip`, one after another |"
    yield "|---|---|---|---|---|"
    for batch in BATCHES:
        yield f"| {batch} | {' | '.join(f'{1e3 * engine(kernels, batch):.2f}' for kernels in columns)} |"


def over_torch() -> str:
    return span([engine("torch", batch) / engine("chip", batch) for batch in BATCHES], 1, "")


def early_starts() -> str:
    alone = "chip, one after another"
    return span([100 * (engine(alone, batch) / engine("chip", batch) - 1) for batch in BATCHES], 0)


def first_token(kernels: str) -> str:
    return f"{1e3 * engine(kernels, 1, 'ttft_s'):.1f}"


def ladder() -> Iterator[str]:
    yield "| ours up to | batch 1 | 8 | 32 |"
    yield "|---|---|---|---|"
    rows = part("ladder")
    for i, added in enumerate(dict.fromkeys(row["added"] for row in rows)):
        taken = {row["batch"]: row["step_device_s"] for row in rows if row["added"] == added}
        name = "none" if i == 0 else f"{'+ ' if i > 1 else ''}`{added}`"
        yield f"| {name} | {' | '.join(f'{1e3 * taken[batch]:.2f}' for batch in BATCHES)} |"


# -- kernels
def few(products: Sequence[str], rows: Sequence[int], who: str) -> list[float]:
    """Percent of a copy."""
    found = [r["timed"] for r in part("few") if r["product"] in products and r["m"] in rows]
    return [100 * timed[who]["of_copy"] for timed in found]


def many(rows: Sequence[int]) -> list[float]:
    """Percent of the faster of cuBLAS and cublasLt."""
    found = [r["timed"] for r in part("many") if r["m"] in rows]
    return [100 * min(t["torch"]["p50_s"], t["cublaslt"]["p50_s"]) / t["wgmma, early"]["p50_s"] for t in found]


def rows_of(*kernels: str) -> list[float]:
    return [100 * r["timed"]["ours"]["of_copy"] for r in part("rows") if r["kernel"] in kernels]


def kernels() -> Iterator[str]:
    yield "| what | asked | measured | met |"
    yield "|---|---|---|---|"
    large, ours = ("gate_up", "down", "qwen2.5-14b gate"), "skinny_2_wgmma, early"
    for title, rows in (("1 to 16", (1, 8, 16)), ("32 and 64", (32, 64))):
        for name, products in (("gate and up, down", large), ("q, k, v; output", SMALL)):
            reached, theirs = few(products, rows, ours), few(products, rows, "torch")
            said = f"{span(reached, 0)} (cuBLAS {span(theirs, 0)})"
            yield _row(f"products of {title} rows, started early: {name}", "85 % of a copy", said, min(reached) >= 85)
    reached = many((256, 512, 1024, 4096))
    said = f"{span(reached)}; {sum(r >= 95 for r in reached)} of {len(reached)} meet it"
    asked = "95 % of the best of cuBLAS and cublasLt"
    yield _row("products of 256 rows and more, started early", asked, said, min(reached) >= 95)
    yield f"| the same of 128 rows | | {span(many((128,)))} | |"
    for names in (("rms_norm", "add_rms_norm", "layer_norm"), ("silu_mul",)):
        reached, title = rows_of(*names), ", ".join(f"`{name}`" for name in names)
        yield _row(f"{title}, at widths of real models", "90 % of a copy", span(reached, 0), min(reached) >= 90)
    took = [t[prefill_as_today(dim)]["p50_s"] / t["flash"]["p50_s"] for dim, t in prefills()]
    yield _row("prefill attention", "1.15 of flash's time", span(took, 2, ""), max(took) <= 1.15)


def prefills() -> Iterator[tuple[int, Any]]:
    for row in part("attention")["prefill"]:
        yield row["head_dim"], row["timed"]


def prefill_as_today(head_dim: int) -> str:
    """Four warps for wide heads (WIDE in kernels/triton/prefill_attention.py), which was tried when this was timed."""
    return "ours, 4 warps, 3 stages" if head_dim >= 128 else "ours"


def _row(what: str, asked: str, reached: str, holds: bool) -> str:
    return f"| {what} | {asked} | {reached} | {met(holds)} |"


def comparisons() -> str:
    return f"{sum(found['ok'] for found in part('check').values()):,}"


def logits(whose: str) -> str:
    return f"{part('exact')['chip'][{'ours': 'error', 'transformers': 'transformers_error'}[whose]]:.3f}"


# -- the roofline of a decode step of Llama-3.1-8B
def weights_bytes() -> float:
    """Read for each token: the embedding is a row of it."""
    decoder = library.find("llama-3.1-8b")
    return 2 * (decoder.params() - decoder.hidden * decoder.vocab)


def weights_gb() -> str:
    return f"{weights_bytes() / 1e9:.2f} GB of weights for a token"


def floor_ms() -> str:
    return f"{1e3 * weights_bytes() / COPY:.2f} ms"


def kv_token() -> str:
    found = chip.predict("llama-3.1-8b", gpu="h200").memory["kv_bytes_per_token"]
    return f"{found / 1024:.0f} KiB a token"


def ridge() -> str:
    return f"{gpus.find('h200').profile.ceilings['matmul_bf16'].value / COPY:.0f}"


# -- predictions
@cache
def judged(*files: str) -> Sequence[Point]:
    return judge.judge(judge.read(FOLDER / f"{file}.json" for file in files), "h200").points


def errors(metric: str, which: str = "all") -> str:
    return pair(p.error for p in judged(*ROUNDS[which]) if p.metric == metric)


def runs_and_models() -> str:
    found = judged(*ROUNDS["all"])
    return f"{len({p.run for p in found})} runs of {len({p.model for p in found})} models"


def predicted() -> Iterator[str]:
    yield "| runs | TPOT: median, p90 | TTFT | energy |"
    yield "|---|---|---|---|"
    for which in ROUNDS:
        count = len({p.run for p in judged(*ROUNDS[which])})
        cells = [errors(metric, which) for metric in ("tpot", "ttft", "joules_per_token")]
        yield f"| {which} ({count}) | {' | '.join(cells)} |"
