"""A kernel among its neighbours, on a GPU that is made up: real operators on the CPU, whose times follow a rule.

An operator takes 1000 ns right after itself and 1300 ns after any other; each costs 50 ns beyond that without profiler.
"""

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from chip.measure import timing  # noqa: E402
from chip.measure.device import Device  # noqa: E402
from chip.measure.recorder import Recorder  # noqa: E402
from chip.measure.replay import among, unit  # noqa: E402
from chip.measure.replay.unit import Settings, replay_unit  # noqa: E402
from chip.replay import signatures  # noqa: E402
from chip.replay.chrome import DeviceEvent  # noqa: E402
from chip.traces import Kernel, KernelEvent, Trace  # noqa: E402

AGAIN_NS, AFTER_OTHERS_NS, GAP_NS = 1000, 1300, 50
DIMS = (1, 1, 1)


class MadeUp(Device):
    @property
    def torch_device(self):
        return torch.device("cpu")

    def synchronize(self):
        pass

    def empty_cache(self):
        pass


DEVICE = MadeUp("cuda:0", "cuda", "made up", 1, 2**30, 2**20, None, None)


class Launches(TorchDispatchMode):
    """Every operator as a kernel."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        last = self.events[-1].name if self.events else ""
        took = AGAIN_NS if func.name() == last else AFTER_OTHERS_NS
        self.events.append(DeviceEvent(func.name(), "kernel", len(self.events), took, 7, DIMS, DIMS, 0, 0))
        return func(*args, **(kwargs or {}))


class Graph:
    def __init__(self, calls, inner):
        self.calls = list(itertools.islice(itertools.cycle(calls), inner))

    def replay(self):
        for call in self.calls:
            call()


def launches_of(run):
    with Launches() as seen:
        run()
    return seen.events


def passes(looks, device, keep=None):
    def one(look):
        look.before()
        return launches_of(look.run)

    return [[one(look) for _ in range(look.count)] for look in looks]


def replayed(device, run, inner=1, before=None):
    return lambda: round(sum(e.duration_ns + GAP_NS for e in launches_of(run)) / inner)


@pytest.fixture(autouse=True)
def made_up_gpu(monkeypatch):
    monkeypatch.setattr(unit, "passes", passes)
    monkeypatch.setattr(timing, "replayed", replayed)
    monkeypatch.setattr(timing, "capture", lambda device, calls, inner: Graph(calls, inner))
    monkeypatch.setattr(timing, "rested", lambda device, take, inner: take)
    monkeypatch.setattr(timing, "unbroken", lambda device, run, calls: replayed(device, run, calls))
    monkeypatch.setattr(timing, "warm_up", lambda device, call, seconds: None)


def recorded_step(layers=3):
    """add, neg, mul in turn, and a lone exp."""
    x = torch.randn(8, 8)

    def step():
        y = x
        for _ in range(layers):
            y = torch.mul(torch.neg(torch.add(y, 1.0)), y)
        torch.exp(y)

    recorder = Recorder(replace(DEVICE, kind="cpu"))
    with torch.inference_mode(), recorder.mode():
        step()
    operators = [replace(o, tensors=tuple(replace(t, reuse_bytes=0) for t in o.tensors)) for o in recorder.calls]
    unique = list({repr(o): o for o in operators}.values())
    kernels = tuple(Kernel(f"{o.name}.{o.overload}".removesuffix(".default"), "kernel", DIMS, DIMS, 0, i)
                    for i, o in enumerate(unique))  # fmt: skip
    events = [KernelEvent(unique.index(o), 2000 * i, 1300, 7, i) for i, o in enumerate(operators)]
    return Trace("m", "", "forward", 0, 0, "fp32", "made up", "graph", tuple(unique), kernels, tuple(events))


def units():
    found = signatures.units_of(signatures.workload_of(recorded_step()))
    return {u.operator.name.removeprefix("aten::"): u for u in found}


def test_the_model_ran_these_before():
    before = {name: [n.operator.name for n in u.before] for name, u in units().items()}
    assert before["mul"] == ["aten::add", "aten::neg"]
    assert before["neg"] == ["aten::mul", "aten::add"]
    assert before["exp"] == ["aten::add", "aten::neg", "aten::mul"] * 3


def test_a_short_kernel_is_timed_after_its_neighbours_and_charged_what_it_adds():
    (found,) = replay_unit(units()["mul"], DEVICE, Settings(runs=20))
    assert found.status == "ok"
    assert found.name == "aten::mul.Tensor"
    assert set(found.samples_ns) == {AFTER_OTHERS_NS}
    assert len(found.samples_ns) == 20
    assert found.again_ns == AGAIN_NS
    assert found.cold_ns == AGAIN_NS
    assert found.gap_ns == GAP_NS
    assert found.flags == ()


@pytest.mark.parametrize("rule", ["cold", "hot"])
def test_another_rule_runs_it_alone(rule):
    (found,) = replay_unit(units()["mul"], DEVICE, Settings(rule, runs=20))
    assert set(found.samples_ns) == {AGAIN_NS}
    assert found.again_ns is None
    assert found.gap_ns == pytest.approx(GAP_NS, abs=10)  # the first of a round follows nothing


def test_a_neighbour_that_cannot_run_leaves_the_kernel_alone_and_is_named():
    mul = units()["mul"]
    broken = replace(mul.before[0], operator=replace(mul.before[0].operator, name="aten::no_such"))
    (found,) = replay_unit(replace(mul, before=(broken,)), DEVICE, Settings(runs=20))
    assert set(found.samples_ns) == {AGAIN_NS}
    assert found.gap_ns == pytest.approx(GAP_NS, abs=10)
    assert "not among its neighbours: aten::no_such" in found.flags[0]


def test_code_that_is_far_away_is_flushed_from_the_cache(monkeypatch):
    mul = units()["mul"]
    seen = []
    capture = timing.capture
    monkeypatch.setattr(timing, "capture", lambda *args: seen.append(capture(*args)) or seen[-1])
    far = among.FAR * DEVICE.l2_bytes + 1
    replay_unit(replace(mul, members=(replace(mul.members[0], apart_bytes=far),)), DEVICE, Settings(runs=20))
    with torch.inference_mode():
        per_call = [len(launches_of(graph.replay)) / len(graph.calls) for graph in seen]
    near = len(mul.before) + 1 + len(mul.operator.tensors)  # neighbours, itself, a write to each of its inputs
    assert per_call[-1] == near + 1  # and the flush
