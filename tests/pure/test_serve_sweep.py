"""Many predictions in one request: grids, rankings and timelines of the API."""

import http.client
import json
import threading
from contextlib import closing

import pytest

from chip.decoders import library
from chip.show import cli
from chip.show.serve import names, ranking, server, traffic
from chip.simulator.plan import plan
from chip.simulator.simulation import simulate


@pytest.fixture(scope="module")
def address():
    with server.Server(("127.0.0.1", 0), 60.0) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[:2]
        made.shutdown()


@pytest.fixture
def ask(address):
    with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:

        def asked(path, body):
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, json.loads(response.read())

        yield asked


def test_a_sweep_is_the_predictions_it_stands_for(ask):
    status, found = ask("/api/sweep", {"model": "llama-3.1-8b", "gpu": ["h200", "nope"], "batch": [1, 8], "tp": [1, 3]})
    assert (status, found["schema"], found["points"], len(found["rows"])) == (200, "chip.sweep/1", 8, 8)
    row = next(r for r in found["rows"] if (r["gpu"], r["batch"], r["tp"]) == ("h200", 8, 1))
    _, one = ask("/api/predict", {"model": "llama-3.1-8b", "gpu": "h200", "batch": 8})
    for key in ("ttft_ms", "tpot_ms", "e2e_ms", "tokens_per_s", "energy_j_per_token", "bound", "dtype"):
        assert row[key] == one[key]
    assert row["interval"]["tpot_ms"] == one["interval"]["tpot_ms"]
    assert row["tokens_per_s_per_user"] == pytest.approx(one["tokens_per_s"] / 8, rel=1e-6)
    assert row["rests_on"] == "measured"
    errors = [r["error"] for r in found["rows"] if "error" in r]
    assert len(errors) == 6, "an unknown GPU and a split that does not divide cost their own rows only"
    assert any("no GPU 'nope'" in e for e in errors)
    assert any("3" in e and "nope" not in e for e in errors)


def test_a_sweep_is_bounded(ask):
    status, found = ask("/api/sweep", {"model": "gpt2", "batch": list(range(1, 2002))})
    assert (status, found) == (422, {"error": "the grid has 2001 points; at most 2000 are answered at once"})
    status, found = ask("/api/sweep", {"model": "gpt2", "colour": 1})
    assert status == 422
    assert "unknown key 'colour'" in found["error"]


def test_a_ranking_is_ordered_and_keeps_the_limits(ask):
    asked = {
        "model": "llama-3.1-8b",
        "gpu": ["l4", "h200", "h100"],
        "tp": [1, 2],
        "dtype": ["bf16"],
        "batch": "largest",
    }
    limits = {"tpot_ms": 12, "ttft_ms": 3000}
    status, found = ask("/api/rank", {**asked, "limits": limits, "prices": {"h200": 3.6}})
    rows = found["rows"]
    assert status == 200
    assert len(rows) == 6
    good = [r for r in rows if "error" not in r and r["memory"]["fits"] and not r["missed"]]
    assert good
    assert rows[: len(good)] == good
    lows = [r["interval"]["tokens_per_s_per_gpu"][0] for r in good]
    assert lows == sorted(lows, reverse=True), "by the end of the interval that one can count on"
    assert all(r["tpot_ms"] <= 12 and r["ttft_ms"] <= 3000 for r in good)
    assert [r["place"] for r in good] == sorted(r["place"] for r in good)
    assert (found["good"], found["not_good"], found["refused"]) == (len(good), len(rows) - len(good), 0)
    assert found["ties"] == sum(r["place"] == 1 for r in good) - 1
    assert all(r["memory"]["fits"] == (r["memory"]["share"] <= 1) for r in rows if "error" not in r)
    best = next(r for r in good if r["gpu"] == "h200")
    _, more = ask("/api/predict", {**{k: best[k] for k in ("gpu", "tp", "dtype")}, "model": "llama-3.1-8b",
                                   "batch": 2 * best["batch"]})  # fmt: skip
    assert more["tpot_ms"] > 12 or more["ttft_ms"] > 3000 or not more["memory"]["fits"], "a larger batch would not do"
    dollars = 3.6 * best["tp"] / 3600 / best["tokens_per_s"] * 1e6
    assert best["cost_per_million_tokens"] == pytest.approx(dollars, rel=1e-6)
    assert any(r["gpu"] == "l4" and r["missed"] for r in rows), "an L4 cannot decode in 12 ms, and says so"


