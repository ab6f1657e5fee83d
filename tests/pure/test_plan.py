"""Plans: the highest rate that keeps a promise, replicas, cost, ties, and what is said where nothing keeps it."""

import json

import price_cases
import pytest

from chip.show.cli import main
from chip.simulator import prices
from chip.simulator.plan import PlanChoice, plan, ranked
from chip.simulator.simulation import simulate
from chip.types import ChipError

LOAD = "poisson:prompt=300,output=60"
ASKED = {"workload": LOAD, "rate": 60.0, "goals": "ttft_p99=300ms,tpot_p99=30ms", "requests": 300}


@pytest.fixture(scope="module")
def found():
    return plan("llama-3.1-8b", gpus=["h200", "l40s"], tps=[1, 2], prices={"h200": 3.5, "l40s": 1.0}, **ASKED)


def test_the_rate_it_finds_keeps_the_promise_and_a_little_more_does_not(found):
    best = next(c for c in found.choices if (c.gpu, c.tp) == ("h200", 1))
    for factor, kept in ((1.0, True), (1.06, False)):
        got = simulate(
            "llama-3.1-8b",
            workload=ASKED["workload"],
            rate=best.max_rate_per_s * factor,
            requests=best.requests,
            draws=0,
        )
        assert (got.ttft_s.p99 <= 0.3 and got.tpot_s.p99 <= 0.03) is kept


def test_replicas_serve_the_rate_and_cost_follows(found):
    for c in found.choices:
        assert c.status == "ok"
        assert c.replicas * c.max_rate_per_s >= 60
        assert (c.replicas - 1) * c.max_rate_per_s < 60
        assert c.gpus == c.replicas * c.tp
        assert c.cost_per_hour == c.gpus * {"h200": 3.5, "l40s": 1.0}[c.gpu]
        assert c.cost_per_million_tokens == pytest.approx(c.cost_per_hour / (60 * 60 * 3600) * 1e6)
        low, high = c.interval
        assert low <= c.max_rate_per_s <= high
        assert c.limited_by
        assert c.sure_gpus * low >= 60 * c.tp > (c.sure_gpus - c.tp) * low, "the low end of the rate takes these"
    sure = [c.cost_per_hour / c.gpus * c.sure_gpus for c in found.choices]
    assert sure == sorted(sure)


def test_the_order_goes_by_the_low_end_and_ties_are_mutual():
    def choice(gpu, low, rate, high, sure=1):
        return PlanChoice(
            gpu, 1, "bf16", "ok", "", rate, (low, high), replicas=1, gpus=1, sure_gpus=sure, cost_per_hour=1.0
        )

    def order(*choices):
        return ranked(choices, rate=8.0)

    near = order(choice("a", 9, 10, 11), choice("b", 8, 9.5, 10.5))
    assert [(c.gpu, c.place, c.tied) for c in near] == [("a", 1, True), ("b", 1, True)]
    far = order(choice("a", 9, 10, 11), choice("b", 2, 3, 4))
    assert [(c.gpu, c.place, c.tied) for c in far] == [("a", 1, False), ("b", 2, False)]
    unknown = choice("wide", 0, 30, 900, sure=None)  # leads by its estimate, and may keep no promise at all
    wide = order(unknown, choice("a", 9, 10, 11), choice("b", 2, 3, 4))
    assert [(c.gpu, c.place, c.tied) for c in wide] == [("a", 1, False), ("b", 2, False), ("wide", 3, False)]


def test_a_choice_that_does_not_fit_is_kept_with_its_reason():
    got = plan(
        "llama-3.1-70b", gpus=["l40s", "h200"], tps=[1, 4], intervals=False, **{**ASKED, "goals": "tpot_p99=60ms"}
    )
    by = {(c.gpu, c.tp): c for c in got.choices}
    assert by["h200", 4].status == "ok"
    assert by["l40s", 1].status == "refused"
    assert "does not fit" in by["l40s", 1].reason
    assert got.choices[0].status == "ok"


def test_a_promise_that_nothing_keeps_names_the_nearest_miss():
    got = plan("llama-3.1-8b", gpus=["h200", "l40s"], intervals=False, **{**ASKED, "goals": "tpot_p99=1ms"})
    assert all(c.status == "missed" for c in got.choices)
    assert "nothing keeps the promise; the nearest is 1 x h200 (bf16) with tpot_p99 of" in got.notes[0]


def test_the_same_question_gives_the_same_bytes(found):
    again = plan("llama-3.1-8b", gpus=["h200", "l40s"], tps=[1, 2], prices={"h200": 3.5, "l40s": 1.0}, **ASKED)
    assert json.dumps(again.json()) == json.dumps(found.json())


