"""Mixers with a state of one size per sequence: Mamba, Mamba-2, gated delta nets, short convolutions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from chip.decoders.formats import Matrix
from chip.dtypes import BYTES, Precision

CHUNKS = {
    "mamba2": 256,
    "mamba": 64,
    "delta": 64,
    "conv": 1,
    "linear": 256,
    "none": 1,
}  # tokens of a prompt that a scan takes at once


@dataclass(frozen=True, slots=True)
class StateMixer:
    """A mixer that stands where attention does. `inputs`: its projections of the layer's input, by role and width."""

    kind: str  # mamba, mamba2, delta, conv, linear or none
    inputs: tuple[tuple[str, int], ...]
    channels: int  # of its convolution
    taps: int
    heads: int = 1
    head_dim: int = 0
    key_dim: int = 0
    groups: int = 1
    width: int = 0  # of its output before it is projected back
    inner: tuple[tuple[str, int, int], ...] = ()  # products inside: role, outputs, inputs
    vectors: int = 0  # parameters that are no matrix: decays, biases, norms
    normed: bool = True  # its output goes through a norm, which is gated
    state_dtype: str = ""  # "": as the activations

    # as attention that sees nothing back
    window: ClassVar[int] = 0
    rope_dim: ClassVar[int] = 0
    kv_heads: ClassVar[int] = 1

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        for role, n in self.inputs:
            yield Matrix(role, n, hidden)
        for role, n, k in self.inner:
            yield Matrix(role, n, k)
        if self.width:
            yield Matrix("state_out", hidden, self.width)

    def params(self, hidden: int) -> int:
        return sum(m.n * m.k for m in self.matrices(hidden)) + self.norm_params()

    def norm_params(self) -> int:
        """All that is no matrix: each GPU has its part of it whole."""
        return self.channels * self.taps + self.vectors

    def kv_values(self, latent: bool) -> int:
        return 0

    def state_bytes(self, p: Precision, tp: int = 1) -> float:
        """Of one sequence on each GPU, whatever its length."""
        kept = self.channels * max(0, self.taps - 1) * BYTES[p.activation]
        state = self.heads * self.head_dim * self.key_dim * BYTES[self.state_dtype or p.activation]
        return (kept + state) / tp


NO_MIXER = StateMixer("none", (), 0, 0)  # of a layer that is an MLP alone
