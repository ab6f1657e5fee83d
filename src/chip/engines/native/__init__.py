"""native: our own engine (`chip.lab.run.native`): paged cache, CUDA-graph decode. docs/native.md lists its launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chip.decoders import roles
from chip.decoders.decoder import Decoder
from chip.dtypes import BYTES, Precision
from chip.engines import Engine, EngineVersion, Serves
from chip.engines.calibration import TWO_DEPTHS, cut
from chip.engines.chunked import decode_step, padded, prefill_steps
from chip.engines.fuse import apply, as_kind, each, fuse_residual_norms, merge_projections
from chip.engines.memory import Room
from chip.engines.timeline import HostCost, Played, Terms, Timeline, Weighted
from chip.ops.elementwise import Scale, SiluMul
from chip.ops.linear import Linear
from chip.ops.moves import KvAppend, Rope
from chip.types import Call, Program, Scenario, Seq, Step

FAMILIES_OF = {f"{name}ForCausalLM": name.lower() for name in ("Llama", "Mistral", "Qwen2", "Qwen3")}
STEP_TOKENS = 8192  # of prompts in one step
MOST_REQUESTS = 256  # at once; others wait
# Sizes of CUDA graphs: for the requests of a decode step, and for the tokens of a prompt that is alone in its step.
DECODE_GRAPHS = (1, 2, 4, *range(8, MOST_REQUESTS + 1, 8))
PROMPT_GRAPHS = (16, 32, 64, *range(128, 2049, 128))
FEW_ROWS = 64  # up to so many rows a product is the skinny kernel's, with the gate inside
MEMORY_SHARE = 0.9
CONTEXT_BYTES = 1.4e9


class Native(Engine):
    NAME = "native"
    TITLE = "chip's own engine: paged KV cache, merged projections, one CUDA graph a decode step or single prompt"
    TERMS = ("step_s", "first_s", "request_s", "host_step_s", "host_kernel_s")
    CAVEAT = (
        "native: its kernels were measured on an H200; on other GPUs products are taken as cuBLAS's and attention as "
        "FlashAttention's. Batches over 64 leave out the gate's own kernel"
    )
    POOL = True
    SERVES = Serves(tuple(FAMILIES_OF), ("bf16", "fp16", "fp32"), gpus=1)
    CALIBRATION = cut(("llama", "qwen2", "qwen3"), TWO_DEPTHS, ((1, 128), (8, 512), (1, 2048)))
    VERSIONS = (EngineVersion(overlaps_steps=True),)  # the next step is launched before the tokens of the last are read

    def runs_as(
        self, capability: float, d: Decoder | None = None, options: Any = None, version: str = ""
    ) -> Mapping[str, str]:
        return {
            "linear": "chip|torch",
            "embedding": "torch",
            "attention": "chip|fa3|fa2|flash",
            **dict.fromkeys(("rms_norm", "add_rms_norm", "silu_mul"), "chip|compiled cold"),
            "rope_store": "chip",
            "sampling": "torch",
        }

    def prefill(self, scenario: Scenario, options: None) -> Weighted:
        """Chunks of prompts beside requests that have their first token."""
        return prefill_steps(scenario, STEP_TOKENS, MOST_REQUESTS, _step)

    def decode(self, scenario: Scenario, options: None) -> Step:
        return decode_step(scenario, MOST_REQUESTS, _step)

    def rewrite(self, program: Program, decode: bool, architecture: str = "") -> Program:
        """In a decode step gate and bias are inside their product."""
        last = each(SiluMul, lambda role, gate: []) if decode else each(Linear, bias_behind)
        return apply(program, merge_projections, fuse_residual_norms, fuse_store, last)

    def play(self, t: Timeline, step: Played, terms: Terms) -> None:
        if step.graph:
            t.graph("step", terms.host_step_s, step.device_s(t) + terms.step_s)
            return
        t.prepare("batch", terms.host_step_s)
        t.launch(step, HostCost(0.0, terms.host_kernel_s))
        t.graph("sampling", 0.0, terms.step_s)
        t.read()  # the first tokens, before the next step is put together

    def room(self, scenario: Scenario, options: None) -> Room:
        cache_tokens = scenario.prompt + scenario.output
        return Room(MEMORY_SHARE, CONTEXT_BYTES, cache_tokens, STEP_TOKENS, scenario.batch, at_once=MOST_REQUESTS)

    def peak_bytes(self, d: Decoder, p: Precision, s: Scenario, room: Room) -> float:
        """The residual stream, input and output of the MLP, or at the end the logits and their fp32 copy."""
        width, stream = BYTES[p.activation], room.step_tokens * d.hidden * BYTES[p.activation]
        inner = max(layer.mlp.intermediate for _, layer in d.layers)
        logits = room.sequences * d.vocab * (width + BYTES["fp32"]) + stream
        return max(2 * stream + 3 * room.step_tokens * inner * width, logits)


def _step(seqs: tuple[Seq, ...]) -> Step:
    """Decode steps and short prompts that are alone run as graphs; all else is launched kernel by kernel."""
    first, *others = seqs
    if not others and first.new == 1:
        return Step(seqs, padded(first.count, DECODE_GRAPHS) - first.count, True)
    if not others and first.count == 1 and first.new <= PROMPT_GRAPHS[-1]:
        return Step(seqs, padded(first.new, PROMPT_GRAPHS) - first.new, True)
    return Step(seqs)


def fuse_store(calls: list[Call]) -> list[Call]:
    """Head norms, rotation and the write to pages are one kernel."""
    rope = next((c.op for c in calls if isinstance(c.op, Rope)), None)
    append = next((c.op for c in calls if isinstance(c.op, KvAppend)), None)
    if rope is None or append is None:
        return calls
    kv_heads = append.cols // (2 * rope.head_dim)
    store = as_kind("rope_store", rope, heads=rope.heads - kv_heads, kv_heads=kv_heads)
    kept = [c for c in calls if c.role not in (roles.Q_NORM, roles.K_NORM) and c.op is not append]
    return [Call("rope_store", store) if c.op is rope else c for c in kept]


def bias_behind(role: str, product: Linear) -> list[Call]:
    """A product of many rows leaves its bias to a kernel of PyTorch's."""
    added = Call(f"{role}_bias", Scale(product.m, product.n, product.dtype))
    return [Call(role, product), *([added] if product.bias else [])]


ENGINE = Native()
