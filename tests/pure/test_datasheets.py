"""The GPU datasheets: shape, sources, and every rate against units x clock x FLOP per clock."""

import json
import re
from pathlib import Path

import pytest
from folding import each

from chip.hardware import gpus

FOLDER = Path(__file__).resolve().parents[2] / "src" / "chip" / "data" / "hardware"
FILES = sorted(FOLDER.glob("*.json"))
SHEETS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in FILES}

# Dense FLOP per clock in one SM or CU, by compute capability; tensor rates with FP32 accumulate.
# A number whose note says "flop_per_clock=..." or "clock_hz=..." is held to those instead.
FLOP_PER_CLOCK = {
    "5.2": {"fp32": 256, "fp16": 256},
    "6.0": {"fp32": 128, "fp16": 256},
    "6.1": {"fp32": 256, "fp16": 256, "int8": 1024},
    "7.0": {"fp32": 128, "fp16": 1024},
    "7.5": {"fp32": 128, "fp16": 1024, "int8": 2048},
    "8.0": {"fp32": 128, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.6": {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "int8": 2048},
    "8.7": {"fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "int8": 4096},
    "8.9": {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "9.0": {"fp32": 256, "tf32": 2048, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
    "10.0": {"fp32": 256, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 16384},
    "10.3": {"fp32": 256, "tf32": 4096, "fp16": 8192, "bf16": 8192, "fp8": 16384, "int8": 512},
    "12.0": {"fp32": 256, "tf32": 512, "fp16": 1024, "bf16": 1024, "fp8": 2048, "int8": 2048},
    "gfx90a": {"fp32": 256, "fp16": 1024, "bf16": 1024, "int8": 1024},
    "gfx942": {"fp32": 256, "tf32": 1024, "fp16": 2048, "bf16": 2048, "fp8": 4096, "int8": 4096},
    "gfx950": {"fp32": 256, "fp16": 4096, "bf16": 4096, "fp8": 8192, "int8": 8192},
}
ARCHITECTURES = {
    "maxwell": {"5.2"}, "pascal": {"6.0", "6.1"},
    "volta": {"7.0"}, "turing": {"7.5"}, "ampere": {"8.0", "8.6", "8.7"}, "ada": {"8.9"}, "hopper": {"9.0"},
    "blackwell": {"10.0", "10.3", "12.0"}, "cdna2": {"gfx90a"}, "cdna3": {"gfx942"}, "cdna4": {"gfx950"},
}  # fmt: skip
FIELDS = ("units", "boost_clock_hz", "memory_bytes", "l2_bytes", "power_w")

every_sheet = each(sorted(SHEETS))


def numbers(sheet):
    """Yield (path, number object) for every number of a datasheet."""
    for key in FIELDS:
        yield key, sheet[key]
    if "usable_bytes" in sheet:
        yield "usable_bytes", sheet["usable_bytes"]
    for key, number in sheet["ceilings"].items():
        yield f"ceilings.{key}", number
    for link, fields in sheet["links"].items():
        for key, number in fields.items():
            if key != "note":
                yield f"links.{link}.{key}", number


def noted(number, key, default):
    match = re.search(rf"\b{key}=([0-9.]+(?:e\+?[0-9]+)?)", number.get("note", ""))
    return float(match.group(1)) if match else default


def test_count_and_unique_names():
    assert len(FILES) >= 25
    names = [n for sheet in SHEETS.values() for n in (sheet["name"], *sheet["aliases"])]
    assert len(names) == len(set(names))
    assert all(n == n.lower() and " " not in n for n in names)


# Cards whose ECC lies in the memory itself and is on as delivered
WITH_ECC = ("a10", "a40", "l4", "l40", "l40s", "p40", "t4")


def test_usable_memory():
    """What CUDA offers of a card is less than what it has, by a sixteenth more where ECC is kept in it."""
    shares = {
        n: s["usable_bytes"]["value"] / s["memory_bytes"]["value"] for n, s in SHEETS.items() if "usable_bytes" in s
    }
    assert set(WITH_ECC) < set(shares)
    assert all(0.9 < share < 0.94 for name, share in shares.items() if name in WITH_ECC)
    assert all(0.975 < share < 1 for name, share in shares.items() if name not in WITH_ECC)
    assert all(SHEETS[name]["usable_bytes"]["source"].startswith("https://") for name in shares)
    for name in shares:
        assert gpus.find(name).memory_bytes == SHEETS[name]["usable_bytes"]["value"]
    assert gpus.find("sm_89:24GB").memory_bytes == 24 * 2**30


@every_sheet
def test_shape(name):
    sheet = SHEETS[name]
    assert sheet["schema"] == "chip.hardware_spec/1"
    assert sheet["name"] == name
    assert sheet["title"]
    assert sheet["vendor"] == ("amd" if sheet["architecture"].startswith("cdna") else "nvidia")
    assert sheet["compute_capability"] in ARCHITECTURES[sheet["architecture"]]
    assert sheet["memory_bytes"]["value"] % 2**30 == 0
    assert "pcie" in sheet["links"] or name.startswith("jetson")  # has no peers
    assert set(sheet["links"]) <= {"nvlink", "xgmi", "pcie"}
    for fields in sheet["links"].values():
        assert 1e9 < fields["bytes_per_s"]["value"] <= 1e12
        assert "latency_s" in fields or fields.get("note")


@every_sheet
def test_every_number_is_positive_and_sourced(name):
    for path, number in numbers(SHEETS[name]):
        assert number["value"] > 0, path
        assert len(number["source"].strip()) > 10, path
        assert set(number) <= {"value", "source", "note"}, path


@every_sheet
def test_rates_follow_from_units_and_clock(name):
    sheet = SHEETS[name]
    table = FLOP_PER_CLOCK[sheet["compute_capability"]]
    rates = {k.removeprefix("matmul_"): v for k, v in sheet["ceilings"].items() if k != "hbm"}
    assert set(rates) == set(table)  # every native type and no other
    boost = sheet["boost_clock_hz"]["value"]
    for dtype, rate in rates.items():
        flop = noted(rate, "flop_per_clock", table[dtype])
        clock = noted(rate, "clock_hz", boost)
        assert table[dtype] / flop in (1, 2, 4), dtype  # a noted cut is a half or a quarter
        assert 0.85 * boost <= clock <= boost, dtype
        assert rate["value"] == pytest.approx(sheet["units"]["value"] * clock * flop, rel=0.12), dtype


@every_sheet
def test_rates_agree_with_each_other(name):
    ceilings = {k: v["value"] for k, v in SHEETS[name]["ceilings"].items()}
    assert 1e11 < ceilings["hbm"] < 2e13
    assert ceilings["matmul_fp32"] >= 5e12
    if "matmul_bf16" in ceilings:
        assert ceilings["matmul_fp16"] == ceilings["matmul_bf16"]
    if "matmul_fp8" in ceilings:
        assert ceilings["matmul_fp8"] == pytest.approx(2 * ceilings["matmul_bf16"], rel=0.05)
