"""The simulated engine keeps vLLM's rules, loses nothing, and takes many steps together as it takes them one by one."""

import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chip import engines
from chip.engines.timeline import LiveScheduler
from chip.simulator.engine import SimulatedEngine
from chip.simulator.figures import latencies, percentile
from chip.simulator.fleet import serve
from chip.simulator.step_time import Host, Work
from chip.simulator.surface import Surface
from chip.simulator.workload import Workload


class Times:
    """A predictor that anyone can compute: 5 ms a step, 20 us a token, 10 ns a cached token, 2 ms of host."""

    settling, windows, graph_tokens = None, (), engines.get("vllm").GRAPH_TOKENS
    step = staticmethod(engines.get("vllm").step)

    def __init__(self, host_s=2e-3, launch_s=0.0):
        self.host_s, self.launch_s = host_s, launch_s

    def layers(self, tokens, routed, decode):
        return Work(5e-3 + 20e-6 * tokens, joules=tokens)

    def head(self, rows):
        return Work(0.0, joules=1.0)

    def attention(self, step):
        return Work(10e-9 * sum(s.count * s.new * (s.past + s.new / 2) for s in step.seqs))

    def host(self, rows, tokens, decode, graph):
        return Host(self.host_s + 1e-6 * rows, 0.0 if decode else self.launch_s)

    def request_s(self, prompt):
        return 1e-4

    def wake_s(self):
        return 1e-3

    def within_power(self, joules, seconds):
        return joules

    def idle_w(self):
        return 100.0


def traffic(rows, blocks=(), block_tokens=512):
    w = Workload("made-up", block_tokens=block_tokens)
    for i, (at, prompt, output) in enumerate(rows):
        w.add(at, prompt, output, blocks[i] if blocks else ())
    return w


def poisson(rate, count, seed=0, prompt=300, output=60):
    draw, at, rows = random.Random(seed), 0.0, []
    for _ in range(count):
        at += draw.expovariate(rate)
        rows.append((at, draw.randrange(1, 2 * prompt), draw.randrange(1, 2 * output)))
    return rows


def run(rows, times=None, blocks=4000, merge=True, **more):
    given = LiveScheduler(**{"max_num_seqs": 64, "max_num_batched_tokens": 512, **more})
    surface = Surface(times or Times())
    w = rows if isinstance(rows, Workload) else traffic(rows)
    return serve(lambda _: SimulatedEngine(surface, given, blocks, None, merge), w, 1 << 20)


def test_one_request_alone_takes_what_its_steps_take():
    done = run([(1.0, 100, 3)], Times(), async_scheduling=False)
    t = Times()
    first = 1.0 + 1e-4 + 1e-3 + (2e-3 + 1e-6) + 0.9 * (5e-3 + 20e-6 * 104 + 10e-9 * 100 * 50)
    assert done.first_s[0] == pytest.approx(first, rel=1e-3)
    decode = t.host_s + 1e-6 + 5e-3 + 20e-6 + 10e-9 * 100
    assert done.last_s[0] - done.first_s[0] == pytest.approx(2 * decode, rel=1e-3)


def test_a_request_that_comes_during_a_step_waits_for_that_one_and_the_next():
    """Asynchronous scheduling: the step after the running one is already launched."""
    rows = [(0.0, 64, 400), (1.0, 64, 2)]
    done = run(rows)
    decode_s = 5e-3 + 20e-6
    prefill_s = 5e-3 + 20e-6 * 72
    waited = done.first_s[1] - 1.0
    assert decode_s + prefill_s < waited < 2 * decode_s + prefill_s + 3e-3
    alone = run(rows, async_scheduling=False)
    assert alone.first_s[1] - 1.0 < waited + 2e-3  # it is in the next step, which the host prepares in the open


def test_the_host_sets_the_pace_where_it_takes_longer():
    done = run([(0.0, 16, 200)], Times(host_s=20e-3))
    assert (done.last_s[0] - done.first_s[0]) / 199 == pytest.approx(20e-3 + 1e-6, rel=2e-2)


