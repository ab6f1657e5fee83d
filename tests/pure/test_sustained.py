"""What a GPU sustains by its power: held against rates that others measured and that nothing was fitted to."""

from __future__ import annotations

from dataclasses import replace

import pytest

import chip
from chip.hardware import gpus
from chip.predictor import sustained
from chip.predictor.clock import Settling
from chip.show import cli
from chip.types import Quoted


def sustains(name: str, **rates: float) -> float:
    """TFLOP/s in bf16 of a GPU without points, its power limit and peak as said."""
    sheet = gpus.spec(name)
    if "watts" in rates:
        sheet = replace(sheet, power_w=Quoted(rates["watts"], "test"))
    if "peak" in rates:
        sheet = replace(sheet, ceilings={**sheet.ceilings, "matmul_bf16": Quoted(rates["peak"], "test")})
    share = sustained.share_of_peak(gpus.unmeasured(sheet.name, sheet))
    assert share is not None
    return share * sustained.peak_flop_per_s(sheet) / 1e12


@pytest.mark.parametrize(
    ("gpu", "given", "measured"),
    [
        # Max-Q at 8192 cubed, cuBLAS 229 and a kernel by hand 243: waynehacking8/blackwell-tensorcore-kernels
        ("rtx-pro-6000", {"watts": 300}, 236),
        ("l40s", {"watts": 275, "peak": 119.5e12}, 110),  # L20, cuBLAS 105 to 115: DefTruth/CUDA-Learn-Notes
    ],
)
def test_rates_that_others_published(gpu, given, measured):
    assert sustains(gpu, **given) == pytest.approx(measured, rel=0.13)


@pytest.mark.parametrize(("gpu", "measured"), [("b300", 1393), ("gb300", 1678), ("gb200", 1364), ("h100", 690)])
def test_rates_of_tables_that_it_does_not_rest_on(gpu, measured):
    """Median of SGLang's products of 10 ms and more in aiconfigurator-core 0.12.0; the GB200's were cut by something
    else: its products with zeros, too, are slower than a B200's."""
    sheet = gpus.spec(gpu)
    share = sustained.share_of_peak(gpus.unmeasured(gpu, sheet))
    found = share * sustained.peak_flop_per_s(sheet) / 1e12
    assert found == pytest.approx(measured, rel=0.2 if gpu == "gb200" else 0.07)


def test_a_gpu_with_more_power_than_arithmetic_keeps_its_clock():
    h20 = sustained.settling_of(gpus.find("h20"))
    assert h20.boost == 0
    assert h20.limited(148e12) == 0
    assert sustained.share_of_peak(gpus.find("h20")) == sustained.UNLIMITED


def test_less_power_sustains_less():
    rates = [sustains("l40s", watts=watts) for watts in (150, 250, 350, 450)]
    assert rates == sorted(rates)
    assert rates[0] < 0.6 * rates[-1]
    assert sustains("rtx-6000-ada") < sustains("l40s", watts=350)


def test_an_h100_prefills_as_an_h200_does():
    """It has the same chip and power; its memory is slower."""
    h100, h200 = (chip.predict("qwen2.5-14b", gpu=name, batch=8, prompt=2048) for name in ("h100", "h200"))
    assert 1 <= h100.ttft_s / h200.ttft_s < 1.06
    assert h100.tpot_s > 1.2 * h200.tpot_s


def test_a_short_run_is_brought_to_the_settled_clock():
    """A call that was timed rested takes longer under load, one that was timed for long as long as it took."""
    clock = Settling(boost=0.15, measured=1.0, time_s=0.1, flop_per_s=6e14)
    flops = 1e11
    short, long = flops / 7e14, 10 * flops / 6e14
    assert clock.from_rest(short, flops, (3, 9)) == pytest.approx(short / 0.85, rel=0.02)
    assert clock.from_rest(1e3 * long, 1e4 * flops, (18, 54)) == pytest.approx(1e3 * long, rel=1e-6)
    assert clock.from_rest(short, flops / 10) == short, "one that the limit does not hold is left alone"


def test_an_answer_for_a_gpu_like_none_that_was_measured_says_that_it_is_not_usable():
    assert any(note.startswith("not usable") for note in chip.predict("llama-3.1-8b", gpu="mi300x").notes)
    for gpu in ("h200", "h100", "a40", "h20"):
        assert not any(note.startswith("not usable") for note in chip.predict("llama-3.1-8b", gpu=gpu, tp=2).notes)


def test_no_interval_is_stretched_to_an_answer_that_is_not_usable(capsys):
    low, high = chip.predict("llama-3.1-8b", gpu="mi300x", batch=8).interval["ttft_s"]
    assert high < 5 * low
    assert cli.main(["predict", "llama-3.1-8b", "--gpu", "mi300x,h100", "--batch", "8"]) == 0
    rows = {
        line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.startswith(("mi300x", "h100"))
    }
    assert rows["mi300x"].count("not usable") == 2
    assert "not usable" not in rows["h100"]
