"""Which GPU by the request rate: the API answers what `chip plan` answers, in pieces, and in the same order."""

import json

import pytest

from chip.show import cli
from chip.show.serve import api, planning, ranking
from chip.types import ChipError

ASKED = {
    "model": "llama-3.2-1b", "gpu": ["h200", "t4"], "prompt": 512, "output": 8, "tp": [1, 2],
    "dtype": ["auto", "fp8"], "limits": {"ttft_ms": 300, "tpot_ms": 20}, "requests": 50,
}  # fmt: skip
PRICES = {"h200": 3.5, "t4": 0.4}


def all_of(question):
    found = planning.rank(question)
    while found["pending"]:
        found = planning.rank(question)
    return found


def test_rows_are_what_chip_plan_answers(capsys):
    words = "plan llama-3.2-1b --workload poisson:prompt=512,output=8 --slo ttft=300ms,tpot=20ms --gpu h200,t4"
    words += " --tp 1,2 --dtype auto,fp8 --requests 50 --price h200=3.5,t4=.4 --json"
    assert cli.main(words.split()) == 0
    planned = json.loads(capsys.readouterr().out)["choices"]
    rows = all_of({**ASKED, "prices": PRICES, "by": "cost"})["rows"]
    assert len(rows) == len(planned) == 8

    def key(c):
        return c["gpu"], c["tp"], c["dtype"]

    good = [c for c in planned if c["status"] == "ok"]
    assert [key(r) for r in rows if r.get("max_rate_per_s")] == [key(c) for c in good], "and in the same order"
    of = {key(r): r for r in rows}
    for c in good:
        row = of[key(c)]
        for name in ("max_rate_per_s", "tokens_per_s_per_gpu", "cost_per_million_tokens", "place", "rests_on"):
            assert row[name] == c[name]
        assert row["interval"]["max_rate_per_s"] == pytest.approx(c["interval"], rel=1e-4)
        assert row["ttft_ms"] == c["at_rate"]["ttft_p99"] <= 300
        hourly = PRICES[row["gpu"]] * row["tp"]
        paid = hourly / (3600 * row["max_rate_per_s"] * 8) * 1e6
        assert row["cost_per_million_tokens"] == pytest.approx(paid, rel=1e-4)
    assert {c["reason"] for c in planned if c["status"] == "refused"} == {r["error"] for r in rows if "error" in r}


def test_an_answer_comes_at_once_and_is_gone_on_with(monkeypatch):
    asked = {**ASKED, "gpu": ["h200", "t4"], "tp": 1, "dtype": "auto", "requests": 60}
    monkeypatch.setattr(planning, "MOMENT_S", 0.0)
    found, times = planning.rank(asked), 1
    assert found["pending"] == ["h200", "t4"]
    assert found["rows"] == []
    while found["pending"]:
        found, times = planning.rank(asked), times + 1
    assert times > 10, "a simulation at a time"
    assert [r["gpu"] for r in found["rows"]] == ["h200", "t4"]
    assert planning.rank({**asked, "prices": PRICES})["pending"] == [], "a price costs no simulation"


def test_larger_splits_that_give_less_per_gpu_are_left_out():
    every, fewer = all_of(ASKED), all_of({**ASKED, "prune": True})
    assert fewer["left_out"] > 0
    assert len(fewer["rows"]) + fewer["left_out"] == len(every["rows"])
    rate = {(r["gpu"], r["dtype"], r["tp"]): r["tokens_per_s_per_gpu"] for r in every["rows"] if "error" not in r}
    kept = {(r["gpu"], r["dtype"], r["tp"]) for r in fewer["rows"]}
    for gpu, dtype, tp in rate.keys() - kept:
        assert rate[gpu, dtype, tp] < 1.05 * rate[gpu, dtype, tp // 2]


def test_a_burst_is_no_rate():
    """Qwen3-32B, 8192 in and 1024 out within 1 s and 30 ms: by the rate a B200 serves a token at less than half of what
    the best of the bursts costs."""
    asked = {"model": "qwen3-32b", "gpu": ["h100", "b200"], "prompt": 8192, "output": 1024, "tp": [1, 4],
             "dtype": "fp8", "limits": {"ttft_ms": 1000, "tpot_ms": 30}, "by": "cost"}  # fmt: skip
    asked["prices"] = {"h100": 2.5, "b200": 4.5}
    burst = ranking.rank({**asked, "batch": "largest"})["rows"][0]
    best = all_of({**asked, "requests": 100, "prune": True})["rows"][0]
    assert burst["gpus"] == 4
    assert (best["gpu"], best["gpus"]) == ("b200", 1)
    assert best["cost_per_million_tokens"] < 0.5 * burst["cost_per_million_tokens"]


def test_what_is_served_for_a_rate_takes_whole_replicas():
    rows = all_of({**ASKED, "prices": PRICES, "by": "cost", "rate": 100.0})["rows"]
    for row in (r for r in rows if r.get("max_rate_per_s")):
        assert (row["replicas"] - 1) * row["max_rate_per_s"] < 100 <= row["replicas"] * row["max_rate_per_s"]
        assert row["fleet_gpus"] == row["replicas"] * row["tp"]
        assert row["cost_per_hour"] == pytest.approx(row["fleet_gpus"] * PRICES[row["gpu"]])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"limits": {}}, "limits: give ttft_ms, tpot_ms or e2e_ms"),
        ({"by": "luck"}, "by must be one of throughput, cost, energy"),
        ({"rate": 0}, "rate must be requests a second above 0, or null"),
        ({"requests": 10**6}, "requests must be a whole number from 1 to 5000"),
        ({"prompt": [256, 512]}, "prompt must be one value here"),
        ({"prompt": 0}, "prompt must be between 1"),
        ({"workload": "/etc/passwd"}, "no workload '/etc/passwd'"),
        ({"prices": {"h2000": 1}}, "no GPU 'h2000'; did you mean h200"),
        ({"batch": 8}, "unknown key 'batch'"),
    ],
)
def test_what_cannot_be_asked(wrong, why):
    with pytest.raises(ChipError) as told:
        api.ASKED[api.PLAN]({**ASKED, "gpu": ["l4"], **wrong})
    assert str(told.value).startswith(why)


def test_what_cannot_run_costs_its_own_row_only():
    found = all_of({**ASKED, "model": "llama-3.1-70b", "gpu": ["l4", "nosuch", "h200"], "tp": [1, 4], "dtype": "auto"})
    errors = {(r["gpu"], r["tp"]): r["error"] for r in found["rows"] if "error" in r}
    assert "no GPU 'nosuch'" in errors["nosuch", 4]
    assert "does not fit" in errors["l4", 1]
    assert found["rows"][0]["gpu"] == "h200"
    eager = all_of({**ASKED, "gpu": "h200", "engine": "hf-eager"})
    assert all("hf-eager" in r["error"] for r in eager["rows"])
