"""Operators of a model as HF really runs it, from a forward pass on the meta device: shapes without weights or GPU."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from chip import engines, ops
from chip.decoders import library
from chip.dtypes import AUTO
from chip.engines import profile
from chip.engines.chunked import decode_contexts
from chip.engines.memory import Room
from chip.engines.options import settings_of
from chip.engines.timeline import RoleLaunches, Weighted
from chip.hardware import gpus, hosts
from chip.ops.attention import Attention
from chip.ops.elementwise import Softmax
from chip.ops.linear import Bmm, Linear
from chip.ops.moves import Embedding
from chip.ops.other import Pointwise
from chip.predictor import notes
from chip.predictor.estimator import Estimator
from chip.predictor.operator_time import OperatorTime, weighted_sum
from chip.predictor.phase import request_tpot_s
from chip.predictor.prediction import Prediction
from chip.predictor.program import NOTHING, CallBlock, ProgramTimes, Shape, TimedOperators, TimedStep
from chip.predictor.roof import check_dtype, roof_of
from chip.predictor.schedule import StepGroup
from chip.predictor.steps import EngineTerms, StepModel
from chip.question import BATCH, SYSTEM, complete, count_of
from chip.types import Call, ChipError, Op, Scenario, Seq, Step, install

SHORT = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def answer_traced(values: Mapping[str, Any]) -> dict[str, Any]:
    """`chip predict --trace`: the answer for a model of any architecture, operators taken from HF's own forward. The
    engine's schedule and memory rules, its terms and those of the host are as in any other answer."""
    question = complete(values)
    system = {**SYSTEM, **question}
    batch, prompt, output = (count_of(question, name) for name in BATCH)
    s = Scenario(batch, prompt, output, "bf16" if question["dtype"] == AUTO else question["dtype"])
    if any(count_of(question, name) > 1 for name in ("tp", "pp", "ep")):
        raise ChipError("--trace follows one GPU's forward pass; leave --tp, --pp and --ep at 1")
    if refused := [name for name in ("sdpa", "engine_version", "deep_gemm") if system[name]]:
        raise ChipError(f"--trace takes its operators from HF; --{refused[0].replace('_', '-')} does not change them")
    config, title = library.locate(question["model"])
    h, engine = gpus.find(question["gpu"]), engines.get(question["engine"])
    roof = roof_of(h)
    check_dtype(roof, f"matmul_{s.dtype}")
    options = engine.options(settings_of(system["engine_settings"]), roof.memory_bytes)
    where = (str(system["engine_profile"]), system["launch_ns"], str(system["host"]))
    measured = profile.find(h, engine.NAME, *where)
    terms = EngineTerms(*measured.terms) if measured else None
    model = build(config, s.dtype)
    estimator = Estimator(roof, None)
    steps = StepModel(TracedOperators(model, estimator), estimator, engine, options, engine.version(""), terms)
    prefill = steps.prefill(s)
    decode = steps.decode(s, prefill) if s.output > 1 else None
    room = _memory(model, s, engine.room(s, options), roof.memory_bytes)
    traced = f"operators traced from HF's {type(model).__name__}: {engine.NAME}'s own fusions are not applied"
    if not measured:
        traced += f"; no host or engine terms are known for {engine.NAME} on {h.name}"
    told = [*notes.of_sizes(s, roof, room, 0, engine), *notes.of_calibration(h), notes.of_ceilings(roof)]
    told += [engine.CAVEAT, traced]
    if measured and measured.host and (notes.waits(prefill) or (decode and notes.waits(decode))):
        told.append(notes.of_host(engine.NAME, measured))
    host = ""
    if measured:
        host = hosts.REFERENCE if measured.host else str(system["host"]) or "own"
    about = {"model": title, "gpu": question["gpu"], "engine": engine.NAME, "host": host}
    ridge = roof.ridge(f"matmul_{s.dtype}")
    s = s.stored_as(s.dtype, s.dtype)
    tpot_s = request_tpot_s(prefill, decode, s) if decode else None
    told = [note for note in told if note]
    return Prediction(about, s, prefill, decode, ridge, roof.power, room, told, request_tpot_s=tpot_s).json()