def test_prices_are_the_askers(tmp_path):
    assert prices.parse("h100=2.5,h200=3") == {"h100": 2.5, "h200": 3.0}
    assert prices.parse("example")["h100"] > 0
    assert json.loads(prices.EXAMPLE.read_text())["dated"]
    with pytest.raises(ChipError, match="no such file"):
        prices.parse(str(tmp_path / "no.json"))
    bad = tmp_path / "p.json"
    for text, says in (
        ('{"h100": true}', "gpu_hour: h100 must be a price above 0"),
        ('{"h1000": 2}', "no GPU h1000; did"),
    ):
        bad.write_text(f'{{"gpu_hour": {text}}}')
        with pytest.raises(ChipError, match=says):
            prices.parse(str(bad))


def test_prices_as_people_type_them(tmp_path):
    """The page is held to the same cases (tests/browser/test_explorer_page.py)."""
    for text, found in price_cases.RIGHT.items():
        assert prices.parse(text) == found
    for text, says in price_cases.WRONG.items():
        with pytest.raises(ChipError) as told:
            prices.of_text(text)
        assert str(told.value) == says
    with pytest.raises(ChipError, match=r"^--price no GPU h2000; did you mean h200"):
        prices.parse("h2000=3")
    own = tmp_path / "mine.json"
    own.write_text("{}")
    assert prices.parse(f"{own}=2,h200=3") == {str(own): 2.0, "h200": 3.0}


def test_a_gpu_is_priced_by_whatever_name_it_is_asked_for(capsys):
    words = ["plan", "tinyllama-1.1b", "--workload", "poisson:prompt=64,output=16", "--requests", "50", "--rate", "5"]
    words += ["--slo", "tpot_p95=10ms", "--gpu", "h200-sxm", "--price", "H200:3.5", "--no-intervals", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["choices"][0]["cost_per_hour"] == 3.5


def test_the_command_prints_ranks_and_draws(tmp_path, capsys):
    picture = tmp_path / "p.svg"
    words = ["plan", "llama-3.1-8b", "--workload", "poisson:prompt=300,output=60", "--requests", "50", "--rate", "40"]
    words += ["--slo", "tpot_p95=8ms", "--gpu", "h200", "--tp", "1,2", "--no-intervals", "--plot", str(picture)]
    assert main([*words, "--price", "h200=3.5"]) == 0
    out = capsys.readouterr().out
    assert "cost/M tokens" in out
    assert "1 x h200" in out
    assert picture.read_text().count("<circle") == 2
    assert main([*words, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "chip.plan/1"
    assert made["choices"][0]["gpus"] <= made["choices"][1]["gpus"]
    assert main([w if w != "tpot_p95=8ms" else "tpot_p99=0.1ms" for w in words[:-2]]) == 1
    assert "nothing keeps the promise" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--rate", "0"], "--rate must be requests a second above 0"),
        (["--slo", "fast"], "must be like ttft_p99=500ms,tpot_p99=40ms"),
        (["--workload", "closed:users=3"], "a plan needs a rate"),
    ],
)
def test_bad_input_is_one_line(more, says, capsys):
    usual = {"--workload": "poisson", "--rate": "5", "--slo": "ttft_p99=1s"}
    kept = [word for option, value in usual.items() if option not in more for word in (option, value)]
    words = ["plan", "llama-3.1-8b", *kept]
    assert main([*words, *more]) == 2
    assert says in capsys.readouterr().err


def test_counts_that_are_no_numbers_are_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["plan", "llama-3.1-8b", "--workload", "poisson", "--rate", "5", "--slo", "ttft_p99=1s", "--tp", "1,x"])
    assert "--tp: invalid int value: 'x'" in capsys.readouterr().err


def test_prompts_that_no_choice_can_take_are_said(tmp_path):
    file = tmp_path / "w.jsonl"
    row = '{"arrival_s": %d, "prompt": %d, "output": 5}\n'
    file.write_text("".join(row % (i, 5000) for i in range(3)))
    asked = {"rate": 1.0, "goals": "ttft_p99=1s", "engine_settings": {"max_model_len": 1000}, "intervals": False}
    got = plan("llama-3.1-8b", workload=file, requests=3, **asked)
    assert got.choices[0].status == "refused"
    assert "every prompt leaves no room in 1000 tokens" in got.choices[0].reason
    file.write_text(row % (0, 5000) + "".join(row % (i, 100) for i in range(1, 20)))
    got = plan("llama-3.1-8b", workload=file, requests=20, **asked)
    assert got.choices[0].status == "ok"
    assert "5 % of requests are rejected" in got.choices[0].reason
