"""Kernels alone and in their places, on a GPU that is made up: real operators on the CPU, whose times follow a rule.

An operator takes 1000 ns right after itself and 1300 ns after any other; each costs 50 ns beyond that without profiler.
"""

import itertools
import json
from dataclasses import replace

import pytest
import tiny_models

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from chip import stats  # noqa: E402
from chip.files import codec, traces  # noqa: E402
from chip.files.traces import Kernel, KernelEvent, Timing, Trace  # noqa: E402
from chip.lab.measure import capture, timing  # noqa: E402
from chip.lab.measure.device import Device, open_device  # noqa: E402
from chip.lab.measure.recorder import Recorder, is_bookkeeping  # noqa: E402
from chip.lab.measure.replay import pool, sequence, unit  # noqa: E402
from chip.lab.measure.replay.arguments import written  # noqa: E402
from chip.lab.measure.replay.sequence import ReplayStep, replay_sequence  # noqa: E402
from chip.lab.measure.replay.unit import ReplaySettings, replay_units  # noqa: E402
from chip.lab.measure.stopping import StopRule  # noqa: E402
from chip.lab.replay import results, signatures, tiers  # noqa: E402
from chip.lab.replay.chrome import DeviceEvent  # noqa: E402
from chip.lab.replay.results import Replayed  # noqa: E402
from chip.lab.replay.sequence import Sequence, sequence_of  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.types import ChipError  # noqa: E402

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
    """Every operator that touches memory as a kernel."""

    def __init__(self):
        super().__init__()
        self.events = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.is_view or is_bookkeeping(func.name()):
            return func(*args, **(kwargs or {}))
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


SESSIONS = []  # of the profiler: how many looks each took


def passes(looks, device, keep=None):
    def one(look):
        look.before()
        return launches_of(look.run)

    SESSIONS.append(len(looks))
    return [[one(look) for _ in range(look.count)] for look in looks]


def replayed(device, run, inner=1, before=None):
    return lambda: round(sum(e.duration_ns + GAP_NS for e in launches_of(run)) / inner)


def captured(device, calls, inner, before=lambda: None):
    for call in calls[:3]:
        before()
        call()
    return Graph(calls, inner)


@pytest.fixture(autouse=True)
def made_up_gpu(monkeypatch):
    SESSIONS.clear()
    for module in (unit, sequence):
        monkeypatch.setattr(module, "passes", passes)
    monkeypatch.setattr(timing, "replayed", replayed)
    monkeypatch.setattr(timing, "capture", captured)
    monkeypatch.setattr(timing, "rested", lambda device, take, inner: take)
    monkeypatch.setattr(timing, "unbroken", lambda device, run, calls: replayed(device, run, calls))
    monkeypatch.setattr(timing, "warm_up", lambda device, call, seconds: None)
    monkeypatch.setattr(capture, "WARM_S", 0.0)
    monkeypatch.setattr(capture, "RULE", StopRule(0.5, 3, 3, 1.0))


def layers(x, count=3):
    """add, neg, mul in turn, and a lone exp."""
    y = x
    for _ in range(count):
        y = torch.mul(torch.neg(torch.add(y, 1.0)), y)
    return torch.exp(y)


def recorded(step):
    recorder = Recorder(replace(DEVICE, kind="cpu"))
    with torch.inference_mode(), recorder.mode():
        step()
    calls = [i for i in range(len(recorder.calls)) if i not in recorder.views]
    warm = [replace(o, tensors=tuple(replace(t, reuse_bytes=0) for t in o.tensors)) for o in recorder.calls]
    unique = list({repr(warm[i]): warm[i] for i in calls}.values())
    kernels = tuple(Kernel(f"{o.name}.{o.overload}".removesuffix(".default"), "kernel", DIMS, DIMS, 0, i)
                    for i, o in enumerate(unique))  # fmt: skip
    events = [KernelEvent(unique.index(warm[i]), 2000 * i, 1300, 7, i) for i in calls]
    timings = {"graph": Timing((20_000,) * 5, "events")}
    flow = tuple(recorder.flow[i] for i in calls)
    return Trace("m", "", "forward", 0, 0, "fp32", "made up", "graph", tuple(unique), kernels, tuple(events), timings,
                 l2_bytes=DEVICE.l2_bytes, flow=flow)  # fmt: skip


def step_of_layers():
    x = torch.randn(8, 8)
    return recorded(lambda: layers(x))


def alone(trace):
    units = signatures.units_of(signatures.workload_of(trace))
    found = replay_units(units, DEVICE, ReplaySettings(runs=20))
    return [kernel for kernels in found for kernel in kernels]


