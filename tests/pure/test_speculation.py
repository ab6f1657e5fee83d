"""Speculative decoding: its grammar, tokens a step, where it pays, and that a step is never cheaper than its parts."""

import json

import pytest

from chip.show.cli import main
from chip.simulator.simulation import system_of
from chip.simulator.speculation import document, expected, parse, pays_from, published, speculated
from chip.types import ChipError


@pytest.fixture(scope="module")
def question():
    return system_of("llama-3.1-8b", {"gpu": "h200"})


def test_tokens_of_a_step():
    assert expected(0.0, 3) == 1, "verifying gives one in any case"
    assert expected(1.0, 3) == 4
    assert expected(0.5, 2) == 1.75
    assert parse("eagle3:k=3,task=coding").tokens_a_step == 2.94
    assert parse("mtp:task=chat").tokens_a_step == pytest.approx(1.875)
    for tasks in published().values():
        for row in tasks.values():
            assert row["source"]
            lengths = row.get("lengths", [])
            assert all(1 < a <= b <= i + 2 for i, (a, b) in enumerate(zip([1.01, *lengths], lengths)))


def test_where_it_begins_to_pay():
    assert pays_from(1.75, 2) == pytest.approx(0.5)
    assert pays_from(1.0, 3) == pytest.approx(0.0, abs=1e-9)
    assert pays_from(4.0, 3) == pytest.approx(1.0)
    assert pays_from(4.1, 3) is None, "not even if all were right"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("medusa:k=3", "must begin with ngram, draft, eagle3, mtp"),
        ("ngram:k=0,accept=0.5", "k must be a whole number from 1 to 16"),
        ("ngram:accept=2", "accept must be between 0 and 1"),
        ("ngram:k=3", "give accept="),
        ("eagle3:k=3", "give task=coding"),
        ("eagle3:k=9,task=math", "published up to k=7"),
        ("draft:k=3,accept=0.5", "names the model that drafts"),
        ("eagle3:model=gpt2,accept=0.5", "the others have none"),
        ("eagle3:depth=3", "must be k=, accept=, task= or model="),
    ],
)
def test_bad_words_are_one_line(text, says):
    with pytest.raises(ChipError, match=says):
        parse(text)


def test_verifying_costs_more_with_the_batch_and_drafts_more_with_their_number(question):
    few, many = (speculated(question, parse(f"eagle3:k={k},accept=0.7"), 1024) for k in (1, 5))
    for one, five in zip(few, many):
        assert five.draft_s == pytest.approx(5 * one.draft_s)
        assert five.verify_s > one.verify_s
        assert one.low_s < one.step_s < one.high_s
        assert one.step_s >= one.draft_s + one.verify_s
    at = {step.batch: step for step in many}
    assert at[1].speedup > 1.5, "memory sets the step: six tokens take hardly longer than one"
    assert at[256].speedup < at[1].speedup, "arithmetic does"
    assert at[1].pays_from < at[64].pays_from < at[256].pays_from
    nothing = speculated(question, parse("eagle3:k=3,accept=0"), 1024)
    assert all(step.speedup < 1 for step in nothing)


def test_n_grams_wait_for_the_host_and_a_model_drafts_at_its_own_pace(question):
    (looked_up,) = speculated(question, parse("ngram:k=3,accept=0.5"), 512, [1])
    assert looked_up.draft_s == 0
    assert looked_up.step_s == pytest.approx(looked_up.verify_s + looked_up.host_s), "vLLM does not schedule ahead then"
    (small,) = speculated(question, parse("draft:model=llama-3.2-1b,k=4,accept=0.5"), 512, [1])
    (large,) = speculated(question, parse("draft:model=llama-3.2-3b,k=4,accept=0.5"), 512, [1])
    assert 2 < large.draft_s / small.draft_s < 3.5, "as their weights"
    made = document(question, parse("draft:model=llama-3.2-1b,k=4,accept=0.5"), [small], 512)
    assert made["draft_bytes"] == pytest.approx(1.236e9 * 2, rel=0.01)
    moe = system_of("deepseek-v3", {"gpu": "h200", "tp": 8})
    (layer,) = speculated(moe, parse("mtp:k=1,task=chat"), 512, [1])
    assert 0.01 < layer.draft_s / layer.verify_s < 0.06, "one of 61 layers, and the vocabulary"


def test_the_command_says_where_it_pays(capsys):
    asked = ["predict", "llama-3.1-70b", "--tp", "4", "--speculative", "draft:model=llama-3.2-1b,k=4,accept=0.7"]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert "draft: 4 tokens drafted by llama-3.2-1b" in out
    assert "it pays at a batch of 1 to 64, surely at 1 to 32" in out
    assert "no speculative step was measured" in err
    assert main([*asked, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)["speculation"]
    assert [s["batch"] for s in made["steps"]] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert main(["predict", "gpt2", "--engine", "hf-graph", "--speculative", "ngram:accept=0.5"]) == 2
    assert "ngram is not predicted for hf-graph; choose --engine vllm" in capsys.readouterr().err
    assert main(["predict", "gpt2", "--batch", "1,2", "--speculative", "ngram:accept=0.5"]) == 2