class TracedOperators(TimedOperators):
    """The operators of steps, from HF's forward pass, without a description of the model."""

    def __init__(self, model: Any, estimator: Estimator) -> None:
        self.model, self.estimator = model, estimator
        self._programs: dict[Step, ProgramTimes] = {}

    def runs(self, steps: Weighted, prompt: int = 0) -> list[StepGroup]:
        return [StepGroup(step, weight, (), step.rows, step.tokens, 0.0) for step, weight in steps]

    def time(self, run: StepGroup) -> TimedStep:
        if run.step not in self._programs:
            self._programs[run.step] = self._program(run.step)
        return TimedStep(run, self._programs[run.step], (), NOTHING)

    def _program(self, step: Step) -> ProgramTimes:
        """A block for each role: its mean call, at a few contexts that stand for all."""
        by_role: dict[tuple[str, str], list[tuple[OperatorTime, float]]] = {}
        for seqs, part in _walked(step):
            for call, count in of_sequences(self.model, seqs).items():
                by_role.setdefault((call.role, call.op.kind), []).append((self.estimator.time(call.op), part * count))
        blocks: list[CallBlock] = []
        times: list[OperatorTime] = []
        for (role, kind), answers in by_role.items():
            count = max(1, round(sum(n for _, n in answers)))
            launches = RoleLaunches((role,), (ops.get(kind).KERNELS,))
            blocks.append(CallBlock(count, (kind,), launches, [len(times)]))
            times.append(weighted_sum([(answer, n / count) for answer, n in answers]))
        return ProgramTimes.of(Shape(blocks), times)


def _walked(step: Step) -> list[tuple[tuple[Seq, ...], float]]:
    """The sequences of a decode step at a few contexts, each with its share of the steps that it stands for."""
    if step.steps == 1:
        return [(step.seqs, 1.0)]
    (seq,) = step.seqs
    return [((seq._replace(past=past),), part) for past, part in decode_contexts(seq.past, step.steps)]


