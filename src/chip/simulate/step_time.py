"""What one step of the engine takes, from the same predictor as `chip predict`. The only file of the simulator that
knows the predictor: everything else goes through `StepTimes`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from chip import engine_profile, hardware
from chip.engines import vllm
from chip.models.decoder import Decoder
from chip.predict import memory
from chip.predict.compose import Composer, Phase
from chip.predict.overheads import SOURCE, WAITING, together
from chip.predict.request import composer
from chip.predict.roof import Power, Range, Roof
from chip.types import ChipError, Scenario, Seq, Step

BEFORE = "before_first_step"
GRAPH_TOKENS = vllm.GRAPH_TOKENS  # sizes of the engine's CUDA graphs
BLOCK_TOKENS = vllm.BLOCK_TOKENS


def default_limits(memory_bytes: float) -> tuple[int, int]:
    """max_num_seqs and max_num_batched_tokens of the offline class on a GPU of this size."""
    return vllm.max_seqs(memory_bytes), vllm.step_tokens(memory_bytes)


class Host(NamedTuple):
    """The host's part of a step: it prepares the step, then launches it; the device can work while it launches."""

    prepare_s: float
    launch_s: float
    one_by_one: bool  # kernels are launched one by one, not as graphs


class Spread(NamedTuple):
    """A factor's 90 % interval around 1."""

    low: float
    high: float


class StepTimes(Protocol):
    """All that the simulator asks of a predictor."""

    @property
    def max_context(self) -> int: ...
    @property
    def memory_bytes(self) -> float: ...
    @property
    def kv_capacity_tokens(self) -> int: ...
    def seconds(self, step: Step) -> float: ...
    def device_s(self, step: Step) -> float: ...
    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host: ...
    def request_s(self, prompt: int) -> float: ...
    def wake_s(self) -> float: ...
    def rested(self, step: Step) -> float: ...
    def joules(self, step: Step) -> float | None: ...
    def idle_w(self) -> float | None: ...
    def spread(self, step: Step) -> Spread: ...
    def host_spread(self) -> Spread: ...


def step(seqs: tuple[Seq, ...]) -> Step:
    """One step as vLLM runs it: padded to the next graph size where one is large enough."""
    tokens = sum(s.new * s.count for s in seqs)
    return Step(seqs, vllm.padded(tokens) - tokens, tokens <= vllm.GRAPH_TOKENS[-1])


def end_of(start_s: float, host_end_s: float, device_s: float, one_by_one: bool) -> float:
    """When the device has done a step that it can start at `start_s` while the host launches until `host_end_s`."""
    launching_s = host_end_s - start_s
    if launching_s <= 0:
        return start_s + device_s
    return start_s + (together(launching_s, device_s) if one_by_one else max(launching_s, device_s))


