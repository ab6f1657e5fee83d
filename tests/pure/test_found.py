"""What the campaign found, made small: each of these once broke a law of physics or fell at an edge."""

import sys
from itertools import pairwise
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "campaign"))

import edges
import physics

import chip
from chip import ops
from chip.hardware import gpus, points
from chip.ops.attention import Attention

QUESTION = ("gpu", "model", "engine", "dtype", "batch", "prompt", "output")
BROKEN = [  # two GPUs more than twice as fast; peaks passed; less time for more
    ("rtx-3060", "tinyllama-1.1b", "native", "fp16", 17, 131_072, 65),
    ("a10", "qwen2.5-3b", "hf-graph", "fp16", 8, 131_072, 15),
    ("rtx-4090", "gemma-2-27b", "vllm", "w8a8", 19, 1995, 255),
    ("l4", "command-r", "hf-eager", "fp16", 129, 127, 512),
    ("h100", "falcon-7b", "vllm", "int8", 1986, 131_071, 127),
    ("h20", "falcon-7b", "hf-eager", "mxfp4", 255, 65_537, 256),
    ("rtx-pro-6000", "gemma-2-2b", "vllm", "nvfp4", 65, 99, 64),
    ("b200", "gemma-3-1b", "vllm", "bf16", 2, 32_768, 4096),
    ("gtx-1080", "bloom-560m", "hf-eager", "int8", 64, 512, 31),
    ("mi350x", "phi-3-medium", "vllm", "bf16", 17, 14_230, 2048),
    ("jetson-agx-orin", "phi-3-mini", "hf-graph", "fp16", 4, 64, 4096),
    ("p100", "smollm2-135m", "native", "fp16", 15, 1023, 1),  # a prompt cut at a step's end took a launch of its own
    ("a40", "qwen3-0.6b", "native", "fp16", 3, 4095, 1),
    ("gb200", "qwen3-1.7b", "vllm", "int8", 3, 8192, 1),  # one prompt with a token of the next: like two prompts alike
    ("h100", "qwen2.5-0.5b", "vllm", "int4", 8, 16_384, 32),
    ("a40", "llama-3.2-3b", "native", "bf16", 3, 65_534, 1),  # a few tokens of a prompt beside all of another
    ("h200", "llama-3.2-1b", "native", "bf16", 1, 1, 1),  # a prompt of one token was launched kernel by kernel
    ("rtx-4070-laptop", "qwen1.5-moe-a2.7b", "vllm", "fp32", 1, 255, 1),  # shared experts beside routed ones
    (
        "h100",
        "tinyllama-1.1b",
        "native",
        "bf16",
        127,
        8191,
        1,
    ),  # an integrated step took a launch for one token of a prompt
    ("rtx-5080", "gemma-3-1b", "vllm", "fp32", 255, 8192, 2),
    ("rtx-5090", "qwen1.5-moe-a2.7b", "vllm", "fp32", 256, 1, 1),  # two streams that both multiply shared one roof
    ("h200", "gpt-oss-120b", "hf-eager", "fp8", 1, 511, 1),  # 62808: keys that are not aligned, and nothing said so
]


@pytest.mark.parametrize("asked", BROKEN, ids=lambda asked: "-".join(map(str, asked)))
def test_physics_hold(asked):
    case = {"question": dict(zip(QUESTION, asked)) | {"tp": 1}, "more": dict.fromkeys(physics.AXES, "one")}
    assert physics.check(case) == ""


