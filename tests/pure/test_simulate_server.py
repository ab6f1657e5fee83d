"""A server before the engine: what it adds to requests and tokens, and that it is the asker's own figure."""

from dataclasses import replace
from pathlib import Path

import pytest
from test_simulate_engine import Times, poisson, traffic

from chip.engines.server import ServerCost
from chip.engines.timeline import LiveScheduler
from chip.show.cli import main
from chip.simulator import recorded
from chip.simulator.engine import SimulatedEngine
from chip.simulator.fleet import serve
from chip.simulator.server import EventLoop
from chip.simulator.simulation import simulate
from chip.simulator.surface import Surface
from chip.types import ChipError
from chip.validate.traffic import document, judge_runs

SMALL = {"workload": "poisson:prompt=200,output=40", "requests": 80, "rate": 8, "draws": 0}


def served(rows, token_s=0.0, request_s=0.0, merge=True, **more):
    given, surface = LiveScheduler(max_num_seqs=64, max_num_batched_tokens=512), Surface(Times())
    cost = ServerCost(request_s, token_s=token_s, **more)
    return serve(lambda _: SimulatedEngine(surface, given, 4000, None, merge, cost), traffic(rows), 1 << 20)


def test_tokens_are_passed_on_one_after_another():
    loop = EventLoop(ServerCost(token_s=1e-3))
    assert loop.pass_on(1, 2, 1.0) == pytest.approx(1.002)
    assert loop.pass_on(1, 2, 1.001) == pytest.approx(1.004), "those of the step before are still on their way"
    assert loop.pass_on(10, 2, 2.0) == pytest.approx(2.002), "steps further apart than their tokens take"
    assert loop.pass_on(10, 2, 2.01) == pytest.approx(2.022)


def test_a_request_waits_for_tokens_or_gets_its_turns_between_them_and_holds_them_up():
    for turns, waits_s in ((0, 0.3), (2, 0.02)):
        loop = EventLoop(ServerCost(0.005, 1e-5, token_s=1e-3, turns=turns))
        loop.pass_on(40, 10, 0.1)
        assert loop.take_in(0.1, 100) == pytest.approx(0.1 + waits_s + 0.006)
        assert loop.pass_on(1, 10, 0.11) == pytest.approx(0.4 + 0.006 + 0.01)
    assert loop.take_in(9.0, 0) == pytest.approx(9.005), "an idle loop takes it at once"


def test_steps_that_wait_for_the_loop_are_passed_on_in_one_chunk():
    loop = EventLoop(ServerCost(step_s=1e-3, token_s=1e-3, merges_up_to=10))
    assert loop.pass_on(1, 10, 1.0) == pytest.approx(1.011)
    assert loop.pass_on(1, 10, 1.005) == pytest.approx(1.022), "its turn comes when the loop is free, at 1.011"
    assert loop.pass_on(1, 10, 1.010) == pytest.approx(1.023), "there by then too: nothing but to take it in"
    assert loop.pass_on(1, 10, 1.012) == pytest.approx(1.034), "the next turn"
    assert loop.pass_on(1, 11, 1.013) == pytest.approx(1.046), "a step of more tokens than it takes at once"


def test_seconds_follow_the_host_and_latency_is_there_and_back():
    cost = ServerCost(1e-3, 1e-6, 2e-4, 5e-5, latency_s=2e-3, core_step=1.1, host_step_s=2e-3)
    slow = cost.on_host(3e-3)
    assert (slow.request_s, slow.token_s, slow.latency_s) == pytest.approx((1.5e-3, 7.5e-5, 3e-3))
    assert slow.core_step == 1.1
    assert cost.on_host(0.0) == cost, "of a host whose terms nobody knows"
    loop = EventLoop(cost)
    assert loop.take_in(1.0, 0) == pytest.approx(1.002)
    assert loop.pass_on(1, 0, 2.0) == pytest.approx(2.0012)


def test_a_request_comes_so_much_later_and_a_light_batch_is_only_shifted():
    rows = [(i * 2.0, 100, 30) for i in range(5)]
    plain, behind = served(rows), served(rows, token_s=50e-6, request_s=5e-3)
    for i in range(5):
        assert behind.first_s[i] - plain.first_s[i] == pytest.approx(5e-3 + 50e-6)
        assert behind.last_s[i] - behind.first_s[i] == pytest.approx(plain.last_s[i] - plain.first_s[i])
        assert behind.arrival_s[i] == plain.arrival_s[i], "when it came to the server"


