"""Speculative decoding: what drafting and verifying cost, and from which acceptance on they pay.

A step drafts k tokens for each sequence and verifies all of them, and one more, in one pass of the model; those after
the first that is wrong were computed for nothing. Drafts come from the prompt (`ngram`, on the CPU), from a small model
(`draft`), or from layers that read the model's own states (`eagle3`: one dense layer and a vocabulary of 32,000; `mtp`:
one of the model's layers). Nothing of it was measured for CHIP: passes are timed like any step, and the interval is
wide.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from chip import engines
from chip.decoders.decoder import Decoder, Mlp, Moe
from chip.files import artifact
from chip.predictor import request
from chip.question import Question, decoder_of
from chip.simulator.setup import surface_of
from chip.simulator.surface import Surface
from chip.types import ChipError, Seq

METHODS = ("ngram", "draft", "eagle3", "mtp")
PUBLISHED = Path(__file__).resolve().parents[1] / "data" / "acceptance.json"
MOST_TOKENS = 16
EAGLE_VOCAB, EAGLE_STATES = 32_000, 3  # of a head's own output matrix, and states of the model that it reads
# What preparing a pass and launching its graph takes of the host's part of a step: 0.96 of 1.63 ms in the record of
# Llama-3.2-1B behind a server, one user (results/h200/traffic/server)
PASS_SHARE = 0.59
UNMEASURED = (0.85, 1.3)  # how far off a step may be beside what its parts say: nobody measured one
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Speculation:
    """What is drafted, and how much of it is accepted."""

    method: str
    tokens: int  # drafted for each sequence in a step
    lengths: tuple[float, ...] = ()  # published: tokens a step with 1, 2, ... drafted
    accept: float = 0.0  # that a drafted token is right if those before it are
    model: str = ""  # that drafts
    source: str = "as given"

    @property
    def tokens_a_step(self) -> float:
        """In the mean, with the one that verifying always gives."""
        return self.lengths[self.tokens - 1] if self.lengths else expected(self.accept, self.tokens)


@dataclass(frozen=True, slots=True)
class SpeculatedStep:
    """One batch, in seconds."""

    batch: int
    plain_s: float  # a step that gives one token
    draft_s: float
    verify_s: float
    host_s: float
    step_s: float
    low_s: float
    high_s: float
    tokens: float  # a step gives for each sequence
    pays_from: float | None  # acceptance of a drafted token; None where none is enough

    @property
    def tpot_s(self) -> float:
        return self.step_s / self.tokens

    @property
    def speedup(self) -> float:
        return self.plain_s / self.tpot_s

    def json(self) -> dict[str, Any]:
        parts = {f"{name}_ms": 1e3 * getattr(self, f"{name}_s") for name in ("draft", "verify", "host", "step")}
        spans = {"tpot_ms": 1e3 * self.tpot_s, "plain_tpot_ms": 1e3 * self.plain_s, "speedup": self.speedup}
        interval = [self.plain_s * self.tokens / end for end in (self.high_s, self.low_s)]
        return {"batch": self.batch, **parts, **spans, "speedup_interval": interval, "pays_from": self.pays_from}


def expected(accept: float, tokens: int) -> float:
    """Tokens of a step where each drafted one is right with the same chance, if those before it are."""
    return sum(accept**i for i in range(tokens + 1))


@cache
def published() -> dict[str, dict[str, dict[str, Any]]]:
    return dict(json.loads(artifact.read_text(PUBLISHED)))


def parse(text: str) -> Speculation:
    """`eagle3:k=3,task=coding`, `draft:model=llama-3.2-1b,k=4,accept=0.7`."""
    method, _, rest = text.partition(":")
    if method not in METHODS:
        form = "then a colon and its values, as in eagle3:k=3,accept=0.7"
        raise ChipError(f"--speculative {text[:60]!r}: must begin with {', '.join(METHODS)}, {form}")
    values: dict[str, str] = {}
    for word in (w for w in rest.split(",") if w):
        key, equals, value = word.partition("=")
        if not equals or key not in ("k", "accept", "task", "model"):
            raise ChipError(f"--speculative {text[:60]!r}: {word[:30]!r} must be k=, accept=, task= or model=")
        values[key] = value
    if (method == "draft") != ("model" in values):
        raise ChipError("--speculative draft:model=NAME names the model that drafts; the others have none")
    k = values.get("k", "1" if method == "mtp" else "3")
    if not k.isdecimal() or not 1 <= int(k) <= MOST_TOKENS:
        raise ChipError(f"--speculative: k must be a whole number from 1 to {MOST_TOKENS}, got {k[:20]!r}")
    about = Speculation(method, int(k), model=values.get("model", ""))
    if "accept" in values:
        return replace(about, accept=_chance(values["accept"]))
    return _of_task(about, values.get("task", ""))


def _chance(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ChipError(f"--speculative: accept must be between 0 and 1, got {text[:20]!r}")
    return value


def _of_task(about: Speculation, task: str) -> Speculation:
    tasks = published().get(about.method, {})
    if task not in tasks:
        known = f"task={'|'.join(tasks)} or " if tasks else ""
        raise ChipError(
            f"--speculative {about.method}: give {known}accept=, the share of drafted tokens that are right"
        )
    found = tasks[task]
    if "accept" in found:
        return replace(about, accept=float(found["accept"]), source=found["source"])
    if about.tokens > len(found["lengths"]):
        raise ChipError(f"--speculative: {task} is published up to k={len(found['lengths'])}; give accept=")
    return replace(about, lengths=tuple(found["lengths"]), source=found["source"])


def speculated(q: Question, of: Speculation, context: int, batches: Sequence[int] = BATCHES) -> list[SpeculatedStep]:
    """Of several batches at a mean context. `q`: without `auto`."""
    drafts = engines.get(q.engine).DRAFTS
    if of.method not in drafts:
        raise ChipError(f"--speculative {of.method} is not predicted for {q.engine}; choose --engine vllm")
    if q.pp > 1:
        raise ChipError("--speculative is not predicted with --pp")
    surface, drafting = surface_of(replace(q, engine_settings=())), _drafting(q, of)
    return [_step(surface, drafting, of, batch, context, drafts[of.method]) for batch in batches]


def _drafting(q: Question, of: Speculation) -> Surface | None:
    """The steps of what drafts; None where no GPU does."""
    if of.method == "ngram":
        return None
    if of.method == "draft":
        model = decoder_of(of.model)
        formats = Question(model, q.gpu, q.engine, tp=q.tp).with_formats()
    elif of.method == "eagle3":
        formats = Question(_one_layer(q.model, EAGLE_VOCAB, dense=True), q.gpu, q.engine, "bf16", "", q.tp)
    else:
        formats = replace(q, model=_one_layer(q.model, q.model.vocab, dense=False), ep=1, engine_settings=())
    return surface_of(replace(formats, host=q.host, launch_ns=q.launch_ns))


def _one_layer(d: Decoder, vocab: int, dense: bool) -> Decoder:
    layer = d.layers[-1][1]
    if dense:
        intermediate = layer.mlp.intermediate if isinstance(layer.mlp, Mlp) else 4 * d.hidden
        layer = replace(layer, mlp=Mlp(intermediate), formats=())
        return replace(d, layers=((1, layer),), vocab=vocab, quantization="", dtype="bf16", head_format=None)
    if isinstance(layer.mlp, (Mlp, Moe)):
        return replace(d, layers=((1, layer),), vocab=vocab)
    raise ChipError(f"{d.name}: its last layer cannot draft")


def _step(
    target: Surface, drafting: Surface | None, of: Speculation, batch: int, context: int, ahead: bool
) -> SpeculatedStep:
    """`ahead`: whether the engine schedules the next step while the device works on this one."""
    k, times = of.tokens, target.times
    work = target.mixed(0, 0.0, [(k + 1, context)] * batch)
    rows = times.head(batch * (k + 1)).seconds - times.head(batch).seconds  # every drafted token has logits
    settled = times.settling.settled if times.settling else 1.0
    verify_s = work.seconds + (settled - 1) * work.held_s + rows
    plain, host = target.decode(batch, context), target.host(batch, batch, True)
    pass_s = 0.0
    if drafting:
        joined = _states_bytes(times.steps.operators.decoder, of.method) / times.roof.memory
        pass_s = drafting.decode(batch, context).seconds + joined
    draft_s, passes = k * pass_s, (k if drafting else 0)
    host_s = host.prepare_s + passes * PASS_SHARE * times.host_step_s
    device_s = draft_s + verify_s
    step_s = max(device_s, host_s) if ahead else device_s + host_s
    slow = times.host_spread()
    spread = times.spread(times.step((Seq(k + 1, context, batch),)))
    ends = [
        max(device_s * end, host_s * own) if ahead else device_s * end + host_s * own
        for end, own in zip((spread.low * UNMEASURED[0], spread.high * UNMEASURED[1]), slow)
    ]
    plain_s = max(plain.seconds, host.prepare_s)
    return SpeculatedStep(
        batch, plain_s, draft_s, verify_s, host_s, step_s, ends[0], ends[1], of.tokens_a_step,
        pays_from(step_s / plain_s, k),
    )  # fmt: skip


def _states_bytes(d: Decoder, method: str) -> float:
    """Weights that join the model's states to the embedding, beside the layer: read in every pass."""
    return {"eagle3": (EAGLE_STATES + 1) * d.hidden**2 * 2.0, "mtp": 2 * d.hidden**2 * 2.0}.get(method, 0.0)


