"""Our kernels are planned, tuned, benched and compiled by nvcc, and a wrong one is caught."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from unchanged import RECORDING, unless_unchanged  # noqa: E402

import chip  # noqa: E402
from chip import ops  # noqa: E402
from chip.files import artifact, codec  # noqa: E402
from chip.lab.kernels import bench, build, catalog, check, plans, tune  # noqa: E402
from chip.lab.kernels.subjects import KernelSubject, Variant, subject  # noqa: E402
from chip.lab.kernels.triton import decode_attention, rows, softmax  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.show.cli import kernels_text  # noqa: E402
from chip.types import ChipError  # noqa: E402

CPU = open_device("cpu")
needs_triton = pytest.mark.skipif(not importlib.util.find_spec("triton"), reason="Triton is not installed")
needs_nvcc = pytest.mark.skipif(
    not shutil.which("nvcc") and not Path("/usr/local/cuda/bin/nvcc").exists(), reason="nvcc is not installed"
)
ENV = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


# -- plans ------------------------------------------------------------------------------------------------------------
def test_every_plan_covers_its_rows():
    cpu = torch.device("cpu")
    for cols in (1, 2, 100, 256, 1000, 4096, 32768, 65536, 100000):
        chosen = [plans.plan("rms_norm", cols, 2), plans.plan("layer_norm", cols, 4)]
        for p in [*chosen, *plans.candidates("rms_norm", cols), *plans.candidates("softmax", cols)]:
            assert p.rows >= 1
            assert p.rows == plans.power_of_two(p.rows)
            blocks = -(-7 // p.rows)
            assert rows.grid(p, 7, cpu) == (min(blocks, p.per_unit or blocks),)
            sizes = rows.launch(p, cols)
            if p.held:
                assert sizes["COLS"] * sizes["PARTS"] >= cols > sizes["COLS"] * (sizes["PARTS"] - 1)


def test_candidates_are_few_and_different():
    for kernel in ("layer_norm", "softmax"):
        for cols in (256, 1024, 4096, 8192, 16384, 32768, 65536, 131072):
            found = plans.candidates(kernel, cols)
            assert 5 <= len(found) == len(set(map(str, found))) <= 32, (kernel, cols, len(found))


@pytest.mark.parametrize(("cols", "element_bytes", "form"), [(8192, 4, "held"), (9000, 2, "held"), (65536, 2, "held"),
    (65537, 2, "twice"), (32768, 4, "held"), (33000, 4, "twice"), (1000, 4, "short")])  # fmt: skip
def test_the_longer_a_row_the_less_of_it_is_kept(cols, element_bytes, form):
    p = plans.plan("layer_norm", cols, element_bytes)
    assert rows.choose(p, "short", "held", "twice") == form
    if form == "held":  # what a thread keeps fits its 64 registers
        parts = rows.launch(p, cols)["PARTS"]
        assert parts * p.chunk * element_bytes <= 32 * p.warps * max(2 * p.registers, plans.THREAD_BYTES)


def test_what_tuning_finds_is_kept_for_every_later_call(tmp_path, monkeypatch):
    monkeypatch.setattr(plans, "TUNED", tmp_path / "plans.json")
    (tmp_path / "plans.json").write_text("{}")
    rule, best = plans.plan("softmax", 4000, 2), plans.LaunchPlan(1, 16, chunk=512, held=True, evict="")
    s, op = subject("softmax", CPU), ops.build("softmax", {"rows": 8, "cols": 4000, "dtype": "bf16"})
    monkeypatch.setattr(plans, "candidates", lambda kernel, cols: [rule, best])
    tune.keep(s, op, [{"config": "broken", "reason": "why"}, {"config": str(best), "p50_s": 1e-3}])
    assert plans.plan("softmax", 4000, 2) == best
    assert plans.plan("softmax", 4000, 4) != best  # found with 16-bit elements
    product = ops.build("linear", {"m": 64, "n": 32, "k": 16, "dtype": "bf16"})
    rows_ = [{"config": "hgemm_5_wgmma:81", "p50_s": 1.0}, {"config": "hgemm_4_mma:2", "p50_s": 2.0},
             {"config": "hgemm_5_wgmma:41", "p50_s": 3.0}]  # fmt: skip
    monkeypatch.setattr(tune, "ways", lambda s, op: {"hgemm_5_wgmma:81": (None, 81), "hgemm_4_mma:2": (None, 2)})
    tune.keep(subject("hgemm", CPU), product, rows_)
    assert plans.tuned("hgemm_5_wgmma", "64x32x16") == 81
    assert plans.tuned("hgemm_4_mma", "64x32x16") == 2
    with pytest.raises(ChipError, match="bf16 and fp16"):
        tune.keep(s, ops.build("softmax", {"rows": 8, "cols": 64, "dtype": "fp32"}), [])


def test_columns_that_are_not_neighbours_are_refused():
    with pytest.raises(ChipError, match="contiguous"):
        rows.flat(torch.zeros(4, 6).t())


@pytest.mark.parametrize(
    ("pairs", "length", "slots"), [(8, 4096, 264), (512, 1024, 264), (1, 1, 264), (300, 9000, 264)]
)
def test_stretches_fill_the_machine(pairs, length, slots):
    splits = decode_attention.splits_for(pairs, length, slots)
    blocks = -(-length // decode_attention.BLOCK)
    assert 1 <= splits <= max(1, blocks // decode_attention.LEAST_BLOCKS)
    walked = -(-pairs * splits // slots) * -(-blocks // splits)
    assert walked <= -(-pairs // slots) * blocks


# -- a fallback is labelled and makes no claim ------------------------------------------------------------------------
def test_without_triton_pytorch_answers_and_no_speed_up_is_claimed(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(3, 5)
    assert torch.equal(softmax.run(x), softmax.native(x))
    words = ["kernels", "bench", "softmax", "--shape", "rows=8,cols=16,dtype=fp32", "--device", "cpu", "--quick"]
    assert cli.main([*words, "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["kernels"]["softmax"]
    assert [row["measurement"]["implementation"] for row in found] == ["torch", "torch (fallback)"]
    assert all(row["speedup_p50"] is None and not row["ours"] for row in found)
    assert json.loads((tmp_path / "softmax.json").read_text())["schema"] == "chip.kernel_bench/1"
    assert cli.main(["kernels", "tune", "softmax", "--device", "cpu"]) == 2


def test_bench_measurements_are_what_roofline_reads(tmp_path, capsys):
    words = ["kernels", "bench", "softmax", "--shape", "rows=8,cols=16,dtype=fp32", "--device", "cpu", "--quick"]
    for _ in range(2):  # the second run measures anew; the file keeps one of each
        assert cli.main([*words, "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    assert cli.main(["roofline", "--gpu", "h200", str(tmp_path / "kernels.jsonl"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["points"]) == 2


# -- the check catches what it should ---------------------------------------------------------------------------------
def broken(call):
    return KernelSubject("softmax", softmax, (Variant("ours", call),))


def right(x, out):
    out.copy_(softmax.native(x))


def misses_one(x, out):
    out[:, :-1] = softmax.native(x)[:, :-1]


def is_far(x, out):
    out.copy_(softmax.native(x) * 1.05)


def writes_beyond(x, out):
    right(x, out)
    out.as_strided((1,), (1,), out.storage_offset() + out.stride(0) * out.shape[0]).fill_(1)


def raises(x, out):
    raise ChipError("cannot do this")


def statuses(call):
    return {f.status for f in check.check(broken(call), CPU, 3, 4)}


def test_a_right_kernel_passes():
    assert statuses(right) == {"ok"}


@pytest.mark.parametrize("call", [misses_one, is_far, writes_beyond, raises])
def test_a_wrong_kernel_fails(call):
    assert "failed" in statuses(call)


def test_what_a_check_found_is_an_artifact(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")  # so that what the command sets is taken back
    assert cli.main(["kernels", "check", "hgemm", "--variant", "naive", "--device", "cpu", "-o", str(tmp_path)]) == 0
    assert "why skipped" in capsys.readouterr().out
    stored = artifact.read(tmp_path / "check.json", check.SCHEMA)
    assert [f["status"] for f in stored.data["findings"]] == ["skipped"]


def test_a_check_says_how_near_its_limit_it_was():
    found = list(check.check(broken(right), CPU, 3, 4))
    assert all(f.error <= f.allowed for f in found)
    said = kernels_text.findings({"device": "a CPU", "seed": 3, "findings": codec.to_json(found)})
    assert "of allowed" in said
    assert "why skipped" not in said


def test_poison_surrounds_and_fills_the_result():
    buffer, view = check.poisoned(torch.zeros(3, 5), 2)
    assert view.stride() == (7, 1)
    assert bool(buffer.isnan().all())
    view.fill_(0)
    assert check.intact(buffer, view)
    buffer[check.MARGIN - 1] = 0
    assert not check.intact(buffer, view)


def test_the_map_shows_where_a_product_is_wrong():
    want = torch.zeros(130, 200, dtype=torch.float64)
    got = want.clone()
    got[70, 130], got[129, 0] = 5, float("nan")
    first, *tiles_shown = check.error_map(got, want, 0.1)
    assert first == "2 of 26000 wrong; first at (70, 130): 5, not 0"
    assert tiles_shown == ["....", "..x.", "n..."]


def test_cases_have_tails_one_row_one_column_and_odd_strides():
    found = check.cases("layer_norm", 1, 10, small=False)
    shapes = [(c.op.rows, c.op.cols) for c in found]
    assert any(r == 1 for r, _ in shapes)
    assert any(c == 1 for _, c in shapes)
    assert any(c & (c - 1) for _, c in shapes)
    assert {c.pad % 2 for c in check.cases("layer_norm", 1, 30, small=False)} == {0, 1}
    assert len({c.op.dtype for c in check.cases("layer_norm", 1, 30, small=False)}) == 3
    assert all(c.op.cols > 1 for c in check.cases("row_normalize", 1, 10, small=False))  # one column has no deviation


# -- bench: who is compared with whom ---------------------------------------------------------------------------------
def test_ours_is_held_against_the_best_of_the_others():
    def slow(x, out=None):
        time.sleep(0.05)  # longer than a busy machine keeps a process waiting
        return softmax.native(x)

    s = KernelSubject("softmax", softmax, (Variant("slow", slow),))
    op = ops.build("softmax", {"rows": 64, "cols": 64, "dtype": "fp32"})
    native, ours = bench.bench(s, op, CPU, None, bench.QUICK)
    assert (native.measurement.implementation, ours.measurement.implementation) == ("torch", "slow")
    assert native.speedup_p50 is None
    assert ours.against == "torch"
    assert ours.speedup_p50 < 0.5
    assert ours.verdict == "slower"
    assert ours.max_error == native.max_error


def test_a_variant_that_fails_is_a_record():
    s = KernelSubject("softmax", softmax, (Variant("ours", lambda x, out=None: 1 / 0),))
    op = ops.build("softmax", {"rows": 4, "cols": 4, "dtype": "fp32"})
    _, ours = bench.bench(s, op, CPU, None, bench.QUICK)
    assert ours.measurement.status == "failed"
    assert "ZeroDivisionError" in ours.measurement.reason


@pytest.mark.parametrize("work", [lambda s, op: bench.bench(s, op, CPU, None, bench.QUICK),
                                  lambda s, op: tune.tune(s, op, CPU)])  # fmt: skip
def test_a_call_that_does_not_fit_is_one_line(work):
    with pytest.raises(ChipError, match=r"^softmax 1099511627776x4096 cannot be set up here: .*memory"):
        work(broken(right), ops.build("softmax", {"rows": 1 << 40, "cols": 4096}))


def test_the_slowest_rungs_are_timed_at_one_size():
    s = subject("hgemm", CPU)
    assert len(s.variants) == 5
    for op in s.bench:
        timed = [v.name[6] for v in s.timed(op).variants]
        assert timed == (["1", "2", "3", "4", "5"] if op.m == op.n == op.k == 4096 else ["3", "4", "5"]), op
    assert any(op.m == op.n == op.k == 4096 for op in s.bench)


# -- CUDA -------------------------------------------------------------------------------------------------------------
def test_cuda_kernels_say_why_they_do_not_run_on_a_cpu():
    assert all("no NVIDIA GPU" in v.unusable for v in subject("hgemm", CPU).variants)
    assert build.unusable("hgemm_5_wgmma", "cuda", "8.9") == "needs sm_90a; this GPU is sm_89"
    assert not build.unusable("hgemm_5_wgmma", "cuda", "9.0")


def cuda_sources(*words):
    """All that a compiled library depends on."""
    return [*sorted(catalog.CUDA.iterdir()), str(build.toolkit()), *build.FLAGS, *words]


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("arch", catalog.ARCHS)
def test_every_source_compiles(arch, tmp_path, monkeypatch):
    def compiled():
        built = build.compile_all(catalog.cuda_stems(), arch)
        assert {b.stem for b in built} == {s for s in catalog.cuda_stems() if catalog.runs_on(s, arch)}

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    unless_unchanged(f"nvcc {arch}", cuda_sources(arch), compiled)


@needs_nvcc
@pytest.mark.slow
@pytest.mark.parametrize("rung", ["hgemm_4_mma", "hgemm_5_wgmma", "skinny_1_mma", "skinny_2_wgmma"])
def test_the_fast_rungs_compile_without_spills_or_serialised_instructions(rung, tmp_path):
    words = [*build.command(rung, "sm_90a", False, tmp_path / "lib.so"), "-Xptxas", "-v"]

    def compiled():
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert set(re.findall(r"(\d+) bytes spill stores", done.stderr)) == {"0"}
        assert "C7510" not in done.stderr  # ptxas: wgmma instructions are serialized

    unless_unchanged(f"ptxas {rung}", cuda_sources("sm_90a"), compiled)


def test_what_changed_is_done_again(tmp_path, monkeypatch):
    source, record, done = tmp_path / "a.cu", tmp_path / "unchanged.json", []
    source.write_text("one")

    def once(work=lambda: done.append(source.read_text())):
        unless_unchanged("it", [source, "-O3"], work, record)

    monkeypatch.delenv(RECORDING, raising=False)
    once()
    assert not record.exists()
    monkeypatch.setenv(RECORDING, "1")
    with pytest.raises(ZeroDivisionError):
        once(lambda: 1 / 0)
    assert not record.exists()
    once()
    monkeypatch.delenv(RECORDING)
    with pytest.raises(pytest.skip.Exception, match="it: sources and compiler"):
        once()
    source.write_text("two")
    once()
    assert done == ["one", "one", "two"]


@needs_nvcc
@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what happens without a GPU")
def test_a_library_loads_and_reports_that_there_is_no_gpu(tmp_path, monkeypatch):
    import ctypes

    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    call = ctypes.CDLL(str(build.compile_one("row_normalize_1_naive", "sm_80").path)).row_normalize
    call.restype = ctypes.c_char_p
    answer = call(None, None, ctypes.c_int64(1), 1, ctypes.c_int64(1), ctypes.c_int64(1), None)
    assert b"CUDA" in answer


# -- on a GPU ---------------------------------------------------------------------------------------------------------
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", catalog.kernels())
def test_kernels_are_right_on_this_gpu(name):
    done = subprocess.run(
        [sys.executable, "-m", "chip", "kernels", "check", name, "--json"], capture_output=True, text=True, env=ENV
    )
    found = json.loads(done.stdout)["findings"]
    assert not [f for f in found if f["status"] == "failed"]
    assert any(f["status"] == "ok" for f in found)
