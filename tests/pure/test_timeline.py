"""Two queues: the closed form of many layers is the walk through them, kernels never start early, and a trace opens."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chip.engines.recorded import Event, Recorded, chrome
from chip.engines.timeline import HostCost, LaunchBlock, RoleLaunches, Timeline

SECONDS = st.floats(0, 1e-3, allow_subnormal=False)
LAUNCHES = st.lists(
    st.tuples(st.sampled_from(["norm", "product", "experts"]), st.integers(1, 12), SECONDS),
    min_size=1,
    max_size=8,
)
PREPARED = st.tuples(SECONDS, SECONDS)  # of the host before, and a graph that still runs
COSTS = st.builds(HostCost, SECONDS, SECONDS, SECONDS)
LAYERS = st.lists(st.tuples(st.integers(1, 40), LAUNCHES, COSTS), min_size=1, max_size=4)


def block(repeat, launches):
    names, kernels, seconds = zip(*launches)
    return LaunchBlock(repeat, RoleLaunches(names, kernels), seconds)


def both(prepared, layers, ahead=True):
    made = Timeline(ahead=ahead), Recorded(ahead=ahead)
    for t in made:
        t.prepare("schedule", prepared[0])
        t.graph("before", 0.0, prepared[1])
        for repeat, launches, cost in layers:
            t.layers([block(repeat, launches)], cost)
    return made


@settings(deadline=None)
@given(PREPARED, LAYERS)
def test_a_cpu_computes_what_it_launches(prepared, layers):
    """Nothing is launched ahead: the seconds of host and device add, kernel by kernel as in the closed form."""
    short, walked = both(prepared, layers, ahead=False)
    launched = sum(n * cost.of_all(block(n, launches).launches) for n, launches, cost in layers)
    worked = sum(n * block(n, launches).seconds for n, launches, _ in layers)
    assert short.device_s == short.host_s == pytest.approx(sum(prepared) + launched + worked)
    assert short.device_s == pytest.approx(walked.device_s)
    assert short.worked_s == pytest.approx(prepared[1] + worked)


@settings(deadline=None)
@given(PREPARED, LAYERS)
def test_the_closed_form_is_the_walk(prepared, layers):
    short, walked = both(prepared, layers)
    for name in ("host_s", "device_s", "worked_s"):
        assert getattr(short, name) == pytest.approx(getattr(walked, name), rel=1e-9, abs=1e-15), name


@settings(deadline=None)
@given(PREPARED, LAYERS)
def test_no_kernel_starts_before_its_launch_or_the_one_before_it(prepared, layers):
    _, walked = both(prepared, layers)
    host = [e for e in walked.events if e.queue == "host" and e.name.startswith("launch")]
    device = [e for e in walked.events if e.queue == "device"]
    assert len(host) == len(device) == 1 + sum(n * kernels for n, launches, _ in layers for _, kernels, _ in launches)
    free_s = 0.0
    for launch, ran in zip(host, device):
        assert ran.start_s >= launch.start_s + launch.seconds - 1e-12
        assert ran.start_s >= free_s - 1e-12
        free_s = ran.start_s + ran.seconds
    assert walked.device_s == pytest.approx(free_s)
    assert walked.worked_s == pytest.approx(sum(e.seconds for e in device), abs=1e-15)


@settings(deadline=None)
@given(LAYERS)
def test_the_slower_queue_sets_the_time(layers):
    """No sooner than either queue alone, no later than both one after the other."""
    t, _ = both((0.0, 0.0), layers)
    assert max(t.host_s, t.worked_s) <= t.device_s * (1 + 1e-12)
    assert t.device_s <= (t.host_s + t.worked_s) * (1 + 1e-12)


def test_by_hand():
    t = Timeline()
    t.prepare("schedule", 5.0)
    t.layers([block(3, [("a", 1, 1.0)])], HostCost(0.0, 2.0))  # the host is slower: launched at 7, 9, 11
    assert (t.host_s, t.device_s, t.worked_s) == (11.0, 12.0, 3.0)
    t = Timeline()
    t.layers(
        [block(3, [("a", 2, 8.0)])], HostCost(0.0, 1.0)
    )  # two kernels of 4 a layer, the device never waits but once
    assert (t.host_s, t.device_s) == (6.0, 1.0 + 24.0)


def test_experts_cost_the_host_more():
    t = Timeline()
    t.layers([block(2, [("experts", 2, 1.0), ("a", 1, 1.0)])], HostCost(0.0, 1.0, 4.0))  # 4 + 2 and 1, twice
    assert t.host_s == 14.0


def test_a_graph_is_one_launch():
    t = Recorded()
    t.prepare("schedule", 3.0)
    t.graph("step", 1.0, 10.0)
    assert (t.host_s, t.device_s, t.worked_s) == (4.0, 14.0, 10.0)
    t.graph("step", 1.0, 10.0)  # launched while the first runs
    assert (t.host_s, t.device_s, t.worked_s) == (5.0, 24.0, 20.0)
    assert [e for e in t.events if e.queue == "device"] == [Event("device", "step", 4.0, 10.0),
                                                           Event("device", "step", 14.0, 10.0)]  # fmt: skip


@pytest.mark.parametrize(("host_s", "device_s"), [(1.0, 3.0), (3.0, 1.0)])
def test_steps_that_are_skipped_are_as_those_walked(host_s, device_s):
    walked, skipped = Timeline(), Timeline()
    for _ in range(10):
        walked.graph("step", host_s, device_s)
    skipped.graph("step", host_s, device_s)
    skipped.skip(9, host_s, device_s)
    for name in ("host_s", "device_s", "worked_s"):
        assert getattr(skipped, name) == getattr(walked, name)


def test_a_trace_that_perfetto_opens():
    t = Recorded()
    t.prepare("schedule", 2e-6)
    t.layers([block(2, [("norm", 1, 3e-6)])], HostCost(1e-6, 0.0))
    found = json.loads(json.dumps(chrome(t.events, "a model")))
    told = [e for e in found["traceEvents"] if e["ph"] == "M"]
    assert {e["args"]["name"] for e in told} == {"a model", "host", "device"}
    tracks = {e["args"]["name"]: e["tid"] for e in told if "tid" in e}
    ran = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert [e["name"] for e in ran if e["tid"] == tracks["device"]] == ["norm", "norm"]
    assert [(e["ts"], e["dur"]) for e in ran if e["tid"] == tracks["device"]] == [(3.0, 3.0), (6.0, 3.0)]
    assert ran[0]["tid"] == tracks["host"]
    assert all(set(e) == {"name", "ph", "pid", "tid", "ts", "dur"} for e in ran)