def all_ok(trace):
    return [Replayed(s.key, "ok", "", s.kernel.name, "", (5,)) for s in signatures.workload_of(trace).signatures]


class Watched(ReplayStep):
    """Keeps what each call made."""

    def run(self):
        self.seen = []
        super().run()

    def _call(self, call, made):
        found = super()._call(call, made)
        self.seen.append([f.clone() for f in found])
        return found


def test_alone_each_kernel_follows_itself_and_all_share_a_session_of_the_profiler():
    found = {k.name.removeprefix("aten::").partition(".")[0]: k for k in alone(step_of_layers())}
    assert set(found) == {"add", "neg", "mul", "exp"}
    assert len(SESSIONS) == 1
    for kernel in found.values():
        assert kernel.status == "ok"
        assert set(kernel.samples_ns) == {AGAIN_NS}
        assert len(kernel.samples_ns) == 20
        assert kernel.cold_ns == AGAIN_NS
        assert kernel.placed_ns is None
        assert kernel.gap_ns == pytest.approx(GAP_NS, abs=10)  # the first of a round follows nothing
        assert kernel.flags == ()


@pytest.mark.parametrize(("share", "load", "rested"), [(0.5, True, True), (0.5, False, False), (0.001, True, False)])
def test_what_is_heavy_rests_before_it_is_looked_at(share, load, rested, monkeypatch):
    """Unless the model ran at its full clock: then no load lowers it."""
    rests = []
    monkeypatch.setattr(timing, "rest", rests.append)
    first, *_ = signatures.units_of(signatures.workload_of(step_of_layers()))
    ((found,),) = replay_units([replace(first, share=share)], DEVICE, ReplaySettings(runs=20, load=load))
    assert found.status == "ok"
    assert bool(rests) is rested


def test_a_unit_that_cannot_run_says_why_and_costs_no_other():
    good, bad, *_ = signatures.units_of(signatures.workload_of(step_of_layers()))
    bad = replace(bad, operator=replace(bad.operator, name="aten::no_such"))
    first, second = replay_units([bad, good], DEVICE, ReplaySettings(runs=20))
    assert "aten::no_such" in first
    assert second[0].status == "ok"
    assert replay_units([bad], DEVICE, ReplaySettings(runs=20)) == [first]


def test_in_the_sequence_each_kernel_follows_those_of_the_model():
    trace = step_of_layers()
    made = sequence_of(trace, alone(trace))
    whole, placed = replay_sequence(made, DEVICE)
    assert len(placed) == 4
    assert set(placed.values()) == {(AFTER_OTHERS_NS, AFTER_OTHERS_NS)}
    assert whole.launches == 10
    assert whole.kernels_ns == 10 * AFTER_OTHERS_NS
    assert whole.gap_ns == GAP_NS
    assert stats.median(whole.timing.samples_ns) == 10 * (AFTER_OTHERS_NS + GAP_NS)


def test_calls_read_what_calls_before_them_made():
    x = torch.randn(8, 8)
    made = sequence_of(trace := recorded(lambda: layers(x)), all_ok(trace))
    with torch.inference_mode():
        step = Watched(made, DEVICE)
        (given,) = step.inputs.values()
        step.run()
        wanted = layers(given.view(torch.float32)[:64].view(8, 8))
        assert torch.equal(step.seen[-1][0].view(torch.float32).view(8, 8), wanted)
    assert float(given.view(torch.float32).std()) == pytest.approx(sequence.STD, rel=0.3)


def test_slices_of_one_memory_keep_their_places():
    fused = torch.randn(4, 6, 64)

    def split():
        _, k, v = (fused + 1.0).chunk(3, dim=1)
        return torch.mul(k, v)

    made = sequence_of(trace := recorded(split), all_ok(trace))
    with torch.inference_mode():
        step = Watched(made, DEVICE)
        step.run()
        _, k, v = step.seen[0][0].view(torch.float32).view(4, 6, 64).chunk(3, dim=1)
        assert torch.equal(step.seen[1][0].view(torch.float32).view(4, 2, 64), k * v)


def test_an_address_that_is_given_again_is_another_memory():
    x = torch.randn(1000)

    def step():
        for _ in range(3):
            torch.neg(x)  # freed at once
        constant = torch.tensor([7])  # made without any operator, maybe where one of them lay
        torch.add(constant, 1)

    trace = recorded(step)
    made = [flow.outputs[0] for flow in trace.flow]
    read = [flow.inputs[0].memory for flow in trace.flow]
    assert len(set(made)) == 4
    assert len(set(read[:3])) == 1
    assert read[3] not in {*made, read[0]}


