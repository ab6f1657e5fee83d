"""GPUs of one chip share what was measured on one of them: the better one is nowhere slower."""

from __future__ import annotations

import random
import runpy
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

import chip
from chip import stats
from chip.hardware import gpus as hardware
from chip.predictor import peaks
from chip.predictor.interpolate import Z90
from chip.show import cli
from chip.types import ChipError

MODELS = ("llama-3.2-1b", "qwen2.5-0.5b", "llama-3.1-8b", "mixtral-8x7b")
FORMATS = ("bf16", "fp16", "fp8", "w8a8", "int8", "int4")
SLOWER = 1.03
ROOT = Path(__file__).parents[2]


def of_chips() -> dict[str, list[str]]:
    """The GPUs of each chip."""
    found: dict[str, list[str]] = {}
    for name in hardware.spec_names():
        if (sheet := hardware.spec(name)).chip:
            found.setdefault(sheet.chip.name, []).append(name)
    return found


def is_nowhere_worse(one: str, other: str) -> bool:
    a, b = hardware.spec(one), hardware.spec(other)
    known = {name: q.value for name, q in a.ceilings.items()}
    return (
        all(known.get(name, 0.0) >= q.value for name, q in b.ceilings.items())
        and a.units.value >= b.units.value
        and a.boost_clock_hz.value >= b.boost_clock_hz.value
        and a.l2_bytes.value >= b.l2_bytes.value
        and a.power_w.value >= b.power_w.value
        and link_rate(one) >= link_rate(other)
    )


def link_rate(gpu: str) -> float:
    return max(link.bytes_per_s.value for link in hardware.spec(gpu).links.values())


def were_both_timed(one: str, other: str) -> bool:
    """Whether others timed either: of two GPUs a GB200 reduces more slowly in their table than a B200."""
    return all((hardware.IMPORTED / name).is_dir() and name not in hardware.profile_names() for name in (one, other))


PAIRS = [
    pair
    for names in of_chips().values()
    for pair in permutations(names, 2)
    if is_nowhere_worse(*pair) and not were_both_timed(*pair)
]


def questions(count: int) -> list[dict[str, Any]]:
    draw = random.Random(23)
    return [
        {
            "model": draw.choice(MODELS), "dtype": draw.choice(FORMATS), "batch": draw.choice([1, 4, 16, 64]),
            "prompt": draw.choice([16, 128, 1024, 4096]), "output": draw.choice([64, 256]),
            "tp": draw.choice([1, 1, 1, 2]),
        }
        for _ in range(count)
    ]  # fmt: skip


def asked(gpu: str, question: dict[str, Any]) -> Any:
    """The answer; None where the GPU has no such format or no room for the model, which are answered as if they had."""
    try:
        found = chip.predict(gpu=gpu, **question)
    except ChipError:
        return None
    return found if found.memory["fits"] else None


def test_the_better_gpu_of_a_chip_is_never_slower() -> None:
    """Steps of a GPU with less memory hold fewer tokens, so that requests end at different times: of a few tokens TPOT
    is the mean of other steps."""
    assert len(PAIRS) > 25
    compared, slower = 0, []
    gpus = {name for pair in PAIRS for name in pair}
    for question in questions(10):
        answers = {gpu: asked(gpu, question) for gpu in gpus}
        for one, other in PAIRS:
            a, b = answers[one], answers[other]
            if a is None or b is None:
                continue
            compared += 1
            for name in ("ttft_s", "tpot_s", "e2e_s"):
                if getattr(a, name) > SLOWER * getattr(b, name):
                    slower.append((one, other, name, question))
    assert compared > 200
    assert slower == []


def test_a_gpu_without_points_takes_those_of_the_nearest_gpu_of_its_chip() -> None:
    nearest = {"h800": "h100", "gh200": "h200", "a100-40gb": "a100", "l40": "l40s", "a800": "a100"}
    assert {gpu: hardware.find(gpu).sibling for gpu in nearest} == nearest
    assert hardware.find("rtx-pro-6000").sibling == "rtx-pro-6000-server"
    for gpu in ("h200", "h100", "l4", "mi300x"):  # with points, or with none of their chip
        assert hardware.find(gpu).sibling == ""
    assert hardware.find("h100").faster == "h200"
    for names in of_chips().values():
        assert all("device 10de:" in hardware.spec(name).chip.source for name in names)


def test_the_same_rates_give_the_same_answer() -> None:
    for gpu, like in (("h800", "h100"), ("a800", "a100")):
        a, b = (chip.predict("llama-3.1-8b", gpu=name, batch=8) for name in (gpu, like))
        assert (a.ttft_s, a.tpot_s) == pytest.approx((b.ttft_s, b.tpot_s), rel=1e-9)
        assert a.notes != b.notes


def test_an_answer_says_that_it_was_carried_over_and_is_less_certain() -> None:
    found, like = (chip.predict("llama-3.1-8b", gpu=name, batch=8).to_dict() for name in ("gh200", "h200"))
    assert found["sources"]["scaled"] > 0.9
    assert "interpolated" not in found["sources"]
    assert any("CHIP measured on h200, of the same chip" in note for note in found["notes"])
    wide, narrow = (high / low for low, high in (answer["interval"]["tpot_ms"] for answer in (found, like)))
    assert wide > narrow
    assert any("none less than on h200" in n for n in chip.predict("llama-3.1-8b", gpu="h100").notes)


def test_a_datasheet_of_ones_own_is_answered_from_its_chip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "h200", "--json"]) == 0
    (tmp_path / "own.json").write_text(capsys.readouterr().out.replace('"name": "h200"', '"name": "own"'))
    own = hardware.find(str(tmp_path / "own.json"))
    assert (own.name, own.sibling) == ("own", "h200")


def test_the_spread_is_what_an_h200_says_of_an_h100() -> None:
    errors = runpy.run_path(str(ROOT / "benchmarks" / "same_chip.py"))["errors"]
    off = [abs(error) for *_, error in errors()]
    assert len(off) > 5000
    assert stats.quantile(off, 0.9) / Z90 == pytest.approx(peaks.SPREAD, rel=0.02)


@pytest.mark.parametrize(("tp", "slow"), [(2, "19"), (4, "2.5"), (8, "1.1")])
def test_an_answer_says_where_pcie_makes_more_gpus_slower(tp: int, slow: str) -> None:
    """As fast as the imported table says, for NCCL and for vLLM's own kernel: eight cards reduce 1.1 GB/s."""
    found = chip.predict("llama-3.1-70b", gpu="l40s", dtype="fp8", tp=tp, batch=8)
    (note,) = [n for n in found.notes if n.startswith("collectives over PCIe take")]
    assert "more GPUs may be slower" in note
    assert f"{tp} l40s are taken to reduce large tensors at {slow} GB/s" in note
    given = chip.predict("llama-3.1-70b", gpu="l40s@20GB/s", dtype="fp8", tp=tp, batch=8)
    assert not [n for n in given.notes if n.startswith("collectives over PCIe take")]
