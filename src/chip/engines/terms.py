"""Terms: the seconds that an engine and its host add to the operators of a step, measured on calibration models."""

from __future__ import annotations

from typing import NamedTuple

MEANING = {
    "gap_s": "device, between two operators",
    "step_s": "device, each step: small kernels around the model",
    "first_s": "host, once before the first step",
    "request_s": "host, each request before the first step",
    "host_step_s": "host, each step",
    "host_seq_s": "host, each sequence of a step",
    "host_call_s": "host, each operator that it launches by itself",
    "host_kernel_s": "host, each kernel that it launches by itself",
    "host_experts_s": "host, each layer's experts that it launches by themselves",
    "host_piece_s": "host, each layer that it launches as a piece of a graph",
}
ON_DEVICE = ("gap_s", "step_s")
ON_HOST = tuple(name for name in MEANING if name not in ON_DEVICE)


class Terms(NamedTuple):
    gap_s: float = 0.0
    step_s: float = 0.0
    first_s: float = 0.0
    request_s: float = 0.0
    host_step_s: float = 0.0
    host_seq_s: float = 0.0
    host_call_s: float = 0.0
    host_kernel_s: float = 0.0
    host_experts_s: float = 0.0
    host_piece_s: float = 0.0

    def prepare_s(self, sequences: int) -> float:
        """How long the host prepares a step before it launches it."""
        return self.host_step_s + self.host_seq_s * sequences

    def on_host(self, slower: float) -> Terms:
        """The same engine on a host that takes so many times as long for everything; the device stays as it is."""
        return self._replace(**{name: getattr(self, name) * slower for name in ON_HOST})
