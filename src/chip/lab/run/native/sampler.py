"""From logits to tokens: the likeliest, or drawn by temperature, top-k and top-p with each request's own chances."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chip.lab.run.native.requests import NativeRequest


def greedy(requests: Sequence[NativeRequest]) -> bool:
    return all(r.sampling.temperature == 0 for r in requests)


def choose(logits: torch.Tensor, requests: Sequence[NativeRequest]) -> torch.Tensor:
    """A token for each row. A row depends on itself alone, so a request draws the same tokens in any batch."""
    likeliest = logits.argmax(-1)
    if greedy(requests):
        return likeliest
    drawn = [i for i, r in enumerate(requests) if r.sampling.temperature > 0]
    rows = torch.tensor(drawn, device=logits.device)
    likeliest[rows] = _draw(logits[rows].float(), [requests[i] for i in drawn])
    return likeliest


def _draw(logits: torch.Tensor, requests: Sequence[NativeRequest]) -> torch.Tensor:
    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, device=logits.device)[:, None]

    vocab = logits.shape[-1]
    temperature = column([r.sampling.temperature for r in requests])
    top_k = column([float(r.sampling.top_k or vocab) for r in requests])
    top_p = column([r.sampling.top_p for r in requests])
    chance = column([r.chance() for r in requests])
    ordered, tokens = logits.sort(dim=-1, descending=True, stable=True)
    scaled = (ordered - ordered[:, :1]) / temperature
    rank = torch.arange(vocab, device=logits.device)[None]
    weight = torch.softmax(scaled.masked_fill(rank >= top_k, -torch.inf), -1).double()
    before = weight.cumsum(-1) - weight  # the likeliest token always stays
    weight = weight.masked_fill(before >= top_p, 0.0)
    reached = weight.cumsum(-1)
    place = (reached <= chance * reached[:, -1:]).sum(-1, keepdim=True)
    last = (weight > 0).sum(-1, keepdim=True) - 1  # rounding may leave a chance beyond the end
    return tokens.gather(-1, torch.minimum(place, last))[:, 0]
