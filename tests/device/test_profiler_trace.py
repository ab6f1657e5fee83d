"""The profiler's own trace, as `chip capture --chrome` keeps it: signed, so that it may be replaced, and readable."""

import json

import pytest

torch = pytest.importorskip("torch")

from chip.lab.measure import kineto  # noqa: E402
from chip.lab.replay import chrome, foreign  # noqa: E402
from chip.types import ChipError  # noqa: E402


def test_a_kept_trace_is_signed_read_and_replaced(tmp_path):
    path = tmp_path / "new" / "perfetto.json"
    for _ in range(2):
        found = kineto.profiled(lambda: torch.ones(8) @ torch.ones(8), path)
        raw = json.loads(path.read_text())
        assert next(iter(raw.items())) == ("schema", chrome.SCHEMA)
        assert raw["traceEvents"]
        assert chrome.read(path).operators.keys() == found.operators.keys()
    assert foreign.trace_of(path).kernels, "a CPU's operators do the work themselves"
    path.write_text('{"schemaVersion": 1, "traceEvents": []}')  # of somebody else's profiler
    with pytest.raises(ChipError, match=r"and chip\.profiler_trace would replace it"):
        kineto.profiled(lambda: torch.ones(8), path)
