"""What the recorder writes down is what the step really calls, as the profiler sees it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import tiny_models  # noqa: E402

from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.recorder import COMPOSITE, Recorder, has_kernel, is_bookkeeping  # noqa: E402
from chip.lab.run.model import from_config  # noqa: E402

BACKEND = torch._C.DispatchKey.CPU
WITH_OVERLOADS = torch.profiler._ExperimentalConfig(capture_overload_names=True)


def operator(event):
    """What an event of the profiler is a call of."""
    packet = getattr(torch.ops.aten, event.name.removeprefix("aten::"))
    return getattr(packet, event.overload_name or "default")


def leaves(event):
    """The operators within an event that are not made of others."""
    if event.name.startswith("aten::"):
        name = operator(event).name()
        if not has_kernel(name, COMPOSITE) or has_kernel(name, BACKEND):
            return [event]
    return [leaf for child in event.cpu_children for leaf in leaves(child)]


def profiled(step):
    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=WITH_OVERLOADS
    ) as found:
        step()
    called = [leaf for e in found.events() if e.cpu_parent is None for leaf in leaves(e)]
    return [e.name for e in called if not is_bookkeeping(e.name) and not operator(e).is_view]


def recorded(step):
    recorder = Recorder(open_device("cpu"))
    with recorder.mode():
        step()
    return [c.name for i, c in enumerate(recorder.calls) if i not in recorder.views]


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
@pytest.mark.parametrize("grad", [True, False])
def test_a_slice_is_multiplied_as_the_weight_has_it(grad, mode):
    """torch.matmul makes one matrix of a batch where the weight requires grad, and its view says so; else a bmm."""
    weight = torch.nn.Parameter(torch.randn(32, 16), requires_grad=grad)
    x = torch.randn(4, 6, 16)
    with mode():
        called = profiled(lambda: torch.nn.functional.linear(x[:, -1:, :], weight))
        assert called == recorded(lambda: torch.nn.functional.linear(x[:, -1:, :], weight))
    assert called == ["aten::mm" if grad else "aten::bmm"]


def test_a_weight_made_in_inference_mode_is_multiplied_as_it_is():
    """It requires grad, but its views do not."""
    with torch.inference_mode():
        weight, x = torch.nn.Parameter(torch.randn(32, 16)), torch.randn(4, 6, 16)
        called = profiled(lambda: torch.nn.functional.linear(x[:, -1:, :], weight))
        assert called == recorded(lambda: torch.nn.functional.linear(x[:, -1:, :], weight)) == ["aten::bmm"]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("architecture", ["BloomForCausalLM", "LlamaForCausalLM", "Phi3ForCausalLM"])
def test_a_models_operators_are_those_that_the_profiler_sees(architecture, grad):
    model = from_config(tiny_models.families()[architecture], torch.float32, "cpu").eval().requires_grad_(grad)
    ids = torch.randint(0, 256, (3, 8))

    def step():
        return model(ids, use_cache=False, logits_to_keep=1).logits[:, -1:].argmax(-1)

    with torch.inference_mode():
        called = profiled(step)
        assert recorded(step) == called
    assert called[-2] == ("aten::mm" if grad else "aten::bmm")
    assert called[-1] == "aten::argmax"
