"""Sampling: one grammar, its cost by what its kernels read and write, the same in predictions and simulations."""

import json

import pytest

import chip
from chip.engines.sampling import parts_of, request_fields
from chip.engines.vllm.sampling import passes
from chip.lab.run.completions import request_of
from chip.show.cli import main
from chip.types import ChipError


def test_the_grammar():
    assert parts_of("greedy") == ()
    assert parts_of("logprobs+top-p+penalties") == ("penalties", "top-p", "logprobs"), "in the order in which they run"
    assert parts_of("greedy+logprobs") == ("logprobs",)
    for text, says in (
        ("warm", "'warm' must be greedy, temperature"),
        ("greedy+top-k", "choose one"),
        ("", "'' must be"),
    ):
        with pytest.raises(ChipError, match=says):
            parts_of(text)


def test_each_part_costs_its_passes_over_the_vocabulary():
    """At a batch where the floor of a kernel is little: bytes over the stream of memory."""
    batch, vocab = 256, 128256

    def drawn(sampling):
        decode = chip.predict("llama-3.1-8b", batch=batch, prompt=16, output=8, sampling=sampling).decode
        return [line for line in decode.lines if line.role == "sampling_passes"]

    assert drawn("greedy") == []
    for text in ("temperature", "top-p", "penalties", "top-k+logprobs"):
        (line,) = drawn(text)
        values = sum(reads + writes for reads, writes in passes(parts_of(text)))
        assert line.bytes == pytest.approx(values * batch * vocab * 4)
        assert line.source == "roofline"
        assert line.low_s < line.seconds < line.high_s
        assert 2e12 < line.bytes / line.seconds < 4.9e12, "no faster than an H200's memory"
    (top_k,), (top_p,), (both,) = (drawn(text) for text in ("top-k", "top-p", "top-k+top-p"))
    assert top_k.seconds == top_p.seconds == both.seconds, "one kernel keeps what either keeps"


def test_a_step_takes_so_much_longer_and_says_so():
    asked = {"batch": 64, "prompt": 512, "output": 32}
    plain = chip.predict("llama-3.1-8b", **asked)
    drawn = chip.predict("llama-3.1-8b", **asked, sampling="top-p+penalties")
    (line,) = [line for line in drawn.decode.lines if line.role == "sampling_passes"]
    assert drawn.tpot_s - plain.tpot_s == pytest.approx(line.seconds, rel=0.1)
    assert any("top-p+penalties" in note and "nobody measured" in note for note in drawn.notes)
    assert not any("greedy" in note for note in plain.notes)
    traffic = {"workload": "closed:users=64,prompt=128,output=64", "requests": 200, "draws": 0}
    tpots = [chip.simulate("llama-3.1-8b", **traffic, sampling=s).tpot_s.mean for s in ("greedy", "top-p+penalties")]
    assert tpots[1] - tpots[0] == pytest.approx(line.seconds, rel=0.4)


def test_an_engine_whose_sampler_is_not_known_refuses(capsys):
    assert main(["predict", "gpt2", "--engine", "hf-graph", "--sampling", "top-p"]) == 2
    assert capsys.readouterr().err == (
        "chip predict: --sampling: it is not known how hf-graph samples; choose --engine vllm, or greedy\n"
    )
    assert main(["bench", "gpt2", "--engine", "vllm", "--sampling", "top-p"]) == 2
    assert "--sampling is of --server" in capsys.readouterr().err


def test_a_request_to_a_server_asks_for_it():
    body = json.loads(request_of("h", "m", [1, 2], 5, "top-k+penalties").partition(b"\r\n\r\n")[2])
    assert (body["top_k"], body["temperature"], body["repetition_penalty"]) == (50, 0.8, 1.1)
    assert request_fields("greedy") == {"temperature": 0.0}
