"""Energy and the power limit: no answer draws more than the GPU's limit, or less than it does idle."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from doc_figures import power

import chip
from chip.dtypes import PRECISIONS
from chip.hardware import gpus as hardware
from chip.predictor.roof import roof_of
from chip.types import ChipError

MODELS = ("llama-3.1-8b", "qwen3-32b", "mixtral-8x7b", "qwen3-32b-fp8", "gpt-oss-20b")
GPUS = ("h200", "h200", "h100", "b200", "l40s")
ENGINES = ("vllm", "vllm", "vllm", "hf-graph", "hf-eager")
WORKLOADS = ("poisson:prompt=4096,output=4", "poisson:prompt=900~0.8,output=8~0.5", "poisson:prompt=128,output=64")
ROUNDED = 1 + 1e-6  # answers have seven digits


def questions(count: int) -> Iterator[dict[str, Any]]:
    draw = random.Random(19)
    for _ in range(count):
        yield {
            "model": draw.choice(MODELS), "gpu": draw.choice(GPUS), "engine": draw.choice(ENGINES),
            "dtype": draw.choice([*PRECISIONS, "auto"]), "batch": 2 ** draw.randrange(10),
            "prompt": draw.choice([1, 16, 128, 512, 1024, 4096]), "output": draw.choice([1, 2, 16, 128, 512]),
        }  # fmt: skip


def within_limits(gpu: str, watts: float) -> bool:
    metered, sheet = roof_of(hardware.find(gpu)).power, hardware.find(gpu).spec
    assert metered
    assert sheet
    return metered.idle_w <= watts * ROUNDED and watts <= sheet.power_w.value * ROUNDED


def test_no_prediction_draws_more_than_the_limit() -> None:
    metered, over = 0, []
    for q in questions(150):
        try:
            p = chip.predict(**q)
        except ChipError:  # a format that the GPU or the engine does not have
            continue
        if p.energy_j_per_token is None:
            assert p.power is None
            continue
        metered += 1
        watts = p.energy_j_per_token * q["batch"] * q["output"] / p.e2e_s
        if not within_limits(q["gpu"], watts):
            over.append((round(watts), q))
    assert metered > 40
    assert over == []


@pytest.mark.parametrize("split", [{}, {"dtype": "w8a8"}, {"dtype": "int4"}, {"pp": 2}, {"tp": 2}, {"replicas": 2}])
def test_no_traffic_draws_more_than_the_limit(split: dict[str, Any]) -> None:
    for i, workload in enumerate(WORKLOADS):
        found = chip.simulate("llama-3.1-8b", workload=workload, rate=(0, 30)[i % 2], requests=24, draws=0, **split)
        assert found.energy is not None
        assert within_limits("h200", found.energy["mean_w"] / found.json()["gpus"])


def test_what_sums_up_to_more_than_the_limit_draws_the_limit() -> None:
    """Products that ran for seconds, from a few rows to many: their FLOPs and bytes, metered alone, are up to a third
    more than was drawn. Bursts after a rest draw more than the limit, for a tenth of a second."""
    limit_w, over = hardware.spec("h200").power_w.value, 0
    for row in power.record()["steady"]:
        if power.summed(row) > limit_w:
            over += 1
            assert row["watts"] == pytest.approx(limit_w, rel=0.01)
    assert over >= 5
    assert max(map(power.summed, power.record()["steady"])) > 1.25 * limit_w
    watts = [row["watts"] for row in power.record()["bursts"][1:]]
    assert max(watts) > 1.2 * limit_w
    assert max(watts[-3:]) < 1.1 * limit_w


def test_joules_of_a_format_that_was_not_metered_go_by_its_rate() -> None:
    """int8 was not metered. At the limit it draws as much as fp8, which was, and both run at one rate."""
    roof = roof_of(hardware.find("h200"))
    assert roof.power
    per_flop = roof.power.per_flop_j
    assert per_flop["matmul_int8"] == pytest.approx(per_flop["matmul_fp8"], rel=0.03)
    assert per_flop["matmul_fp8"] < 0.6 * per_flop["matmul_bf16"]


def test_products_in_fp16_take_as_much_longer_at_the_limit_as_they_draw_more() -> None:
    """They are read from points in bf16. A FLOP in fp16 draws more, so its clock settles lower."""
    settled = hardware.find("h200").profile
    assert settled
    slower = settled.ceilings["matmul_bf16_settled"].value / settled.ceilings["matmul_fp16_settled"].value
    assert slower > 1.02
    times = {
        dtype: next(
            n.seconds for n in chip.predict("llama-3.1-8b", batch=16, prompt=2048, dtype=dtype).lines["ttft"]
            if n.role == "down_proj"
        )
        for dtype in ("bf16", "fp16")
    }  # fmt: skip
    assert times["fp16"] / times["bf16"] == pytest.approx(slower, abs=0.005)
