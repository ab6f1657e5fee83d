"""Device memory of a scenario: weights, key/value cache, activations, and what fits."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

from chip import engines
from chip.dtypes import BYTES, Precision
from chip.engines import hf_eager, hf_graph, vllm
from chip.models.decoder import Attn, Decoder, Mlp
from chip.types import Scenario

# What the driver, the framework's context and its kernels take beside torch's pool. Under HF, what the device held less
# what the pool held, in the recorded runs on an H200: 1.36 to 1.38 GB eager, 1.38 to 1.46 GB with graphs. vLLM sizes
# its KV pool by what its own profile sees grow after the context is made, which is less: this meets the recorded pools.
CONTEXT_BYTES = {hf_eager.NAME: 1.37e9, hf_graph.NAME: 1.45e9, vllm.NAME: 0.5e9}
# cuBLAS's workspace as torch sets it up on Hopper and newer (8 MiB before), one for each stream: eager inference has
# one stream; a captured one also that of the warm-up and that of the capture.
WORKSPACE_BYTES = 32 * 2**20
WORKSPACES = {hf_eager.NAME: 1, hf_graph.NAME: 3}
# Of the residual stream's width, alive in an HF layer beside its operators: the embeddings and the layer's input, which
# the frames above hold on to, and the residual itself. A compiled graph holds the residual alone.
HF_STREAMS = 3


@lru_cache(maxsize=256)
def activation_bytes(d: Decoder, tokens: int, rows: int, p: Precision, tp: int, streams: int = 1) -> float:
    """Peak of the tensors alive at once in one step: the residual stream beside the widest operator's input and output,
    or the logits (16-bit and their fp32 copy) at the end."""
    width = BYTES[p.activation]
    widest = 0.0
    for _, layer in d.layers:
        a = layer.attn
        heads = a.heads // tp
        head_values = heads * (a.head_dim if isinstance(a, Attn) else a.qk_dim)
        kv_values = a.kv_values(latent=False) / min(tp, a.kv_heads if isinstance(a, Attn) else a.heads)
        attention = d.hidden + 2 * head_values + kv_values
        if isinstance(layer.mlp, Mlp):
            mlp = d.hidden + (3 if layer.mlp.gated else 2) * layer.mlp.intermediate / tp
        else:
            one = (3 if layer.mlp.gated else 2) * layer.mlp.intermediate / tp
            mlp = d.hidden + layer.mlp.top_k * (one + d.hidden)
        widest = max(widest, attention, mlp)
    in_layers = tokens * (streams * d.hidden + widest) * width
    logits = rows * d.vocab / tp * (width + BYTES["fp32"]) + tokens * d.hidden * width
    return max(in_layers, logits)


@lru_cache(maxsize=256)
def _weight_bytes(d: Decoder, p: Precision, tp: int) -> float:
    return d.weight_bytes(p, tp)


def needs(d: Decoder, s: Scenario, engine: str, p: Precision, capacity_bytes: float) -> dict[str, object]:
    e = engines.get(engine)
    latent = e.LATENT_KV
    context = hf_graph.cache_tokens(s) if engine == hf_graph.NAME else s.prompt + s.output
    weights = _weight_bytes(d, p, s.tp)
    kv_sequence = d.kv_bytes(context, p, latent, s.tp)
    batch, prompt_tokens = s.batch, s.batch * s.prompt
    share = 1.0
    if engine == vllm.NAME:
        share = vllm.MEMORY_SHARE
        batch = min(batch, vllm.max_seqs(capacity_bytes))  # the others wait
        prompt_tokens = vllm.step_tokens(capacity_bytes)  # the engine sets aside room for its largest step
    streams = 1 if engine == vllm.NAME else HF_STREAMS
    workspaces = WORKSPACES.get(engine, 0) * WORKSPACE_BYTES
    activations = activation_bytes(d, prompt_tokens, batch, p, s.tp, streams) + workspaces
    beside = CONTEXT_BYTES[engine]
    free = capacity_bytes * share - weights - beside - workspaces
    total = weights + batch * kv_sequence + activations + beside
    out: dict[str, object] = {
        "weights_bytes": round(weights),
        "kv_bytes_per_token": round(kv_sequence / context, 3),
        "kv_bytes": round(batch * kv_sequence),
        "activation_bytes": round(activations),
        "context_bytes": round(beside),
        "total_bytes": round(total),
        "capacity_bytes": round(capacity_bytes),
        "fits": total <= capacity_bytes * share,
        "max_batch": _max_batch(d, s, engine, p, free, kv_sequence, activations),
    }
    if engine == vllm.NAME:
        layers = Counter[int]()
        for n, layer in d.layers:
            layers[getattr(layer.attn, "window", 0)] += n
        token_bytes = d.kv_bytes(1, p, latent, s.tp)
        out["kv_capacity_tokens"] = vllm.cache_tokens(
            layers, d.max_context, token_bytes, free - activations, capacity_bytes
        )
    return out


def _max_batch(
    d: Decoder, s: Scenario, engine: str, p: Precision, free: float, kv_sequence: float, activations: float
) -> int:
    """Largest batch of this prompt and output that fits."""
    if engine == vllm.NAME:
        return max(0, int((free - activations) // kv_sequence))
    per_sequence = kv_sequence + activation_bytes(d, s.prompt, 1, p, s.tp, HF_STREAMS)
    return max(0, int(free // per_sequence))
