"""SGLang and TensorRT-LLM: settings by their own names, schedulers, memory; what stands in for what nobody measured."""

import pytest

import chip
from chip import engines
from chip.engines import profile
from chip.hardware import gpus
from chip.types import ChipError, Seq

BOTH = ("sglang", "trtllm")
H200 = 141 * 2**30


@pytest.mark.parametrize("engine", BOTH)
def test_it_predicts_and_says_what_stands_in(engine):
    answer = chip.predict("llama-3.1-8b", gpu="h200", engine=engine, batch=8)
    of_vllm = chip.predict("llama-3.1-8b", gpu="h200", batch=8)
    assert answer.tpot_s == pytest.approx(of_vllm.tpot_s, rel=0.05)
    assert any("nothing of it was measured here" in note for note in answer.notes)


@pytest.mark.parametrize("engine", BOTH)
def test_terms_of_another_engine_are_wider(engine):
    h = gpus.find("h100")
    other, own = profile.find(h, engine, like="vllm"), profile.find(h, "vllm")
    assert other.terms[0] == own.terms[0]
    assert other.off == profile.LIKE_ANOTHER * own.off
    assert other.terms[2].host_step_s > own.terms[2].host_step_s


def test_sglang_runs_prompts_before_decodes_and_keeps_a_static_share():
    e = engines.get("sglang")
    options = e.options((), H200)
    assert (options.chunked_prefill_size, options.cuda_graph_max_bs) == (8192, 256)
    assert e.options((), 180 * 2**30).chunked_prefill_size == 16384
    assert not e.scheduler(options).mixes_prompts
    assert e.scheduler(e.options((("enable_mixed_chunk", True),), H200)).mixes_prompts
    assert e.step((Seq(1, 100, 3),)).graph
    assert not e.step((Seq(100, 0, 1),)).graph
    assert 0.85 < options.mem_fraction_static < 0.95


def test_trtllm_takes_a_share_of_what_is_left():
    half, most = (
        chip.predict("llama-3.1-8b", gpu="h200", engine="trtllm", engine_settings={"free_gpu_memory_fraction": share})
        for share in (0.45, 0.9)
    )
    assert most.memory["kv_capacity_tokens"] == pytest.approx(2 * half.memory["kv_capacity_tokens"], rel=1e-3)
    assert engines.get("trtllm").scheduler(engines.get("trtllm").options((), H200)).mixes_prompts


@pytest.mark.parametrize(
    ("engine", "settings", "words"),
    [
        ("sglang", {"mem_fraction": 0.8}, "did you mean mem_fraction_static"),
        ("sglang", {"tp_size": 2}, "say it as --tp"),
        ("sglang", {"page_size": 64, "chunked_prefill_size": 32}, "at least page_size"),
        ("trtllm", {"max_num_tokens": 8}, "at least tokens_per_block"),
        ("trtllm", {"free_gpu_memory_fraction": 2}, "between 0.01 and 1.0"),
    ],
)
def test_wrong_settings_are_refused_by_name(engine, settings, words):
    with pytest.raises(ChipError, match=words):
        chip.predict("llama-3.1-8b", gpu="h200", engine=engine, engine_settings=settings)