@pytest.mark.parametrize(
    ("model", "prompt", "limits"),
    [
        ("llama-3.1-8b", 1024, {"ttft_ms": 2000, "tpot_ms": 50}),
        ("qwen3-8b", 128, {"ttft_ms": 30}),  # set by the host on some GPUs
        ("tinyllama-1.1b", 64, {"ttft_ms": 15, "tpot_ms": 8}),
        ("mixtral-8x7b", 2048, {"tpot_ms": 40}),
        ("gpt2", 512, {}),
    ],
)
def test_the_largest_batch_is_what_trying_every_one_finds(model, prompt, limits):
    asked = {"model": model, "gpu": ["a10", "b200", "h200", "l4", "rtx-4060", "v100"], "prompt": prompt, "tp": [1, 4]}
    tried = ranking.rank({**asked, "batch": list(ranking.BATCHES), "limits": limits})["rows"]
    for row in ranking.rank({**asked, "batch": ranking.LARGEST, "limits": limits})["rows"]:
        same = [t for t in tried if (t["gpu"], t["tp"]) == (row["gpu"], row["tp"]) and "error" not in t]
        good = [t["batch"] for t in same if t["memory"]["fits"] and not t["missed"]]
        assert row["batch"] == max([1, *[b for b in good if b <= row["memory"]["max_batch"]]]) if same else row["error"]


def test_a_gpu_without_an_answer_is_a_row_of_its_own():
    asked = {"model": "llama-3.1-8b", "gpu": ["h200", "nosuch", "h100"], "batch": ranking.LARGEST}
    rows = ranking.rank({**asked, "limits": {"ttft_ms": 500}})["rows"]
    assert [row["gpu"] for row in rows if "error" in row] == ["nosuch"]
    assert len(rows) == 3


def test_a_gpu_that_nobody_measured_does_not_lead_by_its_estimate(ask):
    asked = {"model": "llama-3.1-8b", "gpu": ["mi355x", "b200", "h200", "gb200"], "dtype": ["fp8"], "batch": "largest"}
    _, found = ask("/api/rank", {**asked, "limits": {"ttft_ms": 2000}})
    by_gpu = {r["gpu"]: r for r in found["rows"]}
    rate, span = "tokens_per_s_per_gpu", lambda gpu: by_gpu[gpu]["interval"]["tokens_per_s_per_gpu"]
    assert by_gpu["mi355x"][rate] > by_gpu["b200"][rate], "else this shows nothing"
    assert found["rows"][-1]["gpu"] == "mi355x", "its low end is the least"
    assert by_gpu["mi355x"]["may_lead"]
    assert not by_gpu["mi355x"]["tie"], "a wide interval is no tie with all"
    first, second = found["rows"][:2]
    assert {first["gpu"], second["gpu"]} == {"b200", "gb200"}
    assert (first["place"], second["place"], found["ties"], found["unsure"]) == (1, 1, 1, 1)
    assert span("b200")[0] <= by_gpu["gb200"][rate] <= span("b200")[1]


def test_a_ranking_by_cost_puts_what_has_no_price_last(ask):
    asked = {"model": "llama-3.2-1b", "gpu": ["h200", "h100", "l40s"], "batch": 8, "by": "cost"}
    _, found = ask("/api/rank", {**asked, "prices": {"l40s": 0.5, "h200": 50}})
    assert [r["gpu"] for r in found["rows"]] == ["l40s", "h200", "h100"]
    status, found = ask("/api/rank", {**asked, "limits": {"tpot_ms": -1}})
    assert status == 422
    assert found["error"].startswith("limits: tpot_ms must be a time in milliseconds above 0")


def test_every_gpu_of_a_split_is_paid_for():
    """Four GPUs cost four times one, whether layers, stages or experts are split over them."""
    asked = {"model": "mixtral-8x7b", "gpu": "h200", "batch": [1, 64], "tp": [1, 2, 4], "pp": [1, 2], "ep": [1, 2, 4]}
    rows = [r for r in ranking.rank({**asked, "prices": {"h200": 3.0}})["rows"] if "error" not in r]
    gpus = {(1, 1, 1): 1, (4, 1, 1): 4, (2, 2, 1): 4, (1, 1, 4): 4, (2, 1, 4): 4, (4, 1, 4): 4, (2, 2, 2): 4}
    held = [(r, gpus[split]) for r in rows if (split := (r["tp"], r["pp"], r["ep"])) in gpus]
    assert len(held) == 2 * len(gpus)
    for r, count in held:
        assert r["tokens_per_s_per_gpu"] == pytest.approx(r["tokens_per_s"] / count, rel=1e-6)
        hourly = 3.0 * count
        assert r["cost_per_million_tokens"] == pytest.approx(hourly / (3600 * r["tokens_per_s"]) * 1e6, rel=1e-6)
        low, high = r["interval"]["tokens_per_s"]
        cost = [hourly / (3600 * rate) * 1e6 for rate in (high, low)]
        assert r["interval"]["cost_per_million_tokens"] == pytest.approx(cost, rel=1e-6)


