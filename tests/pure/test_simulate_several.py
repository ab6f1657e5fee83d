"""Traffic over several GPUs and on a given host: the static answer for a batch, nothing lost, errors in one line."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_simulate_engine import Times, poisson, traffic

import chip
from chip.engines.timeline import LiveScheduler
from chip.hardware import hosts
from chip.predictor.request import answer
from chip.show.cli import main
from chip.simulator.engine import SimulatedEngine
from chip.simulator.fleet import serve
from chip.simulator.lockstep import Lockstep
from chip.simulator.pipelined import PipelinedEngine
from chip.simulator.simulation import simulate
from chip.simulator.step_time import Stages
from chip.simulator.surface import Surface
from chip.simulator.workload import Workload
from chip.types import ChipError

CASES = [
    ("llama-3.1-70b", 4, 512, {"tp": 4, "pp": 2}),
    ("llama-3.1-70b", 64, 4096, {"tp": 2, "pp": 4}),
    ("llama-3.1-8b", 16, 128, {"pp": 3}),
    ("mixtral-8x7b", 16, 512, {"tp": 2, "ep": 2}),
    ("mixtral-8x7b", 16, 512, {"ep": 4}),
    ("qwen3-235b-a22b", 64, 1024, {"tp": 2, "ep": 8}),
]


@pytest.mark.parametrize(("model", "batch", "prompt", "split"), CASES)
def test_a_batch_that_comes_at_once_gives_the_static_answer(model, batch, prompt, split):
    static = answer({"model": model, "gpu": "h200", "batch": batch, "prompt": prompt, "output": 64, **split})
    found = simulate(model, workload=f"batch:prompt={prompt},output=64", requests=batch, draws=0, **split)
    first, last = max(found.served.first_s) * 1e3, max(found.served.last_s) * 1e3
    assert first == pytest.approx(static["ttft_ms"], rel=0.05)
    assert (last - first) / 63 == pytest.approx(static["tpot_ms"], rel=0.01)
    assert last == pytest.approx(static["e2e_ms"], rel=0.02)
    said = found.json()
    assert {k: said[k] for k in ("gpus", "tp", "pp", "ep")} == {k: static[k] for k in ("gpus", "tp", "pp", "ep")}
    # the static answer takes every stage for as busy as the slowest
    assert said["energy"]["joules_per_output_token"] == pytest.approx(static["energy_j_per_token"], rel=0.04)
    assert any(f"{static['gpus']} GPUs: terms of engine and host" in note for note in found.notes)


def test_a_host_changes_the_answer_as_it_changes_the_static_one():
    asked = {"model": "qwen2.5-0.5b", "gpu": "h200", "batch": 1, "prompt": 64, "output": 64}
    tpots = []
    for host in ("", hosts.names()[-1]):
        static = answer({**asked, "host": host})
        found = simulate("qwen2.5-0.5b", workload="batch:prompt=64,output=64", requests=1, draws=0, host=host)
        first, last = found.served.first_s[0] * 1e3, found.served.last_s[0] * 1e3
        assert (last - first) / 63 == pytest.approx(static["tpot_ms"], rel=0.01)
        assert found.json()["host"] == static["host"] != ""
        tpots.append(static["tpot_ms"])
    assert tpots[0] != tpots[1]


def test_more_stages_serve_more_traffic_and_wait_longer_for_a_token():
    asked = {"workload": "poisson:prompt=2000,output=100", "requests": 150, "rate": 0, "draws": 0, "tp": 4}
    one, two = (simulate("llama-3.1-70b", pp=pp, **asked) for pp in (1, 2))
    assert two.output_tokens_per_s > 1.3 * one.output_tokens_per_s
    assert two.kv["blocks"] > 1.8 * one.kv["blocks"], "each stage holds half of the layers"
    light = {**asked, "rate": 0.2, "requests": 20}
    alone, split = (simulate("llama-3.1-70b", pp=pp, **light) for pp in (1, 2))
    assert split.tpot_s.mean > alone.tpot_s.mean


class Staged(Times):
    """The made-up predictor over stages."""

    notes, host_name = (), "made-up"

    def __init__(self, shares=(0.25, 0.25, 0.3, 0.2), **more):
        super().__init__(**more)
        self.shares = shares

    def stages(self, step):
        return Stages(self.shares, 1e-5)


def piped(rows, blocks=4000, shares=(0.25, 0.25, 0.3, 0.2), **more):
    given_ = LiveScheduler(**{"max_num_seqs": 64, "max_num_batched_tokens": 512, **more})
    surface = Surface(Staged(shares))
    w = rows if isinstance(rows, Workload) else traffic(rows)
    return serve(lambda _: PipelinedEngine(surface, given_, blocks, len(shares)), w, 1 << 20)


requests = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 900), st.integers(1, 120)), min_size=1, max_size=40).map(
    sorted
)


@settings(max_examples=30, deadline=None)
@given(requests, st.integers(70, 400), st.sampled_from([1, 4, 64]), st.sampled_from([64, 512]), st.booleans())
def test_a_pipeline_loses_nothing(rows, blocks, seqs, tokens, caching):
    done = piped(rows, blocks, max_num_seqs=seqs, max_num_batched_tokens=tokens, enable_prefix_caching=caching)
    engine = done.engines[0]
    for i, (at, _, output) in enumerate(rows):
        assert at <= done.queue_s[i] < done.first_s[i] <= done.last_s[i]
        assert done.output[i] == output
    assert engine.load == engine.decodes.n == len(engine._flight) == len(engine._batches) == 0
    assert engine.pool.free == engine.pool.total >= engine.peak_blocks
    if not engine.preemptions:
        assert engine.prompt_tokens + engine.found_tokens == sum(prompt for _, prompt, _ in rows)


def test_batches_go_round_at_the_rate_of_the_slowest_stage():
    """Four prompts of one step each fill four stages; each token then takes a round of all four batches."""
    even = piped([(0.0, 512, 200)] * 4, shares=(0.25,) * 4)
    uneven = piped([(0.0, 512, 200)] * 4, shares=(0.2, 0.2, 0.4, 0.2))
    tpot = [(d.last_s[0] - d.first_s[0]) / 199 for d in (even, uneven)]
    step_s = 5e-3 + 20e-6 + 10e-9 * 612
    assert tpot[0] == pytest.approx(step_s, rel=0.02)
    assert tpot[1] == pytest.approx(4 * 0.4 * step_s, rel=0.02)


def test_replicas_over_one_set_of_experts_step_together():
    """A long prompt on one of them makes the decode of the other wait."""
    given_ = LiveScheduler(max_num_seqs=64, max_num_batched_tokens=8192)
    surface = Surface(Times())
    rows = [(0.0, 100, 100), (0.2, 8000, 2)]
    both = [
        serve(lambda _: SimulatedEngine(surface, given_, 4000, None, merge=False), traffic(rows), 1 << 20, *how)
        for how in ((2, "round-robin", None, 1), (1, "round-robin", None, 2))
    ]
    apart, together = (d.last_s[0] - d.first_s[0] for d in both)
    long_prompt_s = 5e-3 + 20e-6 * 8000 + 10e-9 * 8000 * 4000
    assert together - apart == pytest.approx(long_prompt_s - 5e-3, rel=0.05)
    assert list(both[0].replica) == [0, 1]
    assert list(both[1].replica) == [0, 0], "one replica of the whole model"


@pytest.mark.parametrize("lockstep", [2, 4])
def test_replicas_that_step_together_lose_nothing(lockstep):
    rows = poisson(20, 150, seed=lockstep)
    given_ = LiveScheduler(max_num_seqs=8, max_num_batched_tokens=512)
    surface = Surface(Times())
    done = serve(
        lambda _: SimulatedEngine(surface, given_, 200), traffic(rows), 1 << 20, 1, "least-loaded", None, lockstep
    )
    assert isinstance(done.drivers[0], Lockstep)
    assert all(done.last_s[i] >= done.first_s[i] > at for i, (at, _, _) in enumerate(rows))
    assert all(e.load == 0 and e.pool.free == e.pool.total for e in done.engines)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"pp": 0}, "pp must be between 1 and 256"),
        ({"pp": 99}, "must be from 1 to the model's 32 layers"),
        ({"ep": 2}, "has no experts"),
        ({"pp": 1.5}, "pp must be a whole number"),
        ({"host": "nowhere"}, "no host 'nowhere'"),
        ({"host": "reference", "launch_ns": 9e3}, "--host does not go with"),
    ],
)
def test_errors_are_one_line(more, says):
    with pytest.raises(ChipError, match=says) as e:
        simulate("llama-3.1-8b", workload="batch:prompt=64,output=4", requests=2, draws=0, **more)
    assert "\n" not in str(e.value)


def test_a_pipeline_of_shared_experts_is_refused():
    with pytest.raises(ChipError, match="--pp 2 with --ep 8 above --tp 1 is not simulated"):
        simulate("mixtral-8x7b", workload="batch:prompt=64,output=4", requests=2, draws=0, pp=2, ep=8)


def test_the_command_line_and_plans_have_them(capsys):
    small = ["--workload", "poisson:prompt=300,output=30", "--requests", "50"]
    assert main(["simulate", "llama-3.1-70b", "--tp", "2", "--pp", "2", "--rate", "2", "--draws", "0", *small]) == 0
    assert "llama-3.1-70b on 4 x h200 (tp 2, pp 2)" in capsys.readouterr().out
    asked = ["--rate", "20", "--slo", "tpot_p99=10ms", "--no-intervals", "--host", "reference", "--json", *small]
    assert main(["plan", "mixtral-8x7b", "--tp", "2", "--pp", "1,2", "--ep", "1,4", *asked]) == 0
    choices = json.loads(capsys.readouterr().out)["choices"]
    assert {(c["pp"], c["ep"], c["status"]) for c in choices} == {
        (1, 1, "ok"), (2, 1, "ok"), (1, 4, "ok"), (2, 4, "refused"),
    }  # fmt: skip
    assert all(c["gpus"] == c["replicas"] * 2 * max(c["pp"], c["ep"] // 2) for c in choices if c["status"] == "ok")


def test_python_has_them():
    found = chip.plan(
        "llama-3.1-70b", workload="poisson:prompt=300,output=30", rate=5, goals="tpot_p99=50ms", tps=[2], pps=[2],
        requests=50, intervals=False,
    )  # fmt: skip
    assert (found.choices[0].pp, found.choices[0].gpus_each) == (2, 4)
    assert found.choices[0].title == "4 x h200 (bf16, pp 2)"
