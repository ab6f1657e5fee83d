"""Published rows that cannot be true as their columns stand: told by physics and each other, never by a prediction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from chip.decoders.decoder import Decoder
from chip.decoders.lower import check_shards
from chip.hardware import gpus
from chip.types import ChipError
from chip.validate.checkpoints import checkpoint
from chip.validate.recipes import SHORTEST
from chip.validate.silicon import SiliconRow

PRECISIONS = {"fp4": ("matmul_fp4", "matmul_fp8"), "fp8": ("matmul_fp8",), "int4": ("matmul_bf16",)}
APART = 1.5  # measured again on the same deployment, times that differ by more contradict each other


def doubts(rows: Sequence[SiliconRow]) -> dict[str, str]:
    """Why rows cannot be true, by id."""
    told = {row.id: why for row in rows if (why := _impossible(row))}
    alike: dict[tuple[str, ...], list[SiliconRow]] = defaultdict(list)
    for row in rows:
        same = {k: v for k, v in row.columns.items() if k not in ("id", "silicon_data_source") and "silicon_t" not in k}
        alike[*same.values(), str(row.users)].append(row)
    for several in alike.values():
        times_s = [row.tpot_s for row in several]
        if max(times_s) > APART * min(times_s):
            for row in several:
                told.setdefault(
                    row.id, f"the same columns were measured {APART:g} times apart: they leave out a setting"
                )
    return told


def _impossible(row: SiliconRow) -> str:
    split = row.split
    try:
        model = checkpoint(row.model, row.precision)
        if not row.prefill and split.gpus > 8:
            check_shards(model, split.tp, split.ep)
        ceilings = gpus.find(row.gpu).spec
    except ChipError as e:
        return f"on {split.gpus} GPUs: {e}" if "does not divide" in str(e) else ""
    if ceilings is None or row.prefill:
        return ""
    least_s = weights_read_bytes(model, row.precision) / (ceilings.ceilings["hbm"].value * max(split.tp, split.ep))
    if row.tpot_s < least_s:
        return "a token takes less than reading its weights: more than one comes of a step"
    rate = next((ceilings.ceilings[n].value for n in PRECISIONS.get(row.precision, ()) if n in ceilings.ceilings), 0.0)
    rate = rate or ceilings.ceilings["matmul_bf16"].value
    tokens = (1 + SHORTEST) / 2 * (row.prompt + row.output)
    seconds = row.ttft_s + (row.output - 1) * (1 + SHORTEST) / 2 * row.tpot_s
    needed = 2 * model.active_params() * tokens * row.users / seconds / split.gpus
    return "its tokens need more arithmetic than the GPUs have: prompts came from a cache" if needed > rate else ""


def weights_read_bytes(model: Decoder, precision: str) -> float:
    """Of one token: its own experts' weights and all others, in the narrowest format of the checkpoint."""
    width = {"fp4": 0.5, "int4": 0.5, "fp8": 1.0}.get(precision, 2.0)
    return float(model.active_params() * width)
