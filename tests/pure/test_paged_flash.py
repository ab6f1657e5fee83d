"""Attention over pages where FlashAttention-2 does not cut the keys, and caches that no L2 holds."""

import pytest
from asking import setting

from chip import stats
from chip.decoders import library
from chip.hardware import gpus, points
from chip.ops.attention import Attention
from chip.ops.attention_flash import FlashBase, PagedFlashBase, flash
from chip.types import Seq

MODEL = library.find("llama-3.1-8b")


def estimator(gpu, engine="vllm"):
    return setting(MODEL, gpu, engine, "bf16", 1).steps.estimator


def of_datasheet(gpu):
    """The base under the imported points: the H200's at this GPU's rates, as a GPU without points has it."""
    return estimator(gpu).bases.of(Attention(1, 32, 8, 128, 1, 128), "")[0]


@pytest.mark.parametrize(
    ("gpu", "kernel", "off"),
    [("a100", "fa2", 0.22), ("b200", "flashinfer", 0.12), ("rtx-pro-6000-server", "fa2", 0.12)],
)
def test_decode_whose_keys_are_not_cut_takes_what_others_measured(gpu, kernel, off):
    """Blocks of 128 rows, as torch's kernel has them, would make the A100's 1.8 times as slow. It is 21 % too fast:
    its matrix rate is that of prompts, which FlashAttention-2 uses better there than on a Hopper."""
    base = of_datasheet(gpu)
    assert isinstance(base, PagedFlashBase)
    found = points.read(gpus.IMPORTED / gpu / "attention.csv").groups
    (group,) = (g for g in found if (g.dtype, g.kernel) == ("bf16", kernel))
    ratios = []
    for op, seconds in zip(group.ops, group.seconds):
        sizes = (op.batch, op.heads, op.kv_heads, op.head_dim, op.q_len, op.kv_len)
        if op.q_len == 1 and op.kv_len > 256 and not op.window and flash(*sizes, base.sm_count)[2] == 1:
            ratios.append(base.seconds(op) / seconds)
    assert len(ratios) >= 40
    assert stats.median(ratios) == pytest.approx(1.0, abs=off)


def test_the_form_is_the_engines():
    assert type(of_datasheet("rtx-4090")) is PagedFlashBase
    torch_form = estimator("rtx-4090", "hf-graph").bases.of(Attention(1, 32, 8, 128, 1, 128), "")[0]
    assert not isinstance(torch_form, PagedFlashBase)
    assert FlashBase.PAGED is False


def test_more_sequences_do_not_jump_where_keys_are_no_longer_cut():
    """21 sequences of 8 heads fill the A100, 22 are not cut any more: 5 % more work, not half as much again."""
    ask = estimator("a100-40gb").curve(Attention(1, 32, 8, 128, 1, 1)).time
    before, after = (ask(Seq(1, 1024, n)).seconds for n in (21, 22))
    assert after < 1.2 * before


@pytest.mark.parametrize("gpu", ["l40s", "rtx-pro-6000-server", "b200", "h100"])
def test_a_decode_step_reads_its_cache_from_memory(gpu):
    """Imported points were measured over one cache in turn: what fits the L2 came from there."""
    memory = gpus.find(gpu).spec.ceilings["hbm"].value
    ask = estimator(gpu).curve(Attention(1, 32, 8, 128, 1, 1)).time
    for batch, past in ((4, 2048), (16, 1024), (32, 512), (8, 6000)):
        time = ask(Seq(1, past, batch))
        assert time.bytes > batch * past * 8 * 128 * 4
        assert time.seconds >= time.bytes / memory