FALLS = [  # axis, metric, from where to where
    (("gtx-1080-ti", "starcoder2-7b", "hf-eager", "fp32", 8, 512, 32), "prompt", "tpot_ms", 240),
    (("h200", "starcoder2-15b", "hf-eager", "fp32", 1, 512, 32), "batch", "tpot_ms", 44),
    (("mi355x", "falcon-7b", "vllm", "int4", 32, 512, 4096), "prompt", "tpot_ms", 5360),
    (("rtx-4090", "qwen2.5-3b", "native", "fp32", 1, 512, 4096), "batch", "tpot_ms", 85),
    (("l40", "gemma-3-4b", "vllm", "bf16", 8, 512, 32), "output", "e2e_ms", 512),  # a context reached the window
    (("rtx-4060-laptop", "falcon-7b", "vllm", "w8a8", 32, 512, 32), "prompt", "ttft_ms", 16_384),  # 64 full steps
    (("h200", "falcon-40b", "hf-eager", "bf16", 32, 512, 32), "prompt", "ttft_ms", 5),  # 192 rows at a higher clock
    (("l40s", "tinyllama-1.1b", "vllm", "fp8", 1, 512, 4096), "batch", "tpot_ms", 35),
    (("l40s", "llama-3.2-3b", "native", "bf16", 1, 512, 32), "prompt", "ttft_ms", 320),  # 25812: keys in more parts
    (("gb200", "qwen2.5-3b", "vllm", "nvfp4", 1, 32_769, 4096), "batch", "tpot_ms", 3),  # one sequence took longer
    (("a40", "deepseek-v3", "vllm", "fp32", 255, 127, 2), "batch", "e2e_ms", 255),  # single tokens end the last prompt
    (("b200", "qwen3-4b", "vllm", "int4", 8, 512, 32), "prompt", "tpot_ms", 1136),  # keys in more parts
    (("h200", "command-r", "vllm", "fp8", 32, 512, 32), "prompt", "ttft_ms", 3),  # fp8 at the clock of 16 bits
    (("h200", "llama-2-70b", "vllm", "fp8", 8, 512, 32), "prompt", "ttft_ms", 10),
    (
        ("h200", "llama-2-70b", "vllm", "fp8", 8, 512, 32),
        "prompt",
        "ttft_ms",
        31,
    ),  # clock
    (("h200", "bloom-560m", "hf-eager", "fp8", 1, 512, 1), "prompt", "ttft_ms", 8),  # aligned keys took longer
    (("rtx-pro-6000-server", "gpt2-xl", "vllm", "mxfp4", 8, 512, 32), "output", "e2e_ms", 128),  # integrated otherwise
    (("h200", "gemma-2-27b", "vllm", "int4", 1, 512, 32), "prompt", "ttft_ms", 128),  # at a higher clock than 128 rows
    (("p40", "deepseek-v2-lite", "hf-eager", "fp32", 1, 512, 32), "output", "e2e_ms", 256),  # keys in more parts
]


@pytest.mark.parametrize(("asked", "axis", "metric", "at"), FALLS)
def test_no_fall_at_an_edge(asked, axis, metric, at):
    question = dict(zip(QUESTION, asked))
    before, after = (edges.time_of({**question, axis: value}, metric) for value in (at, at + 1))
    assert after >= before * (1 - edges.SLACK)


OPERATORS = [  # numbers of the edge walker's cases, with what they walk along
    ("add_rms_norm", {"rows": 4095, "cols": 999}, "cols"),  # 2077: points of up to 512 columns shared a place
    ("layer_norm", {"rows": 31, "cols": 9, "dtype": "fp16"}, "cols"),  # 2759
    ("rope_store", {"rows": 3, "heads": 4095, "kv_heads": 65, "head_dim": 511, "dtype": "fp32"}, "kv_heads"),  # 1161
    # 3463 and 4533: heads that no measured kernel takes were answered by points far away, six others at every step
    ("attention", {"batch": 1, "heads": 8192, "kv_heads": 4096, "head_dim": 4097, "kv_len": 2048}, "q_len"),
    ("masked_attention", {"batch": 4, "heads": 4, "kv_heads": 1, "head_dim": 8192, "q_len": 255}, "kv_len"),
    ("linear", {"m": 15, "k": 2048}, "n"),  # 5213
    # keys cut into other parts, or six other points
    ("fp8_cache_attention", {"batch": 256, "heads": 9, "kv_heads": 9, "head_dim": 4, "kv_len": 511}, "q_len"),  # 11893
    ("attention", {"batch": 8191, "heads": 208, "kv_heads": 2, "head_dim": 5, "kv_len": 7}, "q_len"),  # 12897
    ("fp8_attention", {"batch": 511, "heads": 8, "kv_heads": 4, "head_dim": 122, "kv_len": 1023}, "q_len"),  # 13279
    ("fp8_attention", {"batch": 4097, "heads": 1, "kv_heads": 1, "head_dim": 64, "kv_len": 8192}, "q_len"),  # 17719
    ("masked_attention", {"batch": 255, "heads": 64, "kv_heads": 4, "head_dim": 1, "q_len": 1}, "kv_len"),  # 22393
    ("float_attention", {"batch": 2048, "heads": 7, "kv_heads": 1, "head_dim": 2049, "q_len": 2047}, "kv_len"),  # 23629
    # of seed 77: heads without a kernel had no grid, and a chunk took less than a whole prompt of as many tokens
    ("mla", {"batch": 513, "heads": 2234, "kv_heads": 2, "head_dim": 127, "q_len": 65, "dtype": "fp32"}, "kv_len"),
    (
        "fp8_attention",
        {"batch": 7, "heads": 9, "kv_heads": 9, "head_dim": 5691, "kv_len": 4095, "dtype": "fp32"},
        "q_len",
    ),
    ("growing_attention", {"batch": 4, "heads": 4095, "kv_heads": 15, "head_dim": 257, "kv_len": 386}, "q_len"),
    ("fp8_attention", {"batch": 2048, "heads": 33, "kv_heads": 1, "head_dim": 4096, "kv_len": 255}, "q_len"),
]