def _memory(model: Any, s: Scenario, room: Room, capacity_bytes: float) -> dict[str, Any]:
    """Weights and cache from the model itself, the rest by the engine's rules; activations are not traced."""
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    per_token = kv_bytes_per_token(model)
    kv_sequence, usable = per_token * room.cache_tokens, capacity_bytes * room.share
    kv, beside = room.sequences * kv_sequence, weights + room.context_bytes + room.workspace_bytes
    most = int((usable - beside) // max(1, kv_sequence))
    return {
        "weights_bytes": weights,
        "kv_bytes_per_token": per_token,
        "kv_bytes": round(kv),
        "activation_bytes": round(room.workspace_bytes),
        "context_bytes": round(room.context_bytes),
        "total_bytes": round(beside + kv),
        "capacity_bytes": round(capacity_bytes),
        "usable_bytes": round(usable),
        "fits": beside + kv <= usable,
        "max_batch": max(0, min(most, room.at_once or most)),
    }


def build(config: Path, dtype: str) -> Any:
    """The HF model of a config on the meta device."""
    try:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as e:
        raise ChipError(f"--trace needs {e.name}: {install('measure')}") from None
    full = {short: long for long, short in SHORT.items()}
    if dtype not in full:
        raise ChipError(f"--trace follows what torch runs and takes --dtype {', '.join(full)}, not {dtype}")
    try:
        where = config.parent if config.name == "config.json" else config
        hf = AutoConfig.from_pretrained(where, trust_remote_code=False, local_files_only=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(hf, dtype=getattr(torch, full[dtype]), trust_remote_code=False)
            return model.eval()
    except Exception as e:  # whatever transformers finds wrong with a config
        raise ChipError(f"{config}: transformers cannot build it ({str(e).strip().splitlines()[0][:160]})") from None


def of_sequences(model: Any, seqs: Sequence[Seq]) -> Counter[Call]:
    """What one forward of different sequences would run: their own attention, all else over all of their tokens."""
    if len(seqs) == 1:
        return calls(model, seqs[0])
    apart = [calls(model, seq) for seq in seqs]
    attention: Counter[Call] = Counter()
    for traced in apart:
        attention.update({call: n for call, n in traced.items() if isinstance(call.op, Attention)})
    if not attention:  # written out in products, which are not told apart from all others
        return sum(apart, Counter())
    together = calls(model, Seq(sum(s.new * s.count for s in seqs), 0, 1))
    return attention + Counter({call: n for call, n in together.items() if not isinstance(call.op, Attention)})


def calls(model: Any, seq: Seq) -> Counter[Call]:
    """What a forward of `seq.count` sequences of `seq.new` tokens after `seq.past` runs, and how often."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    counts: Counter[Call] = Counter()
    try:
        with torch.inference_mode():
            if seq.past:
                past = torch.zeros(seq.count, seq.past, dtype=torch.long, device="meta")
                model(past, use_cache=True, past_key_values=cache, logits_to_keep=1)
            ids = torch.zeros(seq.count, seq.new, dtype=torch.long, device="meta")
            with _roles(model) as role, _recorder(counts, role):
                model(ids, use_cache=True, past_key_values=cache, logits_to_keep=1)
    except Exception as e:  # a model may branch on values, which the meta device does not have
        raise ChipError(
            f"{type(model).__name__} cannot be traced on the meta device ({str(e).strip().splitlines()[0][:160]})"
        ) from None
    return counts


def kv_bytes_per_token(model: Any) -> float:
    """Cache bytes of one token, from a cache really filled."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.zeros(1, 8, dtype=torch.long, device="meta"), use_cache=True, past_key_values=cache)
    tensors = [getattr(layer, part, None) for layer in cache.layers for part in ("keys", "values")]
    return float(sum(t.numel() * t.element_size() for t in tensors if t is not None)) / 8


@contextmanager
def _roles(model: Any) -> Iterator[list[str]]:
    """A stack whose top names the module that runs, layer numbers left out."""
    stack = [""]
    hooks = []
    for name, module in model.named_modules():
        role = re.sub(r"\.\d+", "", name).removeprefix("model.").removeprefix("transformer.")
        hooks.append(module.register_forward_pre_hook(lambda *_, r=role: stack.append(r)))
        hooks.append(module.register_forward_hook(lambda *_: stack.pop() and None))
    try:
        yield stack
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def _recorder(counts: Counter[Call], role: list[str]) -> Iterator[None]:
    """Record attention where the model calls it, and everything else where it reaches a kernel."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    inside = [False]

    class Kernels(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            if not inside[0]:
                op = _operator(func, args, out)
                if op is not None:
                    counts[Call(f"{role[-1]}.{func.overloadpacket.__name__}".lstrip("."), op)] += 1
            return out

    class Attends(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is not torch.nn.functional.scaled_dot_product_attention:
                return func(*args, **(kwargs or {}))
            counts[Call(f"{role[-1]}.attention", _attention(*args, **(kwargs or {})))] += 1
            inside[0] = True
            try:
                return func(*args, **(kwargs or {}))
            finally:
                inside[0] = False

    with Attends(), Kernels():
        yield


def _attention(query: Any, key: Any, value: Any, attn_mask: Any = None, *_: Any, **__: Any) -> Attention:
    batch, heads, q_len, dim = query.shape
    v_dim = value.shape[3] if value.shape[3] != dim else 0
    # a mask or none, a cached decoder's attention is causal and aligned at the end
    return Attention(batch, heads, key.shape[1], dim, q_len, key.shape[2], True, 0, v_dim, _dtype(query))


def _dtype(tensor: Any) -> str:
    return SHORT.get(str(tensor.dtype).removeprefix("torch."), "fp32")


def _operator(func: Any, args: Any, out: Any) -> Op | None:
    """The operator an aten call stands for; None for views and bookkeeping, which launch nothing."""
    import torch

    if func.is_view or not isinstance(out, torch.Tensor):
        return None
    name = func.overloadpacket.__name__
    tensors = [a for a in torch.utils._pytree.tree_leaves(args) if isinstance(a, torch.Tensor)]
    a, b = args[1:3] if name in ("addmm", "baddbmm") else [*args, None, None][:2]
    if name in ("mm", "addmm"):
        return Linear(a.shape[0], b.shape[1], a.shape[1], _dtype(a), "", name == "addmm")
    if name in ("bmm", "baddbmm"):
        return Bmm(a.shape[0], a.shape[1], b.shape[2], a.shape[2], _dtype(a))
    if name == "linear":
        bias = len(args) > 2 and args[2] is not None
        return Linear(a.numel() // a.shape[-1], b.shape[0], a.shape[-1], _dtype(a), "", bias)
    if name == "matmul":
        if b.dim() == 2:  # a weight, read once for the whole batch
            return Linear(a.numel() // a.shape[-1], b.shape[1], a.shape[-1], _dtype(a))
        m, k, n = (a.shape[-2] if a.dim() > 1 else 1), a.shape[-1], (b.shape[-1] if b.dim() > 1 else 1)
        return Bmm(max(1, out.numel() // (m * n)), m, n, k, _dtype(a))
    if name == "embedding":
        return Embedding(out.numel() // out.shape[-1], out.shape[-1], _dtype(out))
    if name == "_grouped_mm" and a.dim() == 2 and b.dim() == 3:
        (rows, k), (experts, _, n) = a.shape, b.shape
        touched = max(1, round(experts * (1 - (1 - 1 / experts) ** rows)))  # each row goes to any expert alike
        return Bmm(touched, -(-rows // touched), n, k, _dtype(a))
    if name in ("softmax", "_softmax"):
        return Softmax(out.numel() // out.shape[-1], out.shape[-1], _dtype(out))
    if name in ("empty", "empty_like", "empty_strided", "new_empty", "detach", "_unsafe_view", "lift_fresh"):
        return None
    return Pointwise(sum(t.numel() for t in tensors), out.numel(), _dtype(out))