@pytest.mark.parametrize("engine", ["vllm", "hf-eager", "hf-graph"])
def test_the_timeline_of_a_step_is_the_step(ask, engine):
    asked = {"model": "llama-3.2-1b", "gpu": "h200", "engine": engine, "batch": 4}
    status, found = ask("/api/timeline", {**asked, "phase": "decode"})
    assert status == 200
    last = {}
    for queue, _, start, us in found["events"]:
        assert start >= last.get(queue, 0.0) - 0.01, "one queue runs one thing at a time"
        last[queue] = start + us
    assert found["us"] == pytest.approx(max(last.values()), abs=0.01)
    _, one = ask("/api/predict", asked)
    assert found["device_us"] <= 1.15e3 * one["tpot_ms"], "the device is not busy for longer than the step takes"
    traced = [e for e in found["chrome"]["traceEvents"] if e["ph"] == "X"]
    assert len(traced) == len(found["events"])
    status, found = ask("/api/timeline", {**asked, "phase": "decode", "output": 1})
    assert (status, found["error"]) == (422, "one token is asked for: there is no decode step")


def test_traffic_is_what_chip_simulate_answers(ask, capsys):
    asked = {"model": "llama-3.2-1b", "gpu": "h200", "prompt": 256, "output": 32, "requests": 60}
    status, found = ask("/api/traffic", {**asked, "limits": {"ttft_ms": 300, "tpot_ms": 20}})
    assert status == 200, found
    rates = [s["rate_per_s"] for s in found["simulations"]]
    assert 8 <= len(rates) <= 16
    assert rates == sorted(rates)
    assert rates[-1] > found["saturated_requests_per_s"], "the curve reaches past what can be served"
    one = found["simulations"][0]
    words = f"simulate llama-3.2-1b --gpu h200 --workload poisson:prompt=256,output=32 --requests {one['requests']}"
    words += f" --no-intervals --json --rate {one['rate_per_s']:g} --slo ttft=300ms,tpot=20ms"
    assert cli.main(words.split()) == 0
    assert json.loads(capsys.readouterr().out) == one
    kept = [s["rate_per_s"] for s in found["simulations"]
            if s["ttft_ms"]["p99"] <= 300 and s["tpot_ms"]["p99"] <= 20 and not s["queue_grows"]]  # fmt: skip
    assert found["highest_rate_within_limits"] == found["timeline_rate"] == max(kept)
    (held,) = found["timeline"]["replicas"]
    assert max(held["running"]) > 0
    status, one = ask("/api/traffic", {**asked, "rates": [rates[1]]})
    assert (one["timeline_rate"], one["highest_rate_within_limits"]) == (rates[1], None)


def test_the_highest_rate_is_one_that_is_kept_up():
    """Of few requests a rate beyond what is served keeps its limits, as the queue has had no time to grow."""
    limits, load = {"ttft_ms": 2000, "tpot_ms": 50}, "poisson:prompt=1024,output=128"
    found = traffic.traffic({"model": "llama-3.1-8b", "limits": limits})
    best = found["highest_rate_within_limits"]
    (at_best,) = [s for s in found["simulations"] if s["rate_per_s"] == pytest.approx(best)]
    assert all(s["requests"] >= 0.99 * s["rate_per_s"] * at_best["requests"] / best for s in found["simulations"])
    planned = plan("llama-3.1-8b", workload=load, goals="ttft=2s,tpot=50ms", intervals=False)
    assert planned.choices[0].max_rate_per_s == best, "one search, one answer"
    long = simulate("llama-3.1-8b", workload=load, rate=best, requests=4000, draws=0)
    assert not long.queue_grows
    assert long.ttft_s.p99 < 2
    assert long.tpot_s.p99 < 0.055
    over = simulate("llama-3.1-8b", workload=load, rate=3 * best, requests=4000, draws=0)
    assert over.queue_grows
    assert any("the queue still grew when the last of 4000 requests came" in note for note in over.notes)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"workload": "/etc/passwd"}, "no workload '/etc/passwd'"),
        ({"workload": "closed:users=4"}, "no request rate"),
        ({"model": "../config.json"}, "no model"),
        ({"config": {}}, "architectures"),
        ({"rates": [-1]}, "requests a second above 0"),
        ({"rates": [1.0] * 17}, "at most 16"),
        ({"requests": 10**6}, "from 1 to 5000"),
        ({"engine": "hf-eager"}, "hf-eager"),
        ({"speed": 1}, "unknown key 'speed'"),
    ],
)
def test_traffic_that_cannot_be_simulated(ask, wrong, why):
    status, found = ask("/api/traffic", {"model": "llama-3.2-1b", **wrong})
    assert status == 422
    assert why in found["error"]