def pays_from(longer: float, tokens: int) -> float | None:
    """The acceptance at which a step that takes so many times as long gives as many tokens more."""
    if longer > tokens + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if expected(middle, tokens) >= longer else (middle, high)
    return high


def document(q: Question, of: Speculation, steps: Sequence[SpeculatedStep], context: int) -> dict[str, Any]:
    model_bytes = _draft_bytes(q, of)
    return {
        "method": of.method, "tokens": of.tokens, "model": of.model, "accept": of.accept or None,
        "tokens_a_step": of.tokens_a_step, "rejected": 1 - (of.tokens_a_step - 1) / of.tokens, "source": of.source,
        "context": context, "draft_bytes": model_bytes, "steps": [step.json() for step in steps],
        "note": "no speculative step was measured: passes are timed like any step, the host's part of a draft pass "
        "from one record; memory and prefill are of the model alone",
    }  # fmt: skip


def _draft_bytes(q: Question, of: Speculation) -> int:
    """What the drafting model's weights take of each GPU; 0 where it is no model of its own."""
    if of.method != "draft":
        return 0
    drafting = Question(decoder_of(of.model), q.gpu, q.engine, tp=q.tp).with_formats()
    return int(request.room(drafting, drafting.scenario(1, 1, 1))["weights_bytes"])
