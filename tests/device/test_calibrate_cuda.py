"""What only a GPU can show: event, graph and host times of one product agree, and quick probes run."""

import pytest

torch = pytest.importorskip("torch")

from chip.lab.measure import calibrate  # noqa: E402
from chip.lab.measure.budget import budget_for  # noqa: E402
from chip.lab.measure.device import open_device  # noqa: E402
from chip.lab.measure.stopping import StopRule, collect  # noqa: E402
from chip.lab.measure.timing import events, graph, host  # noqa: E402
from chip.stats import median  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_events_graphs_and_the_host_agree_on_a_long_kernel():
    device = open_device("cuda:0")
    a = torch.randn(4096, 4096, device=device.torch_device, dtype=torch.float16)
    out = torch.empty_like(a)
    call = lambda: torch.mm(a, a, out=out)  # noqa: E731
    rule = StopRule(0.02)
    by = {
        "events": median(collect(events(device, [call], 10), rule).samples_ns),
        "graph": median(collect(graph(device, [call], 10), rule).samples_ns),
        "host": median(collect(host(device, call), rule).samples_ns),
    }
    assert by["events"] == pytest.approx(by["graph"], rel=0.1)
    assert by["host"] > 0.9 * by["graph"]


@pytest.mark.parametrize("probe", ["memory", "launch", "host"])
def test_a_probe_runs_and_leaves_nothing_failed(probe, tmp_path):
    device = open_device("cuda:0")
    found = calibrate.calibrate(device, budget_for(device, "quick"), tmp_path / "j.jsonl", only=(probe,))
    assert not [why for why in found.profile.missing.values() if why.startswith(("failed", "error"))]
    assert found.profile.ceilings or found.host.terms