def test_an_empty_tensor_has_a_place():
    x = torch.randn(4, 8)
    trace = recorded(lambda: torch.cat([x[:0], torch.empty(0, 8), x]))
    assert [t.offset_bytes for t in trace.operators[0].tensors] == [0, 0, 0]
    with torch.inference_mode():
        ReplayStep(sequence_of(trace, all_ok(trace)), DEVICE).run()


def test_memory_is_let_go_after_its_last_use():
    made = sequence_of(trace := step_of_layers(), all_ok(trace))
    held = []

    class Counted(ReplayStep):
        def _call(self, call, made):
            held.append(len(made))
            return super()._call(call, made)

    with torch.inference_mode():
        Counted(made, DEVICE).run()
    assert max(held) == 2  # y and its sum, or y and the negated


def test_what_a_step_changes_in_place_is_set_back():
    """A position that moves on, into a cache of four rows: the fifth run would leave it."""
    position, cache, row = torch.tensor([2]), torch.zeros(4, 8), torch.randn(1, 8)

    def decode():
        position.add_(1)
        cache.index_copy_(0, position, row)

    made = sequence_of(trace := recorded(decode), all_ok(trace))
    assert [written(o) for o in made.operators] == [{0}, {0}]
    with torch.inference_mode():
        step = ReplayStep(made, DEVICE)
        assert len(step.saved) == 2
        for _ in range(6):
            step.restore()
            step.run()
        with pytest.raises(IndexError, match="out of"):
            step.run()  # on from there


def test_a_call_that_failed_alone_is_left_out_and_its_result_is_random():
    trace = step_of_layers()
    done = [replace(k, status="failed", samples_ns=()) if "neg" in k.name else k for k in all_ok(trace)]
    made = sequence_of(trace, done)
    assert len(made.calls) == 7
    _, placed = replay_sequence(made, DEVICE)
    assert len(placed) == 3
    with torch.inference_mode():
        assert len(ReplayStep(made, DEVICE).inputs) == 4  # the input, and what each neg would have made


def test_another_kernel_in_between_does_not_shift_the_others():
    made = sequence_of(trace := step_of_layers(), all_ok(trace))
    events = [
        DeviceEvent(made.kernels[k].name, "kernel", i, 100 + k, 7, DIMS, DIMS, 0, 0)
        for i, k in enumerate(k for call in made.calls for k in call.kernels)
    ]
    strange = events[0]._replace(name="memset", duration_ns=9)
    seen = [events, [*events[:4], strange, *events[4:]], events[:-1]]  # one more, and one that got lost
    assert sequence.places(made, seen) == {n.key: (100 + k, 100 + k) for k, n in enumerate(made.kernels)}


def test_launches_that_differ_have_a_median_and_a_mean():
    made = sequence_of(trace := step_of_layers(), all_ok(trace))
    launches = [k for call in made.calls for k in call.kernels]

    def run(noise):
        took = [1000 + 60 * (i == 0) + noise for i in range(len(launches))]  # the first add is slower
        return [
            DeviceEvent(made.kernels[k].name, "kernel", i, took[i], 7, DIMS, DIMS, 0, 0) for i, k in enumerate(launches)
        ]

    found = sequence.places(made, [run(-5), run(0), run(50)])
    assert found[made.kernels[launches[0]].key] == (1000, 1020)
    assert found[made.kernels[launches[1]].key] == (1000, 1000)


def test_what_no_graph_can_hold_is_left_out():
    trace = step_of_layers()
    done = [replace(k, flags=(results.NO_GRAPH,)) if "neg" in k.name else k for k in all_ok(trace)]
    assert len(sequence_of(trace, done).calls) == 7
    done = [replace(k, name="Memcpy DtoH (Device -> Pageable)") if "exp" in k.name else k for k in all_ok(trace)]
    assert len(sequence_of(trace, done).calls) == 9


def test_a_sequence_survives_the_way_to_the_worker():
    made = sequence_of(trace := step_of_layers(), all_ok(trace))
    again = codec.from_json(Sequence, json.loads(json.dumps(codec.to_json(made))), "worker")
    assert (again.calls, again.kernels) == (made.calls, made.kernels)
    assert replay_sequence(again, DEVICE) == replay_sequence(made, DEVICE)


def test_a_trace_that_knows_no_flow_has_no_sequence():
    assert "does not tell which memory" in sequence_of(replace(step_of_layers(), flow=()), [])
    assert "no call of it" in sequence_of(step_of_layers(), [])


