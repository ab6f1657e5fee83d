"""What a row of an aiconfigurator-core table means as a point of a CHIP operator.

Read from the tables themselves: latency is in milliseconds, but for moe_a2a_perf; one shape has one kernel_source, the
one that the engine chooses; a decode's `step` counts the tokens before the new one; message_size counts elements;
`inter_size` of a mixture of experts is that of the whole model, before tensor parallelism.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from chip import stats
from chip.hardware.tables.points_csv import Row

Columns = Mapping[str, Sequence[Any]]

# Weights in turn are cold, as our own records of an H200 confirm; attention repeats on one cache, which the L2 holds
# where it is small enough.
COLD, HOT = "cold", "hot"
DTYPES = {
    "bfloat16": "bf16",
    "half": "fp16",
    "fp8": "fp8",
    "fp8_block": "fp8_block",
    "nvfp4": "nvfp4",
    "int4_wo": "int4",
    "w4a16_mxfp4": "mxfp4",
    "w4a8_mxfp4_mxfp8": "mxfp4_mxfp8",
}
FP8_CACHE = "bf16_kv_fp8"  # queries in bf16, keys and values in fp8
ROUTING = "power_law_1.01"  # of those tabulated, nearest to experts chosen by random weights on our H200
# Kernels by the first of these that their name contains. What mixes several by shape is the engine's own choice.
KERNELS = {
    "torch.nn.functional": "torch",
    "vllm_default": "torch",
    "cutlassfp8scaledmm": "cutlass",
    "nvfp4linear": "flashinfer",
    "fa3": "fa3",
    "fa4": "fa4",
    "vllm_flash_attn": "fa2",
    "vllm_flashinfer": "flashinfer",
    "vllm_triton_attn": "triton",
    "marlin": "marlin",
    "torch_bmm": "torch",
    "nccl": "nccl",
}
ENGINE = "vllm"
BLOCK = "fp8_block"
HOST_PAUSE = 2.0  # times as long as in bf16: beyond, the host paused
# Its kernels for throughput (prefill), which the host must wait for, and for low latency (decode), made for graphs. How
# they were launched for the table is not stated.
DEEPEP = {"deepep_ht": "host", "deepep_ll": "graph"}
HOST_MARGIN = 1.5  # times what a shape of no work takes: a longer time is the device's


def kernel_of(source: str) -> str:
    lowered = source.lower()
    return next((name for part, name in KERNELS.items() if part in lowered), ENGINE)


def _each(c: Columns, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(c["kernel_source"], *(c[n] for n in names), (ms * 1e3 for ms in c["latency"]))


def linear(c: Columns) -> Iterator[Row]:
    """fp8_block was not timed in a CUDA graph: a shape of no work takes 58 us on Hopper, 280 us on an L40S. Only what
    takes well longer than that, and less than twice as long as in bf16, is the kernel's own time."""
    found = list(_each(c, "gemm_dtype", "m", "n", "k"))
    idle_us: dict[str, list[float]] = defaultdict(list)
    plain_us: dict[tuple[int, int, int], float] = {}
    for source, dtype, m, n, k, us in found:
        if dtype == BLOCK and m <= 128 and max(n, k) <= 1024:
            idle_us[source].append(us)
        elif DTYPES[dtype] == "bf16":
            plain_us[m, n, k] = us
    least_us = {source: HOST_MARGIN * stats.quantile(times, 0.95) for source, times in idle_us.items()}
    for source, dtype, m, n, k, us in found:
        if dtype != BLOCK:
            yield Row(kernel_of(source), COLD, DTYPES[dtype], (m, n, k), us)
        elif least_us.get(source, 0.0) < us <= HOST_PAUSE * plain_us.get((m, n, k), us):  # several kernels, one surface
            yield Row(ENGINE, COLD, DTYPES[dtype], (m, n, k), us)


def attention(c: Columns) -> Iterator[Row]:
    windows = c.get("window_size") or [0] * len(c["latency"])
    names = ("batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step")
    for (source, batch, new, heads, kv_heads, dim, cache, past, us), window in zip(_each(c, *names), windows):
        dtype = FP8_CACHE if cache == "fp8" else DTYPES[cache]
        at = (batch, heads, kv_heads or heads, dim, new, new + past, window)
        yield Row(kernel_of(source), HOT, dtype, at, us)