@dataclass(frozen=True)
class Predicted:
    """`StepTimes` of today's predictor."""

    composer: Composer
    roof: Roof
    terms: dict[str, tuple[float, float, float]]  # value, low, high
    model: str
    layers: int
    max_context: int
    memory_bytes: float
    kv_capacity_tokens: int

    def _phase(self, step: Step) -> Phase:
        return self.composer.phase(((step, 1.0),))

    def device_s(self, step: Step) -> float:
        return sum(line.seconds for line in self._phase(step).lines if line.role not in (WAITING, BEFORE))

    def host(self, rows: int, tokens: int, decode: bool, graph: bool) -> Host:
        prepare = self._term("host_step_s") + rows * self._term("host_seq_s")
        if graph:
            pieces = 0.0 if decode else self.layers * self._term("host_layer_graph_s")
            return Host(prepare, pieces, False)
        c = self.composer
        kernels = (c.decode_body if decode else c.prefill_body).kernels + c.head.kernels
        return Host(prepare, kernels * self._term("host_kernel_s"), True)

    def seconds(self, step: Step) -> float:
        """One step alone, with all the host does for it: what the device takes after it was prepared."""
        decode = all(s.new == 1 for s in step.seqs)
        host = self.host(step.rows, step.tokens, decode, step.graph)
        return end_of(host.prepare_s, host.prepare_s + host.launch_s, self.device_s(step), host.one_by_one)

    def request_s(self, prompt: int) -> float:
        return self._term("request_s") + prompt * self._term("token_s")

    def wake_s(self) -> float:
        """Before the first step after the engine had nothing to do. The predictor's term was measured until the first
        token was in the caller's hands, and so has the step that the host prepares before it takes that token: the
        simulated host prepares that step itself."""
        return max(0.0, self._term("first_s") - self._term("host_step_s"))

    def rested(self, step: Step) -> float:
        """The device's time of a step on a GPU that had nothing to do, over that under load: clocks are higher."""
        seqs = sum(s.count for s in step.seqs)
        asked = Scenario(seqs, max(1, step.tokens // seqs), 2, tp=self.composer.tp)
        loaded, fresh = (_operators_s(self.composer.phase(((step, 1.0),), a)) for a in (None, asked))
        return fresh / loaded

    def joules(self, step: Step) -> float | None:
        """Of one GPU above idle: products and bytes of a step."""
        power = self._power()
        if power is None:
            return None
        found = self._phase(step)
        zero = Range(0.0, 0.0, 0.0)
        return power.joules(self.composer.precision.matmul, zero, found.matmul_flops, found.bytes).value

    def idle_w(self) -> float | None:
        power = self._power()
        return power.idle_w.value if power else None

    def _power(self) -> Power | None:
        return self.roof.power

    def spread(self, step: Step) -> Spread:
        """Of the device's part."""
        found = self._phase(step)
        return Spread(found.low_s / found.seconds, found.high_s / found.seconds)

    def host_spread(self) -> Spread:
        value, low, high = self.terms.get("host_step_s", (0.0, 0.0, 0.0))
        return Spread(low / value, high / value) if value else Spread(1.0, 1.0)

    def _term(self, name: str) -> float:
        return self.terms.get(name, (0.0, 0.0, 0.0))[0]


def _operators_s(phase: Phase) -> float:
    return sum(line.seconds for line in phase.lines if line.source != SOURCE)


def step_times(decoder: Decoder, gpu: str, engine: str, dtype: str, tp: int, launch_ns: float = 0.0) -> StepTimes:
    """The predictor of one model on one kind of GPU; a ChipError where the engine has no scheduler to simulate or the
    model does not fit. `launch_ns`: what the host takes to launch a small kernel, 0 for the host of the terms."""
    if engine != vllm.NAME:
        raise ChipError(f"engine {engine[:40]!r} cannot be simulated: only {vllm.NAME} has a scheduler of live traffic")
    made, roof = composer(decoder, gpu, engine, dtype, tp)
    room = memory.needs(decoder, Scenario(1, 1, 1, dtype, tp), engine, made.precision, roof.memory_bytes)
    capacity = int(str(room["kv_capacity_tokens"]))
    if capacity < vllm.BLOCK_TOKENS:
        weights = int(str(room["weights_bytes"]))
        raise ChipError(
            f"{decoder.name} does not fit {tp} x {gpu}: weights take {weights / 2**30:.1f} GiB of a GPU's "
            f"{roof.memory_bytes / 2**30:.1f} GiB and leave no room for a KV cache; take a larger GPU, more --tp, or a "
            "smaller --dtype"
        )
    h = hardware.find(gpu)
    found = engine_profile.find(h, engine)
    if found and launch_ns and found.launch_ns:
        terms = engine_profile.at_pace(found, decoder.architecture, launch_ns)
    else:
        terms = engine_profile.elsewhere(found.terms_of(decoder.architecture)) if found else {}
    return Predicted(
        made,
        roof,
        {name: (t.value, t.low, t.high) for name, t in terms.items()},
        decoder.name,
        made.layers,
        decoder.max_context,
        roof.memory_bytes,
        capacity,
    )