@pytest.mark.parametrize("broken", ["inputs", "offset"])
def test_a_flow_that_does_not_fit_its_operators_is_refused(tmp_path, broken):
    trace = step_of_layers()
    first, *rest = trace.flow
    (place,) = first.inputs
    bad = first._replace(inputs=() if broken == "inputs" else (place._replace(offset_bytes=-1),))
    traces.write(tmp_path / "t.json", replace(trace, flow=(bad, *rest)), {})
    with pytest.raises(ChipError, match=r"flow\[0\] needs a place"):
        traces.read(tmp_path / "t.json")


# -- with the command --------------------------------------------------------------------------------------------------
class Workers:
    """Answers a sequence with what is at hand."""

    def __init__(self, answer):
        self.answer, self.asked = answer, 0

    def fresh(self):
        pass

    def ask(self, request, limit_s):
        self.asked += 1
        assert limit_s == pool.SEQUENCE_S
        assert json.loads(json.dumps(request)) == request
        return self.answer


def in_places(tmp_path, answer):
    trace = step_of_layers()
    replay = results.Replay("m", "made up", "producer", 1, 5, tuple(all_ok(trace)))
    workers, journal = Workers(answer), tmp_path / "replay.jsonl"
    again = [
        cli.command("replay")._in_places(trace, replay, workers, pool.ReplayJournal(journal, {"source": "x"}))
        for _ in range(2)
    ]
    assert workers.asked == 1  # the second found it in the journal
    assert again[0] == again[1]
    return again[0]


def test_places_are_kept_and_a_run_goes_on_after_them(tmp_path):
    first = all_ok(step_of_layers())[0]
    whole = {"timing": {"samples_ns": [2000, 2000, 2000], "method": "events"}, "kernels_ns": 1500, "launches": 10}
    found = in_places(tmp_path, {"sequence": whole, "places": {first.key: [1300.0, 1310.0]}})
    assert [k.placed_ns for k in found.kernels] == [1300.0, None, None, None]
    assert [k.model_ns for k in found.kernels] == [1300.0, 5, 5, 5]
    assert [k.spread_ns for k in found.kernels] == [10, 0, 0, 0]
    assert found.sequence.gap_ns == 50
    assert found.notes == ("sequence: 3 of 4 kernels were not seen in their places and are taken alone",)
    results.write(tmp_path / "replay.json", found, {}, ())
    assert results.read(tmp_path / "replay.json")[1] == found


@pytest.mark.parametrize("answer", [{"lost": "did not end within 120 s"}, {"error": "out of memory"}])
def test_without_a_sequence_there_are_kernels_alone_and_a_note(tmp_path, answer):
    found = in_places(tmp_path, answer)
    assert found.sequence is None
    (reason,) = answer.values()
    assert found.notes == (f"no sequence, so kernels alone and gaps of bursts: {reason}",)


# -- real models -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("architecture", "products"),
    [("LlamaForCausalLM", 2 * 7 + 1), ("FalconForCausalLM", 2 * 4 + 1), ("Phi3ForCausalLM", 2 * 4 + 1)],
)
def test_a_models_step_runs_again_without_the_model(tmp_path, architecture, products, phase):
    pytest.importorskip("transformers")
    (tmp_path / "tiny.json").write_text(json.dumps(tiny_models.families()[architecture]))
    words = ["--engine", "hf-graph", "--phase", phase, "--prompt", "8", "--batch", "2", "--device", "cpu"]
    assert cli.main(["capture", str(tmp_path / "tiny.json"), *words, "-o", str(tmp_path / "trace.json")]) == 0
    _, trace = traces.read(tmp_path / "trace.json")
    made = sequence_of(trace, all_ok(trace))
    assert sum(len(c.kernels) for c in made.calls) == len(trace.events)
    with torch.inference_mode():
        step = Watched(made, open_device("cpu"))
        weights = {m: g.numel() for m, g in step.inputs.items() if m not in step.saved}
        for _ in range(2):
            step.restore()
            step.run()
        assert len(step.inputs) == len(weights) + len(step.saved)  # all that was needed was known ahead
        *_, (logits,) = (found for found in step.seen if found and found[0].numel() == 2 * 256 * 4)
        assert bool(torch.isfinite(logits.view(torch.float32)).all())
    called = [made.operators[c.operator] for c in made.calls]
    with_weights = [o for o in called if tiers.is_product(o) and o.tensors[-1].shape[-2] > 1]  # angles have one row
    assert len(with_weights) == products  # of each layer, and of the head
