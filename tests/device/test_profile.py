"""`chip profile` for real, on the CPU: measure, append, resume, fail well, and end on a roofline."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from chip import ops
from chip.files import artifact, codec, measurements
from chip.ops.linear import Linear
from chip.show.cli import main
from chip.types import Ceiling, ChipError, HardwareProfile

torch = pytest.importorskip("torch")
from chip.lab.measure import build, disturbance, profile, suites  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.show.cli import profile as command  # noqa: E402

SETTINGS = profile.ProfileSettings(runs=5, noise=1.0, max_s=2.0, warm_s=0.0, cpu_cold_bytes=2**20)


@pytest.fixture(scope="module")
def cpu():
    return open_device("cpu")


@pytest.fixture
def tiny_suite(monkeypatch):
    """A suite of four cases, one of which cannot be run and one that fails."""

    def cases(dtype):
        for kind, axes in (
            ("linear", {"m": 8, "n": 16, "k": 16}),
            ("rms_norm", {"rows": 8, "cols": 32}),
            ("all_reduce", {"rows": 8, "cols": 8, "ranks": 2}),
            ("softmax", {"rows": 8, "cols": 16}),
        ):
            yield suites.SuiteCase(ops.build(kind, {**axes, "dtype": dtype}))

    monkeypatch.setitem(suites.SUITES, "llm", cases)


def run(capsys, *words):
    code = main(["profile", *map(str, words), "--device", "cpu"])
    out = capsys.readouterr()
    return code, out.out, out.err


def cpu_profile(path: Path, title: str) -> Path:
    def one(value, unit):
        return Ceiling(value, value, value, unit, "made up")

    ceilings = {
        "matmul_fp32": one(1e11, "FLOP/s"),
        "hbm_read": one(1e10, "B/s"),
        "hbm_copy": one(1e10, "B/s"),
    }
    made = HardwareProfile("this-cpu", title, "cpu", "", 2, 2**34, 2**25, ceilings)
    artifact.write(path, artifact.new(HardwareProfile.SCHEMA, codec.to_json(made), {}))
    return path


def test_one_operator(capsys, cpu, tmp_path):
    roofs = cpu_profile(tmp_path / "cpu.json", cpu.title)
    code, out, _ = run(capsys, "linear", "m=16", "n=64", "k=64", "--runs", 5, "--quick", "--profile", roofs)
    assert code == 0
    for word in ("linear 16x64x64 fp32", "cold", "hot", "host", "P50", "P95", "131 kFLOP", "verdict", "would help"):
        assert word in out


def test_records_say_all_they_should(cpu):
    (case,) = profile.name_cases([suites.SuiteCase(ops.build("gelu", {"rows": 64, "cols": 64, "dtype": "fp32"}))], cpu)
    found = list(profile.profile_case(case, cpu, profile.contexts(cpu), SETTINGS))
    assert [m.context for m in found] == ["cold", "hot", "host"]
    for m in found:
        assert m.status == "ok"
        assert len(m.samples_ns) >= 5
        assert min(m.samples_ns) > 0
        assert m.implementation == "torch"
        assert m.device == cpu.title
        assert "warmed up" in m.method
    assert "buffer sets in turn" in found[0].method
    assert "buffers fit in cache" in found[0].flags
    assert "one buffer set" in found[1].method


def test_suite_appends_and_resuming_adds_nothing(capsys, tmp_path, tiny_suite):
    path = tmp_path / "deep" / "llm.jsonl"
    code, out, err = run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path)
    assert code == 0
    assert "profile 4/4" in err
    assert "skipped: all_reduce" in out
    before = path.read_text()
    header, found = measurements.read(path)
    assert header["schema"] == "chip.measurement/1"
    assert header["environment"]["torch"] == torch.__version__
    assert len(found) == 4 * 3
    assert {m.status for m in found} == {"ok", "skipped"}
    assert all(m.reason for m in found if m.status == "skipped")
    code, again, err = run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path)
    assert code == 0
    assert "4 of 4 cases are there already" in err
    assert path.read_text() == before
    assert again == out


def test_the_first_shapes_of_a_suite(capsys, tmp_path, tiny_suite):
    assert run(capsys, "--suite", "llm", "--limit", "2", "--quick", "-o", tmp_path / "a.jsonl")[0] == 0
    assert {m.op["op"] for m in measurements.read(tmp_path / "a.jsonl")[1]} == {"linear", "rms_norm"}


def test_a_killed_run_goes_on_where_it_was(capsys, tmp_path, tiny_suite):
    path = tmp_path / "llm.jsonl"
    run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:30])  # killed within the second context of the second case
    code, _, err = run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path)
    assert code == 0
    assert "1 of 4 cases are there already" in err
    resumed = path.read_text().splitlines(keepends=True)
    assert resumed[:5] == lines[:5]
    assert len(resumed) == len(lines)
    assert len({measurements.key_of(m) for m in measurements.read(path)[1]}) == 12


def test_ctrl_c_leaves_a_usable_file(capsys, tmp_path, tiny_suite, monkeypatch):
    path = tmp_path / "llm.jsonl"
    real, calls = profile.profile_case, []

    def interrupted(case, *rest):
        calls.append(case)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(case, *rest)

    monkeypatch.setattr(profile, "profile_case", interrupted)
    code, out, err = run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path)
    assert code == 130
    assert "interrupted" in err
    assert "linear 8x16x16" in out
    assert len(measurements.read(path)[1]) == 3


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB. More."), "out of memory: CUDA out"),
        (RuntimeError("\"softmax\" not implemented for 'Int'\nlong trace"), "not implemented"),
        (NotImplementedError("no"), "NotImplementedError: no"),
    ],
)
def test_a_failed_case_is_a_record_and_the_run_goes_on(capsys, tmp_path, tiny_suite, monkeypatch, error, words):
    real = build.build

    def breaking(op, *rest):
        if op.kind == "rms_norm":
            raise error
        return real(op, *rest)

    monkeypatch.setattr(build, "build", breaking)
    path = tmp_path / "llm.jsonl"
    code, out, _ = run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path)
    assert code == 1  # done, but something in it failed
    assert words in out
    by_kind = {m.op["op"]: m for m in measurements.read(path)[1]}
    assert by_kind["rms_norm"].status == "failed"
    assert by_kind["rms_norm"].samples_ns == ()
    assert by_kind["softmax"].status == "ok"


def test_from_profile_to_roofline(capsys, cpu, tmp_path, tiny_suite):
    path, roofs = tmp_path / "llm.jsonl", cpu_profile(tmp_path / "cpu.json", cpu.title)
    run(capsys, "--suite", "llm", "--quick", "--runs", 5, "-o", path, "--profile", roofs)
    assert main(["roofline", str(roofs), str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [p["op"]["op"] for p in found["points"]] == ["linear", "rms_norm", "softmax"]
    pytest.importorskip("matplotlib")
    assert main(["roofline", str(roofs), str(path), "--plot", str(tmp_path / "r.png")]) == 0
    assert (tmp_path / "r.png").stat().st_size > 10_000


def test_hotspots_of_a_model(capsys, tmp_path):
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3, "vocab_size": 256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = (
        "--model",
        tmp_path,
        "--batch",
        2,
        "--prompt",
        8,
        "--quick",
        "--runs",
        3,
        "--warm-up",
        0,
        "--context",
        "cold",
        "--json",
    )
    code, out, _ = run(capsys, *words)
    assert code == 0
    spots = json.loads(out)["hotspots"]
    totals = [s["total_us"] for s in spots]
    assert totals == sorted(totals, reverse=True)
    gate = next(s for s in spots if "gate_proj" in s["roles"])
    assert gate["roles"] == ["gate_proj", "up_proj"]
    assert gate["calls"] == 6
    assert gate["total_us"] == pytest.approx(6 * gate["p50_us"])
    code, out, _ = run(capsys, *words[:-1], "--phase", "decode")
    assert code == 0
    assert "kernels of one step" in out
    assert "q1 kv9" in out


def test_suites_are_what_they_say(cpu):
    assert tuple(suites.SUITES) == command.SUITE_NAMES
    for name in suites.SUITES:
        large, small = suites.cases(name, "bf16", False), suites.cases(name, "fp32", True)
        assert len(large) == len(set(large)) >= 16
        assert sum(c.op.cost().flops for c in small) <= sum(c.op.cost().flops for c in large) / 50
        assert sum(c.op.cost().bytes for c in small) < sum(c.op.cost().bytes for c in large) / 10
        for case in large:
            assert case.implementation in ("", *build.implementations(case.op, "cuda"))
    kinds = {c.op.kind for name in ("llm", "classic") for c in suites.cases(name, "bf16", False)}
    assert {"linear", "conv2d", "lstm", "layer_norm_gelu", "attention", "softmax", "embedding"} <= kinds
    assert {"rms_norm", "silu_mul", "rope"} <= kinds


def test_the_matrices_of_a_model_join_the_gemm_suite():
    from chip.decoders import library

    found = {(c.op.n, c.op.k) for c in suites.matrices(library.find("llama-3.1-8b"), "bf16")}
    assert {(4096, 4096), (1024, 4096), (14336, 4096), (4096, 14336), (128256, 4096)} == found


def test_above_the_physical_limit_is_an_error_not_a_record(cpu):
    op = ops.build("linear", {"m": 8192, "n": 8192, "k": 8192})
    gpu = replace(cpu, kind="cuda", compute_capability="9.0", sm_count=132, boost_hz=1.98e9)
    assert "above the physical limit" in profile.impossible(op, 1e-4, gpu, None)
    assert profile.impossible(op, 2e-3, gpu, None) == ""


def test_a_shared_cpu_is_flagged_and_said(capsys, monkeypatch, cpu):
    """Samples of whole time slices agree with each other and look clean: only the switches give them away."""
    assert disturbance.switch_flags(5, 60) == ()  # measured on an idle machine: 0 to 5 in 60
    assert disturbance.switch_flags(157, 60) == ("CPU shared: 157 involuntary switches in 60 samples",)
    count = iter(range(0, 10**9, 1000))
    monkeypatch.setattr(disturbance, "switches", lambda: next(count))
    code, out, _ = run(capsys, "add", "rows=8", "cols=8", "--quick", "--runs", 5)
    assert code == 0
    assert "CPU shared: 1000 involuntary switches" in out
    assert "not to be trusted, the CPU was shared: 3 of 3 times" in out


def test_bad_input_is_one_line(capsys, cpu, tmp_path, tiny_suite):
    foreign, other = tmp_path / "foreign.jsonl", tmp_path / "other.jsonl"
    foreign.write_text('{"schema": "something.else/1"}\n')
    measurements.start(other, "Another Device", {"torch": torch.__version__})
    stale = tmp_path / "stale.jsonl"
    measurements.start(stale, cpu.title, {"torch": "1.0"})
    roofs = cpu_profile(tmp_path / "roofs.json", "Another Device")
    for words, expected in [
        ((), "nothing to measure"),
        (("linar", "m=1"), "did you mean linear?"),
        (("linear", "m=1", "n=1"), "linear needs axis 'k'"),
        (("linear", "m=1", "n=1", "z=1"), "linear has no axis 'z'"),
        (("linear", "m=0", "n=1", "k=1"), "must be a whole number"),
        (("linear", "m"), "axis=value"),
        (("linear", "m=1", "n=1", "k=1", "--impl", "flash"), "no implementation 'flash' on cpu"),
        (("linear", "m=1", "n=1", "k=1", "--suite", "llm"), "not several"),
        (("linear", "m=1", "n=1", "k=1", "--runs", "1"), "--runs must be at least 3"),
        (("linear", "m=1", "n=1", "k=1", "--runs", "0"), "--runs must be at least 3, got 0"),
        (("linear", "m=1", "n=1", "k=1", "--warm-up", "-1"), "--warm-up must be between 0 and 3600 seconds"),
        (("linear", "m=1", "n=1", "k=1", "--warm-up", "nan"), "--warm-up must be between 0 and 3600 seconds"),
        (("--suite", "llm", "-o", tmp_path), "is a folder, a file was expected"),
        (("linear", "m=1", "n=1", "k=1", "--dtype", "fp7"), "'fp7' is not known"),
        (("linear", "m=1", "n=1", "k=1", "dtype=bf16", "--dtype", "fp32"), "dtype is given twice"),
        (("--suite", "lmm"), "no suite 'lmm'"),
        (("--suite", "llm", "--limit", "0"), "--limit is a number of shapes"),
        (("linear", "m=1", "n=1", "k=1", "--limit", "3"), "goes with --suite"),
        (("--suite", "vllm"), "that a CPU does not have"),
        (("--suite", "llm", "--model", "gpt2"), "--model goes with --suite gemm"),
        (("--model", "gpt-2000"), "no model 'gpt-2000'"),
        (("--suite", "llm", "-o", foreign), "is not a file that chip wrote"),
        (("--suite", "llm", "-o", other), "holds measurements of Another Device"),
        (("--suite", "llm", "-o", stale), "was measured with torch 1.0"),
        (("linear", "m=1", "n=1", "k=1", "--profile", tmp_path / "none.json"), "no such file"),
        (("linear", "m=1", "n=1", "k=1", "--profile", roofs), "is a profile of Another Device"),
    ]:
        code, out, err = run(capsys, *words)
        assert code == 2, (words, err)
        assert expected in err, (words, err)
        assert len(err.strip().splitlines()) == 1
        assert out == ""


def test_a_lost_device_ends_the_run(cpu, monkeypatch):
    def gone(self):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(type(cpu), "synchronize", gone)
    with pytest.raises(ChipError, match="no longer answers"):
        replace(cpu, title="Test GPU").require_alive()


def test_a_span_takes_more_buffers(cpu):
    """Address translation misses once buffers lie far apart, as the weights of a large model do."""
    op = ops.build("add", {"rows": 64, "cols": 1024, "dtype": "fp32"})
    few, many = (
        next(profile.profile_case(suites.SuiteCase(op, "torch"), cpu, ["cold"], replace(SETTINGS, span_bytes=span)))
        for span in (0.0, 200 * op.cost().bytes)
    )
    sets = [int(m.method.split(" buffer set")[0].rpartition(" ")[2]) for m in (few, many)]
    assert sets[1] == 200 > sets[0]


def test_an_operator_without_axes_has_its_usual_size():
    assert suites.usual("linear", "bf16", on_cpu=False) == Linear(1024, 1024, 1024, "bf16", bias=True)
    small = suites.usual("linear", "fp32", on_cpu=True)
    assert small == Linear(128, 128, 128, "fp32", bias=True)
    assert suites.usual("all_reduce", "bf16", on_cpu=False) is None
    wide = suites.shrink_for_cpu(Linear(16384, 16384, 16384))
    assert wide.cost().flops <= suites.CPU_FLOPS
    assert wide.m == wide.n == wide.k


def test_a_bench_without_a_gpu_says_which_kernels_it_leaves_out(capsys):
    assert main(["kernels", "bench", "hgemm", "--device", "cpu", "--quick", "--shape", "m=64,n=64,k=64"]) == 0
    out, err = capsys.readouterr()
    assert "left out of hgemm: hgemm_1_naive" in err
    assert "linear 64x64x64" in out