@pytest.mark.parametrize(("op", "axes", "axis"), OPERATORS, ids=[op for op, _, _ in OPERATORS])
def test_operators_do_not_fall_along_an_axis(op, axes, axis):
    assert edges.check({"what": "estimate", "axis": axis, "question": {"op": op, "gpu": "h200", **axes}}) == ""


UNALIGNED = [  # operators whose keys were measured to take longer where they are no multiple of what is read at once
    ("masked_attention", {"batch": 3935, "heads": 64, "kv_heads": 2, "head_dim": 64, "q_len": 4097}, 17_345, 17_346),
    ("alibi_attention", {"batch": 1, "heads": 32, "kv_heads": 32, "head_dim": 128, "q_len": 512}, 1023, 1024),
    ("float_attention", {"batch": 1, "heads": 16, "kv_heads": 16, "head_dim": 256, "q_len": 512}, 1023, 1024),
    ("sink_attention", {"batch": 1, "heads": 64, "kv_heads": 8, "head_dim": 64, "q_len": 512}, 1023, 1024),
]


@pytest.mark.parametrize(("op", "axes", "odd", "even"), UNALIGNED, ids=[op for op, *_ in UNALIGNED])
def test_keys_that_are_not_aligned_take_longer(op, axes, odd, even):
    slow, fast = (edges.answered({"op": op, "gpu": "h200", **axes, "kv_len": n}, "")["us"] for n in (odd, even))
    assert slow > 1.02 * fast


def test_heads_that_no_measured_kernel_takes_are_not_said_to_be_interpolated():
    asked = {"batch": 1, "heads": 8, "kv_heads": 8, "q_len": 64, "kv_len": 64}
    for op in ("attention", "masked_attention"):
        found = [chip.estimate(op, gpu="h200", **asked, head_dim=d) for d in (256, 512)]
        assert [f.source for f in found] == ["interpolated", "roofline"]
        assert found[1].seconds > found[0].seconds


def test_norms_take_whole_passes_and_lie_among_their_points_by_their_columns():
    norms = [ops.build("rms_norm", {"rows": 1, "cols": cols}) for cols in (64, 512, 513)]
    assert len({norm.place() for norm in norms}) == 3
    base = next(g.base for g in points.read(gpus.POINTS / "h200" / "rms_norm.csv").groups if g.kernel == "torch")
    one_s, same_s, more_s = map(base.seconds, norms)
    assert one_s == pytest.approx(same_s, rel=1e-3)
    assert more_s > 1.05 * same_s


def test_padding_chooses_no_experts_of_its_own():
    """A graph for 16 tokens with 9 of them real reads the experts of ten tokens: the padding is one token repeated."""
    tpot_s = [chip.predict("gpt-oss-120b", gpu="l40s", tp=2, batch=b, prompt=512, output=32).tpot_s for b in (8, 9, 16)]
    assert 1.05 < tpot_s[1] / tpot_s[0] < 1.25
    assert 1.2 < tpot_s[2] / tpot_s[1] < 1.5


def test_waiting_for_the_host_counts_where_a_slower_device_would_not_wait():
    """The interval of an uncalibrated GPU is so wide that at its slowest it never waits."""
    asked = {"gpu": "mi350x", "engine": "vllm", "dtype": "int8", "prompt": 512, "output": 32}
    tpot_s = [chip.predict("phi-3-mini", **asked, batch=b).tpot_s for b in (1, 2, 3, 4)]
    assert all(b >= a * (1 - 1e-9) for a, b in pairwise(tpot_s))


def test_our_prefill_goes_through_all_keys_of_a_block():
    """Its base had FlashAttention-2's split of the keys: 61 us for one prompt of 256 tokens, 15 for two of them."""
    shape = {"heads": 32, "kv_heads": 8, "head_dim": 128}
    base = next(g.base for g in points.read(gpus.POINTS / "h200" / "attention.csv").groups if g.kernel == "chip")
    times = [base.seconds(Attention(1, **shape, q_len=n, kv_len=n)) for n in range(64, 1024, 64)]
    assert times == sorted(times)
    assert times[3] < base.seconds(Attention(2, **shape, q_len=256, kv_len=256)) < 2 * times[3]
