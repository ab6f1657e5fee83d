"""The engine's kernels without a GPU: compiled for the cards they are to serve, and the rule that picks tiles."""

import ast
import importlib.util
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from unchanged import unless_unchanged  # noqa: E402

import chip  # noqa: E402
from chip.lab.kernels import build, catalog, gemm_plan, hgemm, skinny  # noqa: E402
from chip.lab.kernels.subjects import subject  # noqa: E402
from chip.lab.kernels.triton import language  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.run.native import spec  # noqa: E402
from chip.lab.run.native.own_launches import LaunchSetting, candidates, compile_ahead  # noqa: E402
from chip.types import ChipError  # noqa: E402

needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
ROOT = Path(chip.__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1]), "TRITON_INTERPRET": "0"}

COMPILED = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from chip.lab.kernels.triton import add_rms_norm, paged_decode_attention, prefill_attention, rope_store, skinny_gemm

arch = int(sys.argv[1])
BF16, INT, FLOAT = "*bf16", "*i32", "*fp32"
EARLY = arch >= 90

def compiled(kernel, pointers, constants, warps):
    names = kernel.arg_names
    kinds = {n: "constexpr" if n in constants else pointers.get(n, "i32") for n in names}
    fixed = {(names.index(n),): v for n, v in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if kinds[n].startswith("*")}
    source = ASTSource(kernel, kinds, fixed, aligned)
    options = {"num_warps": warps, "launch_pdl": EARLY}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"]

for norm in (False, True):
    ptx = compiled(rope_store._rope_store,
                   {**dict.fromkeys(("qkv", "q_norm", "k_norm", "q_out", "keys", "values"), BF16),
                    "cos": FLOAT, "sin": FLOAT, "positions": INT, "slots": INT, "eps": "fp32"},
                   {"GROUP": 4, "HALF": 64, "NORM": norm, "OVERLAP": EARLY}, 2)
    assert ("griddepcontrol.launch_dependents" in ptx) == ("griddepcontrol.wait" in ptx) == EARLY
attention = {**dict.fromkeys(("q", "k", "v", "out"), BF16), "table": INT, "scale": "fp32"}
for dim in (64, 128):
    ptx = compiled(paged_decode_attention._paged,
                   {**attention, "lengths": INT, "parts": FLOAT, "tops": FLOAT, "sums": FLOAT, "arrived": INT},
                   {"GROUP": 16, "DIM": dim, "PAGE": 64, "BLOCK": 64, "SPLITS": 16, "STAGES": 3, "OVERLAP": EARLY}, 4)
    assert "mma.sync" in ptx and "cp.async" in ptx
    ptx = compiled(prefill_attention._prefill, {**attention, "tiles": INT},
                   {"TILE": 128, "DIM": dim, "PAGE": 64, "BLOCK": 64, "WHOLE": True, "STAGES": 3,
                    "OVERLAP": EARLY}, 8)
    assert ("wgmma" if arch >= 90 else "mma.sync") in ptx and "cp.async" in ptx
for gated in (False, True):
    ptx = compiled(skinny_gemm._skinny, dict.fromkeys(("x", "w", "bias", "out"), BF16),
                   {"ROWS": 16, "TOKENS": 16, "DEPTH": 128, "GATED": gated, "BIAS": gated, "OVERLAP": EARLY,
                    "STAGES": 5}, 4)
    assert "mma.sync" in ptx
compiled(add_rms_norm._add_rms_norm_held,
         {**dict.fromkeys(("x", "residual", "weight", "total", "out"), BF16), "eps": "fp32"},
         {"COLS": 512, "PARTS": 8, "FETCHED": 2, "KEPT": 65536, "EVICT": "", "CACHE": ".cg", "STAGES": 1,
          "OVERLAP": EARLY}, 2)