def test_a_prompt_longer_than_the_budget_runs_in_chunks():
    done = run([(0.0, 1500, 2)], max_num_batched_tokens=512)
    engine = done.engines[0]
    assert engine.prompt_tokens == 1500
    assert engine.steps == 4  # 512 + 512 + 476, and one decode


MERGE_CASES = {
    "device-bound": {},
    "host-bound": {"times": Times(host_s=9e-3)},
    "host near the device": {"times": Times(host_s=5.1e-3)},
    "launched slowly": {"times": Times(launch_s=30e-3)},
    "one step at a time": {"async_scheduling": False},
    "without prefix caching": {"enable_prefix_caching": False},
    "few blocks": {"blocks": 150, "max_num_seqs": 256},
    "few places": {"max_num_seqs": 3},
}


@pytest.mark.parametrize("name", MERGE_CASES)
@pytest.mark.parametrize("rate", [1, 8, 30])
def test_steps_taken_together_equal_steps_one_by_one(name, rate):
    rows = poisson(rate, 120, seed=rate)
    together, alone = (run(rows, merge=merge, **MERGE_CASES[name]) for merge in (True, False))
    assert together.engines[0].steps == alone.engines[0].steps
    for field in ("first_s", "last_s", "queue_s"):
        assert list(getattr(together, field)) == pytest.approx(list(getattr(alone, field)), rel=1e-3, abs=1e-6)
    for metric, values in latencies(together).items():
        other = latencies(alone)[metric]
        assert sum(values) == pytest.approx(sum(other), rel=1e-3)
    for field in ("busy_s", "joules", "used_block_s", "peak_blocks"):
        near = 1e-2 if field == "used_block_s" else 1e-3  # blocks are averaged over the steps taken together
        assert getattr(together.engines[0], field) == pytest.approx(getattr(alone.engines[0], field), rel=near)


requests = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 900), st.integers(1, 120)), min_size=1, max_size=40).map(
    sorted
)