def test_a_batch_that_outruns_the_server_goes_at_its_rate():
    """64 decodes a step of some 6.5 ms, at 200 us a token: 12.8 ms a step."""
    done = served([(0.0, 8, 200)] * 64, token_s=200e-6)
    assert (done.last_s[0] - done.first_s[0]) / 199 == pytest.approx(64 * 200e-6, rel=0.01)


def test_the_server_of_vllm_as_measured():
    """Held out: another host and another script, Llama-3.1-8B at 4, 16 and 30 a second."""
    file = Path(__file__).parents[2] / "results" / "h200" / "traffic" / "server" / "reference-llama-3.1-8b.json"
    held = [run for run in recorded.read(file)[1].runs if not run.users]
    points, left_out = judge_runs(held, draws=0)
    assert not left_out
    medians = {m["metric"]: m["median_error"] for m in document(points, [])["metrics"]}
    assert medians["ttft_ms.mean"] < 0.10
    assert medians["ttft_ms.p99"] < 0.20
    assert medians["tpot_ms.mean"] < 0.04
    assert medians["tpot_ms.p99"] < 0.10
    assert medians["output_tokens_per_s"] < 0.03
    in_process = [replace(run, server=False) for run in held]
    before = {m["metric"]: m["median_error"] for m in document(judge_runs(in_process, draws=0)[0], [])["metrics"]}
    assert before["ttft_ms.mean"] > 2 * medians["ttft_ms.mean"], "what the server is for"


def test_the_server_has_its_own_defaults():
    plain, behind = simulate("llama-3.1-8b", **SMALL), simulate("llama-3.1-8b", server=True, **SMALL)
    assert (plain.settings["max_num_batched_tokens"], behind.settings["max_num_batched_tokens"]) == (16384, 8192)
    assert 0.001 < behind.ttft_s.p50 - plain.ttft_s.p50 < 0.02
    asked = simulate("llama-3.1-8b", server=True, engine_settings={"max_num_batched_tokens": 4096}, **SMALL)
    assert asked.settings["max_num_batched_tokens"] == 4096
    assert behind.json()["server"]["request_ms"] > 0.5
    assert [n for n in behind.notes if n not in plain.notes] == [
        "behind vllm's HTTP server, whose terms were fitted to one model on one host"
    ]


@pytest.mark.parametrize("token_s", [5e-6, 100e-6, 400e-6])
@pytest.mark.parametrize("rate", [3, 30])
def test_steps_taken_together_deliver_as_steps_one_by_one(token_s, rate):
    rows = poisson(rate, 120, seed=rate)
    together, alone = (served(rows, token_s, 2e-3, merge) for merge in (True, False))
    for field in ("first_s", "last_s", "queue_s"):
        assert list(getattr(together, field)) == pytest.approx(list(getattr(alone, field)), rel=2e-3, abs=1e-6)


def test_the_answer_has_the_figures_and_says_whose_they_are():
    plain, behind = simulate("llama-3.1-8b", **SMALL), simulate("llama-3.1-8b", server_request_ms=20, **SMALL)
    assert plain.json()["server"] is None
    assert behind.json()["server"] == {"request_ms": 20.0, "token_us": 0.0}
    assert behind.ttft_s.p50 - plain.ttft_s.p50 == pytest.approx(0.02, abs=0.008)
    assert any("as given" in note for note in behind.notes)
    assert not any("as given" in note for note in plain.notes)


def test_bad_figures_are_one_line():
    with pytest.raises(ChipError, match="--server-token-us must be between 0 and 1e\\+06, got -1"):
        simulate("llama-3.1-8b", server_token_us=-1, **SMALL)
    with pytest.raises(ChipError, match="--server-request-ms must be between"):
        simulate("llama-3.1-8b", server_request_ms=float("nan"), **SMALL)
    asked = ["--workload", "batch:prompt=64,output=4", "--requests", "2", "--no-intervals", "--server"]
    assert main(["simulate", "llama-3.1-8b", *asked, "--server-token-us", "30"]) == 0
