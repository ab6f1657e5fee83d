"""Owners, unique kernels, tiers, matrix products and buffers: all that is known of a kernel before it runs again."""

import json

import pytest

from chip.files.traces import Kernel, KernelEvent, Operator, TensorArg, Trace
from chip.lab.replay import gemm, owners, signatures, tiers
from chip.lab.replay.chrome import DeviceEvent, HostRange, Profile
from chip.lab.replay.gemm import Gemm, GemmOperand
from chip.lab.replay.rotation import Rotation, near, rotation
from chip.types import ChipError

MIB = 2**20


def tensor(shape, stride=None, memory=0, dtype="bfloat16", **more):
    if stride is None:
        stride = [1] * len(shape)
        for i in range(len(shape) - 2, -1, -1):
            stride[i] = stride[i + 1] * shape[i + 1]
    return TensorArg(tuple(shape), tuple(stride), dtype, memory, **more)


def operator(name, *tensors, kwargs=None, **more):
    places = tuple({"tensor": i} for i in range(len(tensors)))
    return Operator(f"aten::{name}", "default", tensors, places, kwargs or {}, **more)


def event(name, start, correlation=0, duration=1000, kind="kernel"):
    return DeviceEvent(name, kind, start, duration, 7, (1, 1, 1), (128, 1, 1), 0, correlation)


# -- owners -----------------------------------------------------------------------------------------------------------
def test_a_kernel_belongs_to_the_call_around_its_launch_not_around_its_run():
    ranges = [HostRange(0, 100, "call#0"), HostRange(110, 200, "call#1")]
    profile = Profile(
        [event("a", 150, 1), event("b", 300, 2), event("c", 400, 9)],
        {1: ("t", 50), 2: ("t", 150)},
        {},
        {"t": ranges},
    )
    assert [(e.name, n) for e, n in owners.marked(profile, "call#")] == [("a", 0), ("b", 1), ("c", -1)]


def test_owners_follow_the_order_of_names_where_runs_differ():
    known = [("a", 0), ("b", 1), ("c", 2), ("b", 3)]
    assert owners.aligned(["a", "b", "c", "b"], known) == [0, 1, 2, 3]
    assert owners.aligned(["a", "x", "b", "c", "b"], known) == [0, -1, 1, 2, 3]
    assert owners.aligned(["b", "c", "b"], known) == [1, 2, 3]
    assert owners.aligned(["Memset (Unknown)", "a"], [("Memset (Device)", 5), ("a", 6)]) == [5, 6]


def test_launches_with_the_same_arguments_are_one_kernel():
    mm = operator("mm", tensor((4, 8)), tensor((8, 16), (1, 8), 1))
    other = operator("mm", tensor((4, 8)), tensor((8, 32), (1, 8), 1))
    events = [event(n, 10 * i) for i, n in enumerate(["gemm", "reduce", "gemm", "reduce", "gemm", "free"])]
    table, kernels, found = owners.assemble(events, [0, 0, 1, 1, 2, -1], {0: mm, 1: mm, 2: other})
    assert table == (mm, other)
    assert [(k.name, k.operator, k.position) for k in kernels] == [
        ("gemm", 0, 0), ("reduce", 0, 1), ("gemm", 1, 0), ("free", None, 0),
    ]  # fmt: skip
    assert [e.kernel for e in found] == [0, 1, 0, 1, 2, 3]
    assert [e.call for e in found] == [0, 0, 1, 1, 2, -1]


# -- tiers ------------------------------------------------------------------------------------------------------------
MM = operator("mm", tensor((4, 8)), tensor((8, 16), (1, 8), 1))
ADD = operator("add", tensor((4, 8)), tensor((4, 8), memory=1))


@pytest.mark.parametrize(
    ("name", "kind", "op", "tier", "family"),
    [
        ("Memcpy DtoD (Device -> Device)", "memcpy", None, 1, "runtime"),
        ("Memset (Device)", "memset", MM, 1, "runtime"),
        ("nvjet_tst_128x64_64x6_1x2_h_bz_coopA_TNT", "kernel", MM, 2, "cublas"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "kernel", MM, 2, "cublas"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "kernel", MM, 2, "cublas"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "kernel", MM, 2, "cublas"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "kernel", MM, 2, "cublas"),
        ("void at::native::elementwise_kernel<128, 4>", "kernel", MM, 3, "native"),
        ("void at::native::vectorized_elementwise_kernel<4>", "kernel", ADD, 3, "native"),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits>", "kernel", ADD, 3, "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "kernel", ADD, 3, "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "kernel", ADD, 3, "attention"),
        ("triton_poi_fused_add_0", "kernel", None, None, "triton"),
        ("my_kernel(float*)", "kernel", None, None, "custom"),
        ("nvjet_tst_128x64", "kernel", None, None, "cublas"),
    ],
)
def test_tier_and_family(name, kind, op, tier, family):
    kernel = Kernel(name, kind, operator=None if op is None else 0)
    assert tiers.tier_of(kernel, op) == tier
    assert tiers.family_of(kernel) == family


