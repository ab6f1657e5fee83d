"""Published tables into files of points: what a row means, what is kept, and how bad input is refused."""

import importlib.util
import tomllib
import zipfile
from itertools import pairwise
from math import exp, log
from pathlib import Path

import pytest
from folding import each
from hypothesis import given
from hypothesis import strategies as st

from chip import stats
from chip.hardware import gpus
from chip.hardware.tables import aiconfigurator, aiconfigurator_pick, aiconfigurator_rows, points_csv
from chip.hardware.tables.points_csv import Row, Table
from chip.hardware.tables.thin import kept, merged, thin
from chip.show import cli
from chip.types import ChipError

ROOT = Path(__file__).parents[2]
POINTS = gpus.IMPORTED
BUNDLED = sorted(POINTS.glob("*/*.csv"))
GPUS = ("a100", "b200", "b300", "gb200", "gb300", "h100", "h200", "l40s", "rtx-pro-6000-server")


# -- the file
def test_a_table_is_read_as_it_was_written(tmp_path):
    rows = (Row("torch", "cold", "bf16", (8, 64, 32), 3.14159), Row("cutlass", "cold", "fp8", (1, 64, 32), 12345.6))
    path = tmp_path / "linear.csv"
    points_csv.write(path, Table("linear", ("m", "n", "k"), rows, {"device": "a GPU", "source": "a: b"}))
    assert path.read_text().splitlines() == [
        "# device: a GPU",
        "# source: a: b",
        "kernel,context,dtype,m,n,k,us",
        "cutlass,cold,fp8,1,64,32,12346",
        "torch,cold,bf16,8,64,32,3.142",
    ]
    found = points_csv.read(path)
    assert (found.kind, found.axes, found.notes) == ("linear", ("m", "n", "k"), {"device": "a GPU", "source": "a: b"})
    assert [r.us for r in found.rows] == [12346, 3.142]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 must name the columns"),
        ("# device: x\nkernel,dtype,m,us\n", "line 2 must name the columns"),
        ("kernel,context,dtype,m,us\na,b,c,1\n", "line 2 has 4 columns, the header has 5"),
        ("kernel,context,dtype,m,us\na,b,c,1.5,2\n", "line 2: axes must be whole numbers"),
        ("kernel,context,dtype,m,us\na,b,c,1,nan\n", "line 2: us must be a positive number"),
        ("kernel,context,dtype,m,us\na,b,c,1,-3\n", "line 2: us must be a positive number"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "linear.csv"
    path.write_text(text)
    with pytest.raises(ChipError, match=message):
        points_csv.read(path)


# -- thinning
CURVES = st.lists(
    st.tuples(st.integers(1, 10**6), st.floats(1, 1e6)), min_size=2, max_size=40, unique_by=lambda p: p[0]
)


@given(CURVES, st.floats(0, 0.5))
def test_what_is_dropped_is_interpolated_within_the_tolerance(curve, tolerance):
    points = [(log(x), log(y)) for x, y in sorted(curve)]
    found = kept(points, tolerance)
    assert (found[0], found[-1]) == (0, len(points) - 1)
    for a, b in pairwise(found):
        (xa, ya), (xb, yb) = points[a], points[b]
        for x, y in points[a + 1 : b]:
            assert abs(ya + (yb - ya) * (x - xa) / (xb - xa) - y) <= log(1 + tolerance) + 1e-9


def test_a_power_law_needs_its_ends_only():
    rows = [Row("k", "cold", "bf16", (2**i, 7), 3.0 * 2**i) for i in range(10)]
    assert [r.at for r in thin(rows, 0, 0.001)] == [(1, 7), (512, 7)]


def test_tied_axes_move_along():
    rows = [Row("k", "cold", "bf16", (n, n), float(n)) for n in (1, 2, 4, 8)]
    assert [r.at for r in thin(rows, 0, 0.01, tied=(1,))] == [(1, 1), (8, 8)]
    assert len(thin(rows, 0, 0.01)) == 4


def test_the_same_shape_twice_is_its_median():
    rows = [Row("k", "cold", "bf16", (1,), us) for us in (1.0, 2.0, 9.0)]
    assert merged(rows) == [Row("k", "cold", "bf16", (1,), 2.0)]


# -- what a row means
def columns(**named):
    length = max(len(v) for v in named.values() if isinstance(v, list))
    return {k: v if isinstance(v, list) else [v] * length for k, v in named.items()}


def test_a_decode_counts_the_new_token_and_a_prefill_has_no_past():
    c = columns(
        kernel_source="vllm_flash_attn_fa3", batch_size=2, isl=[1, 512], num_heads=32, num_key_value_heads=8,
        head_dim=128, kv_cache_dtype=["bfloat16", "fp8"], step=[1023, 0], window_size=0, latency=[0.02, 0.5],
    )  # fmt: skip
    decode, prefill = aiconfigurator_rows.attention(c)
    assert decode == Row("fa3", "hot", "bf16", (2, 32, 8, 128, 1, 1024, 0), 20.0)
    assert prefill == Row("fa3", "hot", "bf16_kv_fp8", (2, 32, 8, 128, 512, 512, 0), 500.0)


def test_messages_are_counted_in_elements():
    c = columns(
        kernel_source="vLLM_custom", allreduce_dtype="bfloat16", num_gpus=4, message_size=[128], latency=[0.005],
        backend=["vllm_graph"],
    )  # fmt: skip
    assert list(aiconfigurator_rows.custom_all_reduce(c)) == [Row("vllm", "graph", "bf16", (256, 4), 5.0)]


def test_the_table_of_exchanges_is_in_microseconds():
    c = columns(
        comm_backend=["deepep_ll", "deepep_v2_context"], phase="combine", num_tokens=8, hidden_size=7168,
        num_experts=256, topk=8, ep_size=8, latency=[40.0, 50.0],
    )  # fmt: skip
    (found,) = aiconfigurator_rows.moe_exchange("combine")(c)
    assert found == Row("deepep_ll", "graph", "bf16", (8, 7168, 256, 8, 8), 40.0)


def test_experts_are_those_of_one_gpu_without_expert_parallelism():
    c = columns(
        kernel_source="vllm_fused_moe", moe_dtype="bfloat16", num_tokens=8, hidden_size=4096, inter_size=14336,
        num_experts=8, topk=2, moe_tp_size=[2, 2, 2], moe_ep_size=[1, 2, 1],
        distribution=["power_law_1.01", "power_law_1.01", "balanced"], latency=0.25,
    )  # fmt: skip
    assert list(aiconfigurator_rows.moe_experts(c)) == [Row("vllm", "cold", "bf16", (8, 4096, 7168, 8, 2), 250.0)]


def test_times_of_the_host_are_no_points():
    """Twenty shapes of no work at 58 us tell what the host takes; a product of 60 us is then not the kernel's."""
    c = columns(
        kernel_source="DeepGemm", gemm_dtype="fp8_block", m=[1] * 20 + [1, 4096], n=[256] * 20 + [4096, 8192],
        k=[256] * 20 + [4096, 8192], latency=[0.058] * 20 + [0.060, 0.7],
    )  # fmt: skip
    assert [r.at for r in aiconfigurator_rows.linear(c)] == [(4096, 8192, 8192)]


def test_a_product_during_which_the_host_paused_is_no_point():
    """Three times as long as in bf16."""
    c = columns(
        kernel_source=["DeepGemm", "torch", "DeepGemm", "torch"], gemm_dtype=["fp8_block", "bfloat16"] * 2,
        m=[64, 64, 4096, 4096], n=[1024, 1024, 8192, 8192], k=[16384, 16384, 8192, 8192],
        latency=[0.18, 0.06, 0.7, 0.9],
    )  # fmt: skip
    assert [r.at for r in aiconfigurator_rows.linear(c) if r.dtype == "fp8_block"] == [(4096, 8192, 8192)]


def test_weights_that_fit_a_large_l2_are_hot():
    rows = [Row("torch", "cold", "bf16", (1, n, n), 9.0) for n in (256, 2048, 4096)]
    assert [r.context for r in aiconfigurator.warm(rows, 96 * 2**20, 864e9)] == ["cold", "hot", "cold"]  # an L40S
    assert [r.context for r in aiconfigurator.warm(rows, 50 * 2**20, 3.35e12)] == ["cold"] * 3  # an H100


# -- the package
def wheel(folder: Path, version: str = "0.12.0", drop: str = "", latency: float = 0.01) -> Path:
    """A wheel of one system with one table of products."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    made = columns(
        device="NVIDIA H100 80GB HBM3", kernel_source="torch.nn.functional.linear", gemm_dtype="bfloat16",
        m=[1, 2, 3], n=4096, k=4096, latency=[latency, 0.02, 0.03],
    )  # fmt: skip
    made.pop(drop, None)
    table = folder / "gemm_perf.parquet"
    parquet.write_table(pa.table(made), table)
    path = folder / f"aiconfigurator_core-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        z.write(table, "aiconfigurator_core/systems/data/h100_sxm/gemm/vllm/0.24.0/gemm_perf.parquet")
        z.writestr("aiconfigurator_core/systems/data/l4/comm/nccl/2.27.3/nccl_perf.parquet", "")
        z.writestr(f"aiconfigurator_core-{version}.dist-info/METADATA", f"Version: {version}\n")
    return path


def test_a_wheel_becomes_points(tmp_path, capsys):
    out = tmp_path / "out"
    words = ["import", "aiconfigurator", "--system", "h100_sxm", "--package", str(wheel(tmp_path)), "-o", str(out)]
    assert cli.main(words) == 0
    assert [r.at[0] for r in points_csv.read(out / "linear.csv").rows] == [1, 2]  # 3 is no level that is kept
    assert "Apache-2.0" in capsys.readouterr().err
    assert cli.main([*words, "--all"]) == 0
    found = points_csv.read(out / "linear.csv")
    assert [(r.at[0], r.us) for r in found.rows] == [(1, 10), (2, 20), (3, 30)]
    assert found.notes["device"] == "NVIDIA H100 80GB HBM3"
    assert found.notes["source"].endswith("h100_sxm: gemm/vllm/0.24.0/gemm_perf.parquet")


@pytest.mark.parametrize(
    ("options", "words", "message"),
    [
        ({"version": "0.13.1"}, (), "only 0.12.0 is read"),
        ({"drop": "k"}, (), "column 'k' is missing"),
        ({"latency": -1.0}, (), "latency must be a positive number"),
        ({}, ("--system", "h100"), "did you mean h100_sxm?"),
        ({}, ("--system", "l4"), "has no tables of vllm for l4; it has them for h100_sxm"),
        ({}, ("--backend", "trtllm"), "backend 'trtllm' is not read; choose one of vllm"),
        ({}, ("--tolerance", "2"), "--tolerance must be from 0 to 1"),
    ],
)
def test_bad_input_is_one_line_with_its_remedy(tmp_path, capsys, options, words, message):
    path = wheel(tmp_path, **options)
    out = tmp_path / "out"
    system = () if "--system" in words else ("--system", "h100_sxm")
    asked = ["import", "aiconfigurator", *system, "--package", str(path), "-o", str(out), *words]
    assert cli.main(asked) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_systems_with_tables_of_the_engine_are_listed(tmp_path, capsys):
    words = ["import", "aiconfigurator", "--system", "list", "--package", str(wheel(tmp_path))]
    assert cli.main(words) == 0
    assert capsys.readouterr().out == "h100_sxm\n"


def test_points_and_their_notice_are_packaged():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["chip"]
    for path in (*BUNDLED, POINTS / "NOTICE"):
        relative = path.relative_to(gpus.DATA.parent)
        assert any(relative.match(p) for p in patterns), f"{relative} is not in the wheel"


def test_a_file_that_is_no_wheel_and_a_package_that_is_not_there(tmp_path, capsys, monkeypatch):
    ask = ["import", "aiconfigurator", "--system", "l40s"]
    plain = tmp_path / "x.whl"
    plain.write_text("no zip")
    assert cli.main([*ask, "--package", str(plain)]) == 2
    assert "is not a wheel" in capsys.readouterr().err
    assert cli.main([*ask, "--package", str(tmp_path)]) == 2
    assert "holds no aiconfigurator-core" in capsys.readouterr().err
    assert cli.main([*ask, "--package", str(tmp_path / "none")]) == 2
    assert "no such wheel or folder" in capsys.readouterr().err
    monkeypatch.setattr(aiconfigurator.importlib.util, "find_spec", lambda name: None)
    assert cli.main(ask) == 2
    assert "pip install aiconfigurator-core==0.12.0" in capsys.readouterr().err


# -- what is bundled
@each(BUNDLED)
def test_bundled_points_are_whole_and_say_where_they_come_from(path):
    found = points_csv.read(path)
    assert {"device", "source", "licence", "clock", "about"} <= set(found.notes)
    assert found.rows == tuple(sorted(found.rows))
    assert len({(r.labels, r.at) for r in found.rows}) == len(found.rows)
    assert path.parent.name in gpus.spec_names()
    assert points_csv.text(found) == path.read_text()


def test_the_bundle_has_what_is_promised_within_its_size():
    assert sorted(p.name for p in POINTS.iterdir() if p.is_dir()) == sorted(GPUS)
    assert sum(p.stat().st_size for p in BUNDLED) < 3.5e6
    assert "Apache License, Version 2.0" in (POINTS / "NOTICE").read_text()


@pytest.mark.parametrize(
    ("gpu", "dtypes"), [("h100", {"bf16", "fp8", "fp8_block"}), ("b200", {"bf16", "fp8", "nvfp4"})]
)
def test_products_of_each_precision_are_there(gpu, dtypes):
    assert dtypes <= {r.dtype for r in points_csv.read(POINTS / gpu / "linear.csv").rows}


@pytest.mark.parametrize("gpu", GPUS)
def test_no_product_beats_the_datasheet(gpu):
    """Above the promised rate of the tensor cores a point would be a mistake in units or axes."""
    roof = gpus.spec(gpu).ceilings["matmul_bf16"].value
    rows = [r for r in points_csv.read(POINTS / gpu / "linear.csv").rows if r.dtype == "bf16"]
    rates = [2e6 * r.at[0] * r.at[1] * r.at[2] / r.us for r in rows]
    assert 0.5 * roof < max(rates) < 1.05 * roof


@pytest.mark.parametrize("gpu", GPUS)
def test_no_cold_weight_is_read_faster_than_the_memory_delivers(gpu):
    width, promised = {"bf16": 2, "fp8": 1}, gpus.spec(gpu).ceilings["hbm"].value
    cold = [r for r in points_csv.read(POINTS / gpu / "linear.csv").rows if r.context == "cold" and r.dtype in width]
    assert max(1e6 * r.at[1] * r.at[2] * width[r.dtype] / r.us for r in cold) < 1.05 * promised


def test_imported_products_of_an_h200_are_those_of_our_own_records():
    """What docs/import.md says: the same on the median, faster by boost clocks where the power limit would hold."""
    spec = importlib.util.spec_from_file_location("imported_h200", ROOT / "benchmarks" / "imported_h200.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    found = [(us, ratio) for kind, _, us, ratio in script.ratios(POINTS / "h200", exact=True) if kind == "linear"]
    assert len(found) > 60
    assert 0.95 < stats.median([ratio for us, ratio in found if us < 50]) < 1.03
    assert 0.82 < stats.median([ratio for us, ratio in found if 50 < us < 1000]) < 0.90


def test_curves_that_are_picked_keep_their_shape():
    rows = [Row("torch", "cold", "bf16", (m, 4096, 4096), exp(0.01 * m)) for m in aiconfigurator_pick.ROWS_M if m < 200]
    found = aiconfigurator_pick.linear(rows, 0.02)
    assert {1, 129} <= {r.at[0] for r in found} <= {r.at[0] for r in rows}
    assert len(found) < len(rows)