"""


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 89, 90])
def test_triton_kernels_compile_for_the_cards_they_serve(arch, tmp_path):
    words = [sys.executable, "-c", COMPILED, str(arch)]

    def compiled():
        env = {**ENV, "TRITON_CACHE_DIR": str(tmp_path)}
        done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]

    sources = [jitted(path) for path in sorted((catalog.HERE / "triton").glob("*.py"))]
    unless_unchanged(f"triton sm_{arch}", [*sources, version("triton"), COMPILED], compiled)


def jitted(path):
    """The functions of a file that Triton compiles."""
    nodes = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    return "\n".join(ast.unparse(n) for n in nodes if any("jit" in ast.unparse(d) for d in n.decorator_list))


# -- who may serve ----------------------------------------------------------------------------------------------------
SPEC = spec.DecoderSpec("llama", 4096, 14336, 32, 32, 8, 128, 128256, 8192, 1e-5, spec.RopeSpec())


def test_a_card_before_hopper_is_served_by_the_mma_rung():
    assert [own.by for own in candidates("linear", "cuda")] == ["hgemm_5_wgmma", "hgemm_4_mma"]
    assert catalog.runs_on("hgemm_4_mma", "sm_89")
    assert catalog.runs_on(skinny.MMA, "sm_80")
    assert not catalog.runs_on("hgemm_5_wgmma", "sm_89")


def test_pages_that_attention_cannot_take_are_said():
    (own,) = candidates("decode_attention", "triton")
    why = own.unusable(LaunchSetting(SPEC, torch.bfloat16, torch.device("cpu"), 24))
    assert why == "pages of 24 tokens; it takes powers of two from 16 on"


def test_products_refuse_what_they_cannot_multiply():
    x, w = torch.zeros(2, 16), torch.zeros(8, 16)
    with pytest.raises(ChipError, match="skinny multiplies fp16 by fp16 or bf16 by bf16"):
        skinny.run(skinny.MMA, x, w)
    with pytest.raises(ChipError, match="skinny wants m x k and n x k"):
        skinny.run(skinny.MMA, x.bfloat16(), w[:, :8].bfloat16())
    assert skinny.takes(skinny.MMA, torch.zeros(65, 16), w) == "more than 64 rows"
    assert skinny.takes(skinny.MMA, torch.zeros(4, 17)[:, :16], w) == "rows must start at multiples of 16 bytes"
    assert all("no NVIDIA GPU" in v.unusable for v in subject("skinny", open_device("cpu"), configs=True).variants)


def test_cases_of_few_rows_reach_every_tile_and_tail():
    import random

    found = skinny.cases(random.Random(1), 10, False, ("bf16", "fp16", "fp32"))
    assert {8, 16, 32, 64} <= {next(t for t in (8, 16, 32, 64) if op.m <= t) for op in found}
    assert all(op.m <= skinny.MOST_TOKENS and op.k % 8 == 0 for op in found)
    assert any(op.n % 16 for op in found)


# -- the rule for tiles -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("m", [65, 128, 200, 256, 512, 1000, 3000, 4096, 8192])
@pytest.mark.parametrize(
    ("n", "k"), [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (13824, 5120), (72, 64)]
)
def test_the_rule_picks_a_config_that_the_rung_has_room_for(m, n, k):
    config = gemm_plan.choose(m, n, k, 132)
    tile, splits = gemm_plan.tile_of(config), gemm_plan.splits_of(config)
    assert 1 <= splits <= min(gemm_plan.MOST_SPLITS, -(-k // gemm_plan.DEPTH))
    assert tile.takes(m, n, k, splits)
    assert tile.ns(m, n, k, splits, 132) <= gemm_plan.TILES[0].ns(m, n, k, 1, 132)


def test_the_rule_fills_the_device_where_tiles_are_few():
    def blocks(m, n, k):
        config = gemm_plan.choose(m, n, k, 132)
        tile = gemm_plan.tile_of(config)
        shares = tile.parts * gemm_plan.splits_of(config)
        return -(-m // (tile.rows * tile.high)) * tile.high * -(-n // tile.cols) * shares

    large = gemm_plan.choose(8192, 8192, 8192, 132)
    assert gemm_plan.tile_of(large).cols >= 192
    assert gemm_plan.splits_of(large) == 1
    for shape in ((128, 4096, 4096), (512, 6144, 4096), (256, 4096, 14336)):
        assert 100 <= blocks(*shape) <= 132


def test_a_k_of_one_step_is_not_divided():
    assert not any(t.takes(128, 4096, 64, 1) for t in gemm_plan.TILES if t.parts > 1)
    assert gemm_plan.tile_of(gemm_plan.choose(128, 4096, 64, 132)).parts == 1
    assert gemm_plan.fitting(820, 128, 4096, 64) == 10801
    assert gemm_plan.fitting(820, 128, 4096, 65) == 10820


def test_splits_are_as_many_as_there_is_room_for():
    assert gemm_plan.fitting(40808, 128, 4096, 4096) == 40808
    assert gemm_plan.fitting(801, 4096, 4096, 64) == 10801
    fewer = gemm_plan.fitting(80808, 2200, 2400, 4096)
    tile = gemm_plan.tile_of(80808)
    assert fewer % 10000 == 808
    assert tile.room(2200, 2400, fewer // 10000)
    assert not tile.room(2200, 2400, fewer // 10000 + 1)


def test_every_variant_of_the_rule_is_in_the_source():
    source = (catalog.CUDA / f"{hgemm.WGMMA}.cu").read_text()
    for tile in gemm_plan.TILES:
        line = f"if (variant == {tile.variant}) return with(Config<{tile.rows}, {tile.cols}, "
        assert line in source
        assert source.split(line)[1].split(">")[0].endswith(f", {tile.high}" + f", {tile.parts}" * (tile.parts > 1))


# -- the benchmark ----------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_benchmark_runs_on_a_cpu_and_goes_on(tmp_path, monkeypatch, capsys):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("native")
    out = tmp_path / "native.json"
    words = [str(out), "--device", "cpu", "--tiny"]
    assert benchmark.main([*words, "--parts", "few,ladder"]) == 0
    before = json.loads(out.read_text())["parts"]
    assert list(before) == ["few", "ladder"]
    assert [row["added"] for row in before["ladder"]["result"][::2]][:2] == ["PyTorch alone", "rms_norm"]
    benchmark.main([*words, "--minutes", "0"])
    assert "left for the next run" in capsys.readouterr().err
    assert json.loads(out.read_text())["parts"] == before


@pytest.mark.parametrize(
    ("capability", "compiled"),
    [((9, 0), ["skinny_2_wgmma", "hgemm_5_wgmma"]), ((8, 9), ["skinny_1_mma", "hgemm_4_mma"]), ((7, 5), None)],
)
def test_only_what_a_card_runs_is_compiled_for_it(monkeypatch, capability, compiled):
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(build, "compile_all", lambda stems, arch: asked.append(stems))
    setting = LaunchSetting(SPEC, torch.bfloat16, torch.device("cuda:0"), 64)
    compile_ahead(setting)
    assert asked == ([compiled] if compiled else [])
    assert setting.overlaps == (capability >= (9, 0) and language.overlapped is not None)


def test_the_engine_stays_small_enough_to_read():
    files = [*(Path(chip.__file__).parent / "lab" / "run" / "native").glob("*.py")]
    assert sum(len(p.read_text().splitlines()) for p in files) <= 2000
