"""A server before the engine: what it adds to requests and tokens, and that it is the asker's own figure."""

import pytest
from test_simulate_engine import Times, poisson, traffic

from chip.cli import main
from chip.engines.vllm.options import VllmOptions
from chip.simulate.engine import SimulatedEngine
from chip.simulate.fleet import serve
from chip.simulate.server import Delivery
from chip.simulate.simulation import simulate
from chip.simulate.surface import Surface
from chip.types import ChipError

SMALL = {"workload": "poisson:prompt=200,output=40", "requests": 80, "rate": 8, "draws": 0}


def served(rows, token_s=0.0, request_s=0.0, merge=True):
    given, surface = VllmOptions(max_num_seqs=64, max_num_batched_tokens=512), Surface(Times())
    return serve(
        lambda _: SimulatedEngine(surface, given, 4000, None, merge, token_s),
        traffic(rows),
        1 << 20,
        request_s=request_s,
    )


def test_tokens_are_passed_on_one_after_another():
    server = Delivery(1e-3)
    assert server.pass_on(1, 2, 1.0) == pytest.approx(1.002)
    assert server.pass_on(1, 2, 1.001) == pytest.approx(1.004), "those of the step before are still on their way"
    assert server.pass_on(10, 2, 2.0) == pytest.approx(2.002), "steps further apart than their tokens take"
    assert server.pass_on(10, 2, 2.01) == pytest.approx(2.022)


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
    assert behind.ttft_ms.p50 - plain.ttft_ms.p50 == pytest.approx(20, abs=8)
    assert any("as given" in note for note in behind.notes)
    assert not any("as given" in note for note in plain.notes)


def test_bad_figures_are_one_line(capsys):
    with pytest.raises(ChipError, match="--server-token-us must be between 0 and 1e\\+06, got -1"):
        simulate("llama-3.1-8b", server_token_us=-1, **SMALL)
    with pytest.raises(ChipError, match="--server-request-ms must be between"):
        simulate("llama-3.1-8b", server_request_ms=float("nan"), **SMALL)
    assert main(["simulate", "llama-3.1-8b", "--workload", "batch:prompt=64,output=4", "--server"]) == 2
    err = capsys.readouterr().err
    assert "nobody measured what vLLM's HTTP server takes" in err
    assert err.count("\n") == 1
    asked = ["--workload", "batch:prompt=64,output=4", "--requests", "2", "--no-intervals", "--server"]
    assert main(["simulate", "llama-3.1-8b", *asked, "--server-token-us", "30"]) == 0