def test_a_sweep_brings_the_runs_measured_in_its_settings(ask):
    asked = {"model": "llama-3.1-8b", "gpu": ["h200", "h100"], "dtype": ["auto", "fp8"], "prompt": 512, "batch": [8]}
    _, found = ask("/api/sweep", asked)
    assert {(r["gpu"], r["dtype"], r["prompt"]) for r in found["measured"]} == {("h200", "bf16", 512)}
    run = next(r for r in found["measured"] if r["batch"] == 8)
    row = next(r for r in found["rows"] if (r["gpu"], r["dtype"]) == ("h200", "bf16"))
    assert row["tpot_ms"] / run["tpot_ms"] - 1 == pytest.approx(run["tpot_error"], abs=0.05), "outputs differ"
    whole_ms = run["ttft_ms"] + 127 * run["tpot_ms"]
    assert (run["output"], run["rates_at_output"]) == (17, 128)
    assert run["tokens_per_s_per_user"] == pytest.approx(128e3 / whole_ms, rel=1e-6)
    assert run["tokens_per_s_per_gpu"] == pytest.approx(8 * 128e3 / whole_ms, rel=1e-6)
    assert row["tokens_per_s_per_gpu"] == pytest.approx(run["tokens_per_s_per_gpu"], rel=0.1)
    _, several = ask("/api/sweep", {**asked, "output": [1, 128]})
    assert several["measured"]
    assert not any("rates_at_output" in r for r in several["measured"]), "of which output would they be?"
    _, cached = ask("/api/sweep", {**asked, "kv_dtype": "fp8"})
    assert cached["measured"] == []
    config = json.loads((library.CONFIGS / "llama-3.1-8b.json").read_text())
    _, pasted = ask("/api/sweep", {**asked, "config": config})
    assert pasted["measured"] == [], "a pasted config may have any name"


def test_a_badge_is_of_the_answer_wherever_it_is_asked_for(ask):
    """NVIDIA's table of a B200 has bf16; its fp8 products are the datasheet's, and so is the answer."""
    asked = {"model": "llama-3.1-8b", "batch": 8, "prompt": 512, "output": 64}
    gpus, dtypes = ["h200", "h100", "b200", "rtx-4090"], ["bf16", "fp8"]
    _, found = ask("/api/rank", {**asked, "gpu": gpus, "dtype": dtypes})
    badges = {(r["gpu"], r["dtype"]): r["rests_on"] for r in found["rows"]}
    assert [badges[gpu, "bf16"] for gpu in gpus] == ["measured", "imported", "imported", "datasheet"]
    assert badges["b200", "fp8"] == "datasheet"
    for dtype in dtypes:
        one = {**asked, "configurations": [{"gpu": gpu, "dtype": dtype} for gpu in gpus]}
        _, beside = ask("/api/compare", one)
        for row in beside["predictions"]:
            assert row["rests_on"] == badges[row["gpu"], dtype]


def test_times_of_links_that_others_measured_are_not_ours(ask):
    _, one = ask("/api/predict", {"model": "llama-3.1-8b", "gpu": "h200", "tp": 4, "batch": 8})
    assert {r["source"] for r in one["breakdown"]["tpot"] if r["op"] == "all_reduce"} == {"imported"}
    assert {r["source"] for r in one["breakdown"]["tpot"] if r["op"] == "linear"} == {"interpolated"}
    assert one["sources"]["imported"] > 0.05


def test_a_pasted_config_that_comes_again_is_known():
    config = json.loads((library.CONFIGS / "gpt2.json").read_text())
    first, again = (names.decoder_of("mine", dict(config)) for _ in range(2))
    assert first is again, "what was predicted of it is found again"
    assert names.decoder_of("mine", {**config, "n_layer": 3}) is not first