# -- matrix products --------------------------------------------------------------------------------------------------
def test_a_linear_layer_is_the_weight_transposed_times_the_input():
    """mm(x[4096, 1024], w.t()) with w[3072, 1024]: cuBLAS's m is the output width, n the tokens."""
    asked = gemm.gemm_of(operator("mm", tensor((4096, 1024)), tensor((1024, 3072), (1, 1024), 1)))
    assert asked == Gemm(
        3072, 4096, 1024, 1, "bfloat16",
        GemmOperand(True, 1024, 0, 1), GemmOperand(False, 1024, 0, 0), GemmOperand(False, 3072, 4096 * 3072, None),
    )  # fmt: skip
    assert asked.api == "cublasGemmEx"
    assert asked.flops == 2 * 4096 * 1024 * 3072


def test_a_bias_goes_into_the_epilogue_and_a_matrix_into_beta():
    x, w = tensor((5, 1024), memory=1), tensor((1024, 3072), (1, 1024), 2)
    row = gemm.gemm_of(operator("addmm", tensor((3072,)), x, w))
    assert (row.epilogue, row.bias, row.api, row.beta) == ("bias", 0, "cublasLtMatmul", 0.0)
    full = gemm.gemm_of(operator("addmm", tensor((5, 3072)), x, w, kwargs={"beta": 0.5, "alpha": 2}))
    assert (full.epilogue, full.alpha, full.beta, full.api) == ("", 2.0, 0.5, "cublasGemmEx")
    gelu = gemm.gemm_of(operator("_addmm_activation", tensor((3072,)), x, w, kwargs={"use_gelu": True}))
    assert gelu.epilogue == "gelu_bias"


def test_a_batch_of_heads_keeps_its_strides():
    """BLOOM's scores: baddbmm(alibi, q[16, 5, 64], k[16, 64, 5]) out of one fused qkv."""
    q = tensor((16, 5, 64), (192, 3072, 1), 1)
    k = tensor((16, 64, 5), (192, 1, 3072), 2)
    asked = gemm.gemm_of(operator("baddbmm", tensor((16, 5, 5), (5, 0, 1)), q, k, kwargs={"beta": 1.0, "alpha": 0.125}))
    assert (asked.m, asked.n, asked.k, asked.batch) == (5, 5, 64, 16)
    assert asked.a == GemmOperand(True, 3072, 192, 2)
    assert asked.b == GemmOperand(False, 3072, 192, 1)
    assert asked.api == "cublasGemmStridedBatchedEx"
    assert (asked.alpha, asked.beta) == (0.125, 1.0)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        (operator("mm", tensor((4, 8), (16, 2)), tensor((8, 16), memory=1)), "neither of its strides is 1"),
        (operator("mm", tensor((4, 8)), tensor((7, 16), memory=1)), "operands do not fit"),
        (operator("mm", tensor((4, 0)), tensor((0, 16), memory=1)), "an empty product"),
        (operator("mm", tensor((4, 8))), "its operands were not recorded"),
    ],
)
def test_what_cannot_be_asked_for_directly_says_why(op, reason):
    assert reason in gemm.gemm_of(op)


