"""The context `layer`: an operator timed among the other kernels of a decoder layer."""

import pytest

from chip import ops

torch = pytest.importorskip("torch")

from chip.lab.measure import layer_chain  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.profile import QUICK, profile_case  # noqa: E402
from chip.lab.measure.suites import SuiteCase  # noqa: E402


def test_a_call_is_timed_among_the_kernels_of_a_layer():

    before, after = layer_chain.layer(torch.device("cpu"))
    assert [f() is not None for f in (*before, *after)] == [True] * 9
    case = SuiteCase(ops.build("linear", {"m": 64, "n": 2048, "k": 2048, "dtype": "fp32"}), "torch")
    cold, layer = profile_case(case, open_device("cpu"), ("cold", "layer"), QUICK)
    assert (cold.status, layer.status, layer.context) == ("ok", "ok", "layer")
    assert "of 9 other calls, less these alone" in layer.method
