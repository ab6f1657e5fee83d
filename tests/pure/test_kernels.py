"""Kernels without a GPU, torch or nvcc: what the files say, what is built for what, errors, the tables' arithmetic."""

import json
import os
import stat
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from types import SimpleNamespace

import pytest

from chip.lab.kernels import build, catalog, ladder, ncu, sanitize
from chip.show import cli
from chip.types import ChipError

ROOT = Path(__file__).parents[2]


# -- the catalogue ----------------------------------------------------------------------------------------------------
def test_every_kernel_says_what_it_is_and_needs():
    entries = {e.name: e for e in catalog.entries()}
    assert {"layer_norm", "rms_norm", "add_rms_norm", "softmax", "silu_mul", "rope", "decode_attention"} <= set(entries)
    assert all(len(e.what) > 30 and e.needs for e in entries.values())
    assert entries["hgemm_5_wgmma"].needs == "sm_90a"
    assert catalog.steps("hgemm") == ["hgemm_1_naive", "hgemm_2_shared", "hgemm_3_wmma", "hgemm_4_mma", "hgemm_5_wgmma"]
    assert [s.rsplit("_", 1)[1] for s in catalog.steps("row_normalize")] == ["naive", "fused", "optimised"]


@pytest.mark.parametrize(
    ("stem", "arch", "runs"),
    [
        ("hgemm_4_mma", "sm_80", True),
        ("hgemm_4_mma", "sm_120", True),
        ("hgemm_5_wgmma", "sm_90a", True),
        ("hgemm_5_wgmma", "sm_89", False),
        ("hgemm_5_wgmma", "sm_120", False),
    ],
)
def test_what_runs_where(stem, arch, runs):
    assert catalog.runs_on(stem, arch) is runs


def test_architecture_of_a_card():
    assert [catalog.arch_of(c) for c in ("8.0", "8.9", "9.0", "12.0")] == ["sm_80", "sm_89", "sm_90a", "sm_120"]
    with pytest.raises(ChipError, match="sm_75"):
        catalog.number("sm_75")


def test_the_wheel_ships_every_cuda_source():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["chip"]
    for path in catalog.CUDA.iterdir():
        assert any(fnmatch(f"lab/kernels/cuda/{path.name}", p) for p in patterns), path.name


# -- building, with an nvcc of our own making -------------------------------------------------------------------------
@pytest.fixture
def toolkit(tmp_path, monkeypatch):
    """make(version, codes, body): an nvcc that says so, and does `body` to compile; what is cached goes to tmp_path."""

    def forget():
        for cached in (build.nvcc, build.toolkit, build.check_arch):
            cached.cache_clear()

    def make(version="13.0", codes="sm_80 sm_90 sm_120", body='while [ "$1" != -o ]; do shift; done; echo lib > "$2"'):
        tool = tmp_path / "cuda" / "bin" / "nvcc"
        tool.parent.mkdir(parents=True, exist_ok=True)
        tool.write_text(
            f"#!/bin/sh\ncase $1 in --version) echo 'release {version}, V';; --list-gpu-code) echo {codes};;\n"
            f"*) {body};; esac\n"
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        forget()

    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "extensions"))
    yield make
    forget()


def test_a_library_is_compiled_once_and_kept_where_torch_keeps_its_own(toolkit, tmp_path):
    toolkit()
    first, second = (build.compile_one("hgemm_1_naive", "sm_80") for _ in range(2))
    assert (first.cached, second.cached) == (False, True)
    assert first.path == second.path
    assert first.path.parent == tmp_path / "extensions" / "chip_kernels"
    assert build.place("hgemm_1_naive", "sm_80", debug=True) != first.path
    assert build.place("hgemm_1_naive", "sm_90a") != first.path
    assert not [p for p in first.path.parent.iterdir() if p.name.startswith(".")]


def test_another_toolkit_is_another_library(toolkit):
    toolkit("13.0")
    before = build.place("roof", "sm_80")
    toolkit("12.8")
    assert build.place("roof", "sm_80") != before