@settings(max_examples=60, deadline=None)
@given(
    requests,
    st.integers(70, 400),
    st.sampled_from([1, 4, 64]),
    st.sampled_from([64, 512, 4096]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_nothing_is_lost_and_memory_is_never_exceeded(rows, blocks, seqs, budget, caching, merge, asynchronous, mixes):
    given_ = LiveScheduler(
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        enable_prefix_caching=caching,
        async_scheduling=asynchronous,
        mixes_prompts=mixes,
    )
    surface = Surface(Times())
    engine = SimulatedEngine(surface, given_, blocks, watch, merge)
    done = serve(lambda _: engine, traffic(rows), blocks * 16)
    served = [i for i in range(len(rows)) if i not in done.rejected]
    for i in served:
        assert rows[i][0] <= done.queue_s[i] <= done.first_s[i] <= done.last_s[i]
    assert all(done.last_s[i] == -1 for i in done.rejected)
    engine.pool.check()
    assert engine.pool.free == blocks  # all of it came back
    assert engine.load == engine.decodes.n == len(engine._flight) == 0
    assert engine.decodes.offsets == 0
    assert not any(engine.decodes.residues)
    # every prompt token was computed or found, and more than once only after a preemption
    asked = sum(rows[i][1] for i in served)
    computed = engine.prompt_tokens + engine.found_tokens
    assert computed >= asked
    assert engine.preemptions or computed == asked
    if not engine.preemptions:  # first come, first served
        starts = [done.queue_s[i] for i in served]
        assert starts == sorted(starts)


def watch(engine, begin_s, end_s, steps, prompt_tokens):
    assert 0 <= engine.pool.free <= engine.pool.total
    assert len(engine.running) <= engine.settings.max_num_seqs
    assert prompt_tokens <= engine.settings.max_num_batched_tokens
    assert end_s >= begin_s


def test_prompts_that_do_not_mix_have_steps_of_their_own():
    """A request that decodes waits for the whole prompts of others, in as many steps as they are long."""
    rows = [(0.0, 16, 200), (0.1, 2048, 2), (0.1, 2048, 2)]
    mixed, apart = (run(rows, mixes_prompts=mixes) for mixes in (True, False))
    assert apart.engines[0].steps > mixed.engines[0].steps
    assert apart.first_s[2] < mixed.first_s[2], "the whole budget of a step is for prompts"
    assert apart.engines[0].prompt_tokens == mixed.engines[0].prompt_tokens == 4112


def test_a_full_cache_preempts_the_youngest_and_computes_it_again():
    rows = [(0.0, 160, 100), (0.001, 160, 100), (0.002, 160, 100)]
    free = run(rows, blocks=1000, enable_prefix_caching=False)
    tight = run(rows, blocks=36, enable_prefix_caching=False)
    assert free.engines[0].preemptions == 0
    assert tight.engines[0].preemptions > 0
    assert tight.preempted[0] == 0
    assert tight.preempted[2] > 0
    assert tight.engines[0].prompt_tokens > 480
    assert tight.first_s[2] == pytest.approx(free.first_s[2])  # its first token came before it was sent back
    assert tight.last_s[2] > free.last_s[2]


def test_what_a_preempted_request_had_computed_is_found_again():
    rows = [(0.0, 160, 100), (0.001, 160, 100), (0.002, 160, 100)]
    cached = run(rows, blocks=36, enable_prefix_caching=True)
    plain = run(rows, blocks=36, enable_prefix_caching=False)
    assert cached.engines[0].found_tokens > 0
    assert cached.engines[0].prompt_tokens < plain.engines[0].prompt_tokens


def test_a_shared_prefix_is_computed_once():
    rows = [(0.0, 1024 + 10, 5), (1.0, 1024 + 20, 5), (2.0, 512 + 40, 5), (3.0, 1024 + 30, 5)]
    w = traffic(rows, blocks=[(1, 2), (1, 2), (1,), (9, 2)])
    done = run(w, max_num_batched_tokens=4096)
    assert list(done.cached) == [0, 1024, 512, 0]  # the second piece of the last follows another first one
    off = run(w, max_num_batched_tokens=4096, enable_prefix_caching=False)
    assert list(off.cached) == [0, 0, 0, 0]
    assert done.first_s[1] < off.first_s[1]


def test_requests_of_one_step_share_what_the_first_of_them_computes():
    w = traffic([(0.0, 600, 3), (0.0, 600, 3)], blocks=[(5,), (5,)])
    assert list(run(w, max_num_batched_tokens=4096).cached) == [0, 512]


def test_a_whole_prompt_that_is_cached_still_computes_its_last_block():
    w = traffic([(0.0, 512, 3), (1.0, 512, 3)], blocks=[(5,), (5,)])
    assert list(run(w, max_num_batched_tokens=4096).cached) == [0, 496]


def test_blocks_nobody_uses_are_evicted_oldest_first():
    rows = [(float(i), 520, 2) for i in range(8)]
    w = traffic(rows, blocks=[(1,), (2,), (3,), (1,), (4,), (2,), (1,), (4,)])
    done = run(w, blocks=100, max_num_batched_tokens=4096)  # three of them fit
    assert list(done.cached) == [0, 0, 0, 512, 0, 48, 512, 512]  # ends go first: three blocks were left
    assert done.engines[0].pool.evicted == 58


def test_more_load_never_lowers_a_percentile_of_ttft():
    found = []
    for rate in (2, 6, 18, 54):
        rows = [(at * 2 / rate, p, o) for at, p, o in poisson(2, 400, seed=3)]
        values = sorted(latencies(run(rows))["ttft"])
        found.append([percentile(values, p) for p in (0.5, 0.9, 0.99)])
    for slower, faster in pairwise(found):
        assert all(b >= 0.98 * a for a, b in zip(slower, faster))


def test_replicas_share_the_load_and_lose_nothing():
    surface = Surface(Times())
    given_ = LiveScheduler(max_num_seqs=64, max_num_batched_tokens=512)
    rows = poisson(40, 300, seed=5)
    for router in ("round-robin", "least-loaded", "prefix"):
        done = serve(lambda _: SimulatedEngine(surface, given_, 4000), traffic(rows), 1 << 20, 3, router)
        assert all(last > 0 for last in done.last_s)
        assert set(done.replica) == {0, 1, 2}


def test_the_least_loaded_replica_is_chosen():
    surface = Surface(Times())
    given_ = LiveScheduler(max_num_seqs=64, max_num_batched_tokens=512)
    rows = [(0.0, 50, 400), (0.1, 50, 5), (0.5, 50, 5), (1.0, 50, 5)]
    where = {
        router: list(serve(lambda _: SimulatedEngine(surface, given_, 4000), traffic(rows), 1 << 20, 2, router).replica)
        for router in ("round-robin", "least-loaded")
    }
    assert where == {"round-robin": [0, 1, 0, 1], "least-loaded": [0, 1, 1, 1]}


def test_the_prefix_router_sends_equal_prefixes_to_one_replica():
    surface = Surface(Times())
    given_ = LiveScheduler(max_num_seqs=64, max_num_batched_tokens=4096)
    rows = [(0.3 * i, 600, 5) for i in range(20)]
    w = traffic(rows, blocks=[(i % 2,) for i in range(20)])
    found = {}
    for router in ("least-loaded", "prefix"):
        done = serve(lambda _: SimulatedEngine(surface, given_, 4000), w, 1 << 20, 2, router)
        found[router] = sum(e.found_tokens for e in done.engines)
    assert found["prefix"] == 18 * 512
    assert found["prefix"] >= found["least-loaded"]


def test_users_of_a_closed_loop_wait_for_their_answers():
    w = traffic([(0.0, 50, 20)] * 40)
    w.users = 4
    done = run(w)
    assert all(last > 0 for last in done.last_s)
    events = sorted([(t, 1) for t in done.arrival_s] + [(t, -1) for t in done.last_s])
    here = most = 0
    for _, change in sorted(events, key=lambda e: (e[0], e[1])):
        here += change
        most = max(most, here)
    assert most == 4


shared = st.lists(
    st.tuples(st.floats(0, 2), st.integers(1, 300), st.integers(1, 60), st.lists(st.integers(0, 3), max_size=8)),
    min_size=1,
    max_size=40,
).map(lambda rows: sorted(rows, key=lambda r: r[0]))


@settings(max_examples=80, deadline=None)
@given(shared, st.integers(24, 90), st.sampled_from([5, 16, 40]), st.sampled_from([64, 1024]), st.booleans())
def test_shared_prefixes_lose_no_blocks(rows, blocks, piece, budget, merge):
    """Whatever is shared, evicted, preempted and found again, all blocks come back and none is counted twice."""
    w = Workload("made-up", block_tokens=piece)
    for at, prompt, output, ids in rows:
        w.add(at, prompt, output, tuple(ids[: -(-prompt // piece)]))
    given_ = LiveScheduler(max_num_seqs=16, max_num_batched_tokens=budget)
    engine = SimulatedEngine(Surface(Times()), given_, blocks, checked, merge)
    done = serve(lambda _: engine, w, blocks * 16)
    for i in range(len(w)):
        assert i in done.rejected or rows[i][0] <= done.first_s[i] <= done.last_s[i]
        assert done.cached[i] <= max(0, w.prompt[i] - 1)
    assert engine.pool.free == blocks
    engine.pool.check()


def checked(engine, begin_s, end_s, steps, prompt_tokens):
    watch(engine, begin_s, end_s, steps, prompt_tokens)
    engine.pool.check()