def moe_experts(c: Columns) -> Iterator[Row]:
    """Without expert parallelism: what a rank of it computes depends on where the tokens come from."""
    names = ("moe_dtype", "num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size")
    for row, ep, routing in zip(_each(c, *names), c["moe_ep_size"], c["distribution"]):
        source, dtype, tokens, hidden, inner, experts, top_k, tp, us = row
        if ep == 1 and routing == ROUTING and inner % tp == 0:
            yield Row(kernel_of(source), COLD, DTYPES[dtype], (tokens, hidden, inner // tp, experts, top_k), us)


def mla_module(c: Columns) -> Iterator[Row]:
    names = ("gemm_type", "kv_cache_dtype", "mla_dtype", "batch_size", "num_heads", "isl", "step")
    for _, dtype, cache, computed, batch, heads, new, past, us in _each(c, *names):
        if cache == computed == "bfloat16":
            yield Row(ENGINE, HOT, DTYPES[dtype], (batch, heads, new, new + past), us)


def bmm(c: Columns) -> Iterator[Row]:
    """The products that absorb DeepSeek's up-projections: 128 values of a head into 512 of the latent, and back."""
    for source, dtype, name, tokens, heads, us in _each(c, "bmm_dtype", "op_name", "num_tokens", "num_heads"):
        n, k = (512, 128) if name == "mla_gen_pre" else (128, 512)
        yield Row(kernel_of(source), COLD, DTYPES[dtype], (heads, tokens, n, k), us)


def custom_all_reduce(c: Columns) -> Iterator[Row]:
    for _, dtype, ranks, elements, mode, us in _each(c, "allreduce_dtype", "num_gpus", "message_size", "backend"):
        context = "graph" if mode.endswith("graph") else "host"
        yield Row(ENGINE, context, DTYPES[dtype], (2 * elements, ranks), us)


def nccl(operation: str) -> Callable[[Columns], Iterator[Row]]:
    def convert(c: Columns) -> Iterator[Row]:
        for _, name, dtype, ranks, elements, us in _each(c, "op_name", "nccl_dtype", "num_gpus", "message_size"):
            if name == operation and dtype == "half":
                yield Row("nccl", "graph", DTYPES[dtype], (2 * elements, ranks), us)

    return convert


def moe_exchange(phase: str) -> Callable[[Columns], Iterator[Row]]:
    """Tokens to their experts' GPUs and back. In this table latency is in microseconds already."""

    def convert(c: Columns) -> Iterator[Row]:
        names = ("comm_backend", "phase", "num_tokens", "hidden_size", "num_experts", "topk", "ep_size", "latency")
        for kernel, way, *at, us in zip(*(c[n] for n in names)):
            if way == phase and kernel in DEEPEP:
                yield Row(kernel, DEEPEP[kernel], "bf16", tuple(at), us)

    return convert


class TableSource(NamedTuple):
    """Tables that give points of one operator kind."""

    kind: str
    axes: tuple[str, ...]
    family: str  # folder under the system's data
    files: tuple[str, ...]
    convert: Callable[[Columns], Iterator[Row]]
    columns: tuple[str, ...]
    nccl: bool = False  # versioned by NCCL, not by the engine


_LINK = ("bytes", "ranks")
_HEADS = ("batch", "heads", "kv_heads", "head_dim", "q_len", "kv_len", "window")
_EXPERTS = ("tokens", "hidden", "intermediate", "experts", "top_k")
_OF_LINEAR = ("kernel_source", "gemm_dtype", "m", "n", "k", "latency")
_OF_ATTENTION = (
    "kernel_source", "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step",
    "latency",
)  # fmt: skip
_OF_EXPERTS = (
    "kernel_source", "moe_dtype", "num_tokens", "hidden_size", "inter_size", "num_experts", "topk", "moe_tp_size",
    "moe_ep_size", "distribution", "latency",
)  # fmt: skip
_OF_MLA = (
    "kernel_source", "gemm_type", "kv_cache_dtype", "mla_dtype", "batch_size", "num_heads", "isl", "step", "latency",
)  # fmt: skip
_OF_BMM = ("kernel_source", "bmm_dtype", "op_name", "num_tokens", "num_heads", "latency")
_OF_CUSTOM = ("kernel_source", "allreduce_dtype", "num_gpus", "message_size", "backend", "latency")
_OF_NCCL = ("kernel_source", "op_name", "nccl_dtype", "num_gpus", "message_size", "latency")
_OF_EXCHANGE = (
    "comm_backend", "phase", "num_tokens", "hidden_size", "num_experts", "topk", "ep_size", "latency",
)  # fmt: skip
_EXCHANGE = ("tokens", "hidden", "experts", "top_k", "ranks")
_BY_PHASE = ("context_attention_perf", "generation_attention_perf")
_MLA_BY_PHASE = ("mla_context_module_perf", "mla_generation_module_perf")
SOURCES = (
    TableSource("linear", ("m", "n", "k"), "gemm", ("gemm_perf",), linear, _OF_LINEAR),
    TableSource("attention", _HEADS, "attention", _BY_PHASE, attention, _OF_ATTENTION),
    TableSource("moe_experts", _EXPERTS, "moe", ("moe_perf",), moe_experts, _OF_EXPERTS),
    TableSource("mla_module", ("batch", "heads", "q_len", "kv_len"), "mla", _MLA_BY_PHASE, mla_module, _OF_MLA),
    TableSource("bmm", ("batch", "m", "n", "k"), "mla_bmm", ("mla_bmm_perf",), bmm, _OF_BMM),
    TableSource("all_reduce", _LINK, "comm", ("custom_allreduce_perf",), custom_all_reduce, _OF_CUSTOM),
    TableSource("all_reduce", _LINK, "comm", ("nccl_perf",), nccl("all_reduce"), _OF_NCCL, nccl=True),
    TableSource("all_gather", _LINK, "comm", ("nccl_perf",), nccl("all_gather"), _OF_NCCL, nccl=True),
    TableSource("reduce_scatter", _LINK, "comm", ("nccl_perf",), nccl("reduce_scatter"), _OF_NCCL, nccl=True),
    TableSource("moe_dispatch", _EXCHANGE, "comm", ("moe_a2a_perf",), moe_exchange("dispatch"), _OF_EXCHANGE),
    TableSource("moe_combine", _EXCHANGE, "comm", ("moe_a2a_perf",), moe_exchange("combine"), _OF_EXCHANGE),
    TableSource("all_to_all", _LINK, "comm", ("nccl_perf",), nccl("alltoall"), _OF_NCCL, nccl=True),
)