def test_only_what_the_architecture_has_is_built(toolkit):
    toolkit()
    told = []
    built = build.compile_all(catalog.cuda_stems(), "sm_80", tell=told.append)
    assert {b.stem for b in built} == {s for s in catalog.cuda_stems() if "wgmma" not in s}
    assert len(told) == len(built)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"version": "11.8"}, "is of CUDA 11.8; the kernels need CUDA 12 or later"),
        ({"codes": "sm_80 sm_86"}, "nvcc of CUDA 13.0 cannot compile for sm_90a; it knows sm_80, sm_86"),
        (
            {"body": "echo 'x.cu(3): error: no such thing' >&2; exit 1"},
            "hgemm_1_naive.cu does not compile for sm_90a: x.cu(3): error: no such thing",
        ),
    ],
)
def test_what_is_wrong_with_a_toolkit_is_one_line(toolkit, capsys, given, says):
    toolkit(**given)
    assert cli.main(["kernels", "build", "hgemm_1", "--arch", "sm_90a"]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_without_nvcc_the_remedy_is_named(toolkit, monkeypatch, capsys):
    toolkit()
    build.nvcc.cache_clear()
    monkeypatch.setattr(os, "access", lambda *a: False)
    assert cli.main(["kernels", "build", "--arch", "sm_90a"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("chip kernels: nvcc is not installed")
    assert "CUDA_HOME" in said
    assert "\n" not in said


def test_a_cache_that_cannot_be_written_is_named(toolkit, tmp_path, monkeypatch):
    toolkit()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    with pytest.raises(ChipError, match="TORCH_EXTENSIONS_DIR"):
        build.compile_one("roof", "sm_80")


# -- the command ------------------------------------------------------------------------------------------------------
def test_list_as_json_and_of_one_ladder(capsys):
    assert cli.main(["kernels", "list", "hgemm", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == catalog.steps("hgemm")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "nothing"], "no kernel 'nothing'"),
        (["list", "softmax", "nothing"], "no kernel 'nothing'"),
        (["build", "hgemm_1", "nothing", "--arch", "sm_80"], "'nothing' is no CUDA kernel"),
        (["check", "softmax", "--shape", "rows=1,cols=2"], "--shape is for bench, tune, profile, not for check"),
        (["bench", "softmax", "--keep"], "--keep is for tune, not for bench"),
        (["check", "layer_norm", "--count", "-1"], "--count and --seed must be at least 0, got -1"),
        (["build", "--arch", "sm_9"], "choose of sm_80, sm_86, sm_89, sm_90a, sm_120"),
        (["build", "softmax", "--arch", "sm_80"], "'softmax' is no CUDA kernel"),
    ],
)
def test_errors_are_one_line(words, says, capsys):
    assert cli.main(["kernels", *words]) == 2
    said = capsys.readouterr().err.strip()
    assert says in said
    assert "\n" not in said


# -- the ladder's arithmetic ------------------------------------------------------------------------------------------
def timed(name, flops_per_s):
    return SimpleNamespace(measurement=SimpleNamespace(implementation=name), flops_per_s=flops_per_s)


def test_each_rung_beside_cublas_its_roof_the_last_and_the_first():
    rows = [timed("torch", 700.0), timed("a", 1.0), timed("b", 30.0), timed("c", None), timed("d", 690.0)]
    found = ladder.climb(rows, {"fma": 60.0, "wgmma": 900.0}, {"a": "fma", "b": "fma", "c": "mma", "d": "wgmma"})
    assert [r.rung for r in found] == ["a", "b", "d"]
    assert (found[0].over_last, found[0].over_first) == (None, None)
    assert found[1].over_last == 30
    assert found[2].over_last == 23
    assert found[2].over_first == 690
    assert found[2].of_cublas == pytest.approx(690 / 700)
    assert found[2].of_roof == pytest.approx(690 / 900)


def test_a_rung_without_a_measured_roof_has_no_share_of_it():
    (one,) = ladder.climb([timed("a", 2.0)], {}, {"a": "mma"})
    assert (one.of_roof, one.of_cublas) == (None, None)


# -- what other tools print -------------------------------------------------------------------------------------------
CSV = """==PROF== Profiling "k" - 0: 0%....100% - 1 pass
"ID","Kernel Name","gpu__time_duration.sum","dram__bytes_read.sum","dram__bytes_write.sum","lts__t_bytes.sum","TENSOR"
"","","us","Mbyte","Mbyte","Gbyte","%"
"0","first","10.0","1.5","0.5","0.01","50"
"1","second","30.0","2,000.0","0","0.02","90"
""".replace("TENSOR", ncu.METRICS["tensor_share"])


def test_counters_are_summed_and_shares_weighted_by_time():
    found = ncu.read(CSV, "")
    assert found["seconds"] == pytest.approx(40e-6)
    assert found["dram_read_bytes"] == pytest.approx(2001.5e6)
    assert found["l2_bytes"] == pytest.approx(0.03e9)
    assert found["tensor_share"] == pytest.approx(0.8)
    assert found["kernels"] == ["first", "second"]


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "keeps GPU counters to the administrator"),
        ("==ERROR== The application returned an error code (1).", "gave no counters: ==ERROR== The application"),
    ],
)
def test_a_profiler_that_gives_nothing_says_why(output, says):
    with pytest.raises(ChipError, match=says):
        ncu.read(output, "")