# -- buffers ----------------------------------------------------------------------------------------------------------
def linear(weight_mib, activation_kib=64, reuse=0):
    x = tensor((activation_kib * 512, 1), memory=0, reuse_bytes=reuse)
    w = tensor((weight_mib * MIB // 2, 1), memory=1, reuse_bytes=None)
    return operator("mm", x, w)


def test_weights_rotate_and_activations_stay():
    found = rotation(linear(8), "producer", 60 * MIB, 64)
    assert found == Rotation({0: 1, 1: 30}, (), False)  # 30 x 8 MiB = 4 x the cache
    assert rotation(linear(8), "cold", 60 * MIB, 64).copies == {0: 30, 1: 30}
    assert rotation(linear(8), "hot", 60 * MIB, 64) == Rotation({0: 1, 1: 1}, (), False)


def test_small_calls_need_a_flush_because_copies_are_too_few():
    assert rotation(linear(1), "producer", 60 * MIB, 64) == Rotation({0: 1, 1: 64}, (), True)


def test_a_call_that_fills_the_cache_has_its_activations_written_anew():
    found = rotation(linear(100), "producer", 60 * MIB, 64)
    assert found.touch == (0,)
    assert rotation(linear(100), "cold", 60 * MIB, 64).touch == ()


def test_what_was_far_away_in_the_model_is_as_far_in_the_replay():
    x = tensor((4 * MIB, 1), memory=0, reuse_bytes=64 * MIB)  # 8 MiB
    found = rotation(operator("neg", x, outputs=(8 * MIB,)), "producer", 60 * MIB, 64)
    assert found.copies == {0: 4}  # 4 calls of 16 MiB each until it comes round again


# -- the file ---------------------------------------------------------------------------------------------------------
def made():
    kernels = (
        Kernel("nvjet_a", "kernel", (8, 1, 1), (384, 1, 1), 0, 0, 0),
        Kernel("void cublasLt::splitKreduce_kernel<1>", "kernel", (8, 1, 1), (128, 1, 1), 0, 0, 1),
        Kernel("void at::native::add", "kernel", (1, 1, 1), (128, 1, 1), 0, 1, 0),
        Kernel("Memset (Device)", "memset", size_bytes=512, operator=0, position=2),
        Kernel("someone_elses", "kernel"),
    )
    durations = [(0, 5000), (1, 1000), (2, 2000), (0, 7000), (1, 1000), (2, 2100), (3, 900), (4, 1000)]
    events = tuple(KernelEvent(k, 10_000 * i, d, 7, i) for i, (k, d) in enumerate(durations))
    return Trace("m", "hf-graph", "decode", 1, 8, "bf16", "GPU", "graph", (MM, ADD), kernels, events)


def test_unique_kernels_with_counts_and_tiers():
    workload = signatures.workload_of(made())
    found = {s.kernel.name: (s.tier, s.launches, s.median_ns, s.total_ns) for s in workload.signatures}
    assert found == {
        "nvjet_a": (2, 2, 6000, 12000),
        "void cublasLt::splitKreduce_kernel<1>": (2, 2, 1000, 2000),
        "void at::native::add": (3, 2, 2050, 4100),
        "Memset (Device)": (1, 1, 900, 900),
        "someone_elses": (None, 1, 1000, 1000),
    }
    assert workload.signatures[0].gemm.m == 16
    shares = signatures.shares(workload)
    assert shares["tier2_cublas"].time_share == pytest.approx(14 / 20)
    assert shares["unclassified"].launches == 1
    assert sum(s.launch_share for s in shares.values()) == pytest.approx(1)


def test_units_are_an_operators_kernels_of_one_tier():
    units = signatures.units_of(signatures.workload_of(made()))
    assert [(u.tier, [m.kernel.name for m in u.members]) for u in units] == [
        (2, ["nvjet_a", "void cublasLt::splitKreduce_kernel<1>"]),
        (3, ["void at::native::add"]),
        (1, ["Memset (Device)"]),
    ]
    assert [u.tier for u in signatures.units_of(signatures.workload_of(made()), (3,))] == [3]


def test_what_the_model_had_in_cache_is_near():
    warm = tensor((4, 8), reuse_bytes=0)
    farther = tensor((8, 16), (1, 8), 1, reuse_bytes=32 * MIB)
    host = tensor((1,), memory=2, host=True)
    cold = tensor((4,), memory=3)
    found = near(operator("x", warm, farther, host, cold), 60 * MIB)
    assert list(found.items()) == [(1, 32 * MIB), (0, 0)]
    assert near(operator("x", warm, farther, host, cold), 16 * MIB) == {0: 0}


def test_an_edited_file_is_read_and_a_broken_one_refused(tmp_path):
    path = tmp_path / "kernel_signatures.json"
    signatures.write(path, signatures.workload_of(made()), {}, ())
    raw = json.loads(path.read_text())
    raw["data"]["signatures"][0]["launches"] = 40
    del raw["data"]["signatures"][4]
    path.write_text(json.dumps(raw))
    _, workload = signatures.read(path)
    assert workload.signatures[0].launches == 40
    assert len(workload.signatures) == 4
    raw["data"]["signatures"][0]["tier"] = 4
    path.write_text(json.dumps(raw))
    with pytest.raises(ChipError, match="tiers are 1, 2, 3 or null"):
        signatures.read(path)
    path.write_text("{}")
    with pytest.raises(ChipError, match="has no schema"):
        signatures.read(path)
