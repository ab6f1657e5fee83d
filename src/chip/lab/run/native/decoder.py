"""The model: one function from a batch to logits, whatever mixture of decodes and chunks the batch is."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from chip.lab.run.native.batch import Batch
from chip.lab.run.native.launches import Launches
from chip.lab.run.native.pages import KvCache
from chip.lab.run.native.spec import DecoderSpec
from chip.lab.run.native.weights import LayerWeights, Weights


class NativeDecoder:
    def __init__(self, spec: DecoderSpec, weights: Weights, cache: KvCache, launches: Launches) -> None:
        self.spec, self.weights, self.cache, self.launches = spec, weights, cache, launches

    def logits(self, batch: Batch) -> torch.Tensor:
        """A row for each of `batch.last`; keys and values of every token go into the cache on the way."""
        run, layers = self.launches, self.weights.layers
        residual = F.embedding(batch.ids, self.weights.embed)
        x = run.rms_norm(residual, layers[0].input_norm)
        for i, layer in enumerate(layers):
            attended = self._attention(i, layer, x, batch)
            residual, x = run.add_rms_norm(attended, residual, layer.mlp_norm)
            y = run.linear(run.gate_up(x, layer.gate_up, layer.gate_up_bias), layer.down, layer.down_bias)
            if i + 1 < len(layers):
                residual, x = run.add_rms_norm(y, residual, layers[i + 1].input_norm)
        if batch.last is not None:
            if not len(batch.last):  # chunks in the middle of their prompts: the cache is all that is wanted
                return y.new_empty(0, self.spec.vocab)
            y, residual = y.index_select(0, batch.last), residual.index_select(0, batch.last)
        _, x = run.add_rms_norm(y, residual, self.weights.norm)
        return run.linear(x, self.weights.head, None)

    def _attention(self, i: int, layer: LayerWeights, x: torch.Tensor, batch: Batch) -> torch.Tensor:
        run, w = self.launches, self.weights
        keys, values = self.cache.keys[i], self.cache.values[i]
        qkv = run.linear(x, layer.qkv, layer.qkv_bias)
        q = run.rope_store(
            qkv, layer.q_norm, layer.k_norm, w.cos, w.sin, batch.positions, batch.slots, keys, values
        )  # fmt: skip
        attended = run.attention(q, keys, values, batch)
        return run.linear(attended.view(len(x), -1), layer.out, layer.out_bias)