def test_what_the_sanitizer_says():
    clean = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
    bad = "========= Invalid __global__ write of size 4 bytes\n=========     at k\n========= ERROR SUMMARY: 2 errors\n"
    race = "========= Error: Race reported between Write access\n========= RACECHECK SUMMARY: 1 hazard displayed\n"
    assert sanitize.verdict(clean, 0) == {"errors": 0, "first": ""}
    assert sanitize.verdict(bad, 1) == {"errors": 2, "first": "Invalid __global__ write of size 4 bytes"}
    assert sanitize.verdict(race, 0)["errors"] == 1
    assert sanitize.verdict("Killed", 137) == {"errors": 1, "first": "Killed"}


def test_an_error_belongs_to_the_variant_that_ran():
    said = "========= COMPUTE-SANITIZER\nchip runs a\nchip runs b\n========= Invalid __global__ read of size 2 bytes\n"
    rows = sanitize.report("memcheck", said + "========= ERROR SUMMARY: 1 error\n", 1)
    assert [(r["variant"], r["errors"]) for r in rows] == [("a", 0), ("b", 1)]
    assert rows[1]["first"] == "Invalid __global__ read of size 2 bytes"
    clean = sanitize.report("racecheck", "chip runs a\n========= RACECHECK SUMMARY: 0 hazards displayed\n", 0)
    assert clean == [{"variant": "a", "tool": "racecheck", "errors": 0, "first": ""}]
    cut = sanitize.report("racecheck", "chip runs a\n", 137)  # no summary: it did not end by itself
    assert [(r["variant"], r["errors"]) for r in cut] == [("a", 0), ("a", 1)]


def test_a_ladder_without_its_first_rung_is_not_measured_from_there():
    found = ladder.climb([timed("b", 30.0), timed("c", 60.0)], {}, {"a": "fma", "b": "fma", "c": "mma"})
    assert [(r.over_last, r.over_first) for r in found] == [(None, None), (2, None)]


def test_every_call_has_a_ladder_and_each_dtype_its_roofs_once(monkeypatch):
    measured = []

    def path_roofs(device, dtype):
        measured.append(dtype)
        return {"fma": 60.0}

    monkeypatch.setattr(ladder, "path_roofs", path_roofs)
    monkeypatch.setattr(ladder, "paths", lambda: {"a": "fma"})
    ops = [{"op": "linear", "m": m, "n": 8, "k": 8, "dtype": d} for m in (8, 16) for d in ("bf16", "fp16")]
    rows = [SimpleNamespace(measurement=SimpleNamespace(op=op, implementation="a"), flops_per_s=30.0) for op in ops]
    found = ladder.ladders(SimpleNamespace(kind="cuda"), rows, {})
    assert [one["call"] for one in found] == [
        "linear 8x8x8",
        "linear 8x8x8 fp16",
        "linear 16x8x8",
        "linear 16x8x8 fp16",
    ]
    assert all(one["rungs"][0]["of_roof"] == 0.5 for one in found)
    assert measured == ["bf16", "fp16"]
    assert ladder.ladders(SimpleNamespace(kind="cpu"), rows, {}) == []
