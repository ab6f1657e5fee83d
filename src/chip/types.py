"""The nouns of CHIP: small immutable values in SI units. They import nothing of the package but `records`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple


class ChipError(Exception):
    """Something the user can mend. Its text is the one line they see: what is wrong, where, and the remedy."""


def install(extra: str) -> str:
    """The remedy where an optional part of CHIP is missing. CHIP is on no index: it is installed from its checkout."""
    return f"pip install '.[{extra}]' in CHIP's checkout"


DISTURBED = "disturbed: "  # begins a flag of what another process slowed


class Cost(NamedTuple):
    """Work of one operator call: every input read once, every output written once."""

    flops: float
    read_bytes: float
    write_bytes: float

    @property
    def bytes(self) -> float:
        return self.read_bytes + self.write_bytes

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes if self.bytes else 0.0

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(self.flops + other.flops, self.read_bytes + other.read_bytes, self.write_bytes + other.write_bytes)


class Seq(NamedTuple):
    """`count` sequences, each with `new` tokens to compute after `past` tokens already in its cache."""

    new: int
    past: int
    count: int = 1  # type: ignore[assignment]  # instead of the method of every tuple
    slots: int = 0  # places of a cache of fixed size; 0: as many as tokens


class Step(NamedTuple):
    """One forward pass, be it prefill, decode, chunked or mixed."""

    seqs: tuple[Seq, ...]
    pad_tokens: int = 0  # tokens computed for nothing, because a CUDA graph has a fixed size
    graph: bool = False
    prompts: bool = False  # whole ones, which run as such even where they are of one token
    steps: int = 1  # in a row of decode steps, of which this is the first: it stands for their mean

    @property
    def tokens(self) -> int:
        tokens = self.pad_tokens
        for new, _, count, _ in self.seqs:
            tokens += new * count
        return tokens

    @property
    def routed_tokens(self) -> int:
        """Tokens that choose experts of their own: padding is one token repeated, which always chooses the same."""
        return self.tokens - self.pad_tokens + (1 if self.pad_tokens else 0)

    @property
    def decode(self) -> bool:
        """Whether every sequence has one new token, and is not run as a prompt."""
        return not self.prompts and max([s.new for s in self.seqs]) == 1

    @property
    def rows(self) -> int:
        """Sequences in the step: each gives one row of logits."""
        return sum([s.count for s in self.seqs])


class Op:
    """An operator call. Subclasses are frozen dataclasses whose fields are the axes; see `chip.ops`."""

    __slots__ = ()
    kind: ClassVar[str]
    TOKEN_AXIS: ClassVar[int] = 0  # which field grows with the tokens of a step
    KERNELS: ClassVar[int] = 1  # launched for one call
    ON_CPU: ClassVar[type[Any] | None] = None  # the form of its base time there, the plain roofline where None
    OF_SEQUENCES: ClassVar[bool] = False  # stands in a program without its sequences, until `over` says which
    ROUTED: ClassVar[bool] = False  # takes the tokens that choose experts of their own
    WARM: ClassVar[bool] = False  # what it reads are activations, still in cache from the kernel before
    BY_FORMAT: ClassVar[bool] = False  # each number format has kernels of its own, which have little in common
    LEDGER: ClassVar[str] = "pointwise"  # the class of its kernels (`chip.ledger`)

    def cost(self) -> Cost:
        raise NotImplementedError

    @classmethod
    def base_class(cls, kernel: str) -> type[Any] | None:
        """The form of a kernel's base time (`chip.ops.BaseTime`); None for the plain roofline."""
        return None

    def place(self) -> tuple[float, ...]:
        """Where it lies among measured points of its kind: 1 apart is clearly different. Empty: by its base alone."""
        return ()

    def kernel_of(self, implementation: str) -> str:
        """The kernel that an implementation runs at these sizes, where it has several."""
        return implementation

    def like_measured(self) -> Op | None:
        """The operator that measured points tell its time by, mostly itself; None where none do."""
        return self

    def parts(self) -> tuple[Op, ...]:
        """The kernels it launches, in order, where its cost is theirs; () where it is its own."""
        return ()

    def over(self, seq: Seq) -> Op:
        """The same for sequences, where it is asked for by those."""
        raise NotImplementedError

    def placing(self, is_measured: Callable[[Op], bool]) -> Callable[[Seq], Op]:
        """`over` as a GPU runs it, by what was measured there."""
        return self.over

    @property
    def compute(self) -> str:
        """Name of the compute ceiling this operator runs under: that of the vector units."""
        return "matmul_fp32"

    @property
    def counted_flops(self) -> float:
        """What torch's FLOP counter sees: matrix products, causal attention not halved."""
        return 0


class MatrixProduct(Op):
    """An operator whose FLOPs are those of matrix products: they draw the power of matrix units."""

    __slots__ = ()
    dtype: str

    @property
    def compute(self) -> str:
        return "matmul_" + self.dtype

    @property
    def counted_flops(self) -> float:
        return self.cost().flops


@dataclass(frozen=True, slots=True)
class Call:
    """An operator in a program, with the part it plays there (`q_proj`, `mlp_norm`, ...)."""

    role: str
    op: Op


@dataclass(frozen=True, slots=True)
class Block:
    repeat: int
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What one step runs: ordered blocks of operators, each block repeated."""

    blocks: tuple[Block, ...]

    def cost(self) -> Cost:
        total = Cost(0, 0, 0)
        for block in self.blocks:
            for call in block.calls:
                c = call.op.cost()
                n = block.repeat
                total += Cost(c.flops * n, c.read_bytes * n, c.write_bytes * n)
        return total

    @property
    def counted_flops(self) -> float:
        return sum(b.repeat * c.op.counted_flops for b in self.blocks for c in b.calls)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is asked: `batch` requests of `prompt` tokens, all submitted at once, `output` tokens each."""

    batch: int
    prompt: int
    output: int
    dtype: str = "bf16"
    tp: int = 1
    kv_dtype: str = "auto"  # of the KV cache: what the model's config says, else as the activations
    pp: int = 1  # stages of a pipeline, each with its share of the layers
    ep: int = 1  # GPUs that the experts of a layer lie on, each expert whole; 1: they are split as all else

    @property
    def replicas(self) -> int:
        """Of the attention, each on `tp` GPUs with requests of its own, over one set of experts."""
        return max(1, self.ep // self.tp)

    @property
    def gpus(self) -> int:
        return self.tp * self.pp * self.replicas

    @property
    def of_replica(self) -> Scenario:
        """What each replica has of it."""
        return self if self.ep <= self.tp else replace(self, batch=-(-self.batch // self.replicas))

    @property
    def sizes(self) -> tuple[int, int, int]:
        return self.batch, self.prompt, self.output

    @property
    def decode_steps(self) -> int:
        """After the first token, and one where there is none, so that a step can be asked for all the same."""
        return max(1, self.output - 1)

    def stored_as(self, dtype: str, kv_dtype: str) -> Scenario:
        """The same in other number formats."""
        return Scenario(self.batch, self.prompt, self.output, dtype, self.tp, kv_dtype, self.pp, self.ep)

    @property
    def name(self) -> str:
        return f"pp{self.prompt}+tg{self.output}xb{self.batch}"


GIVEN = "given on the command line"  # the source of a number that the asker knows


@dataclass(frozen=True, slots=True)
class Quoted:
    """A number somebody published."""

    value: float
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """An interconnect of one GPU to its peers, one direction."""

    bytes_per_s: Quoted
    latency_s: Quoted | None = None
    note: str = ""

    @property
    def given(self) -> bool:
        """By the asker, who knows it."""
        return self.bytes_per_s.source == GIVEN


@dataclass(frozen=True, slots=True)
class Chip:
    """The silicon that several products are made of: what was measured on one of them tells about the others."""

    name: str
    source: str


@dataclass(frozen=True, slots=True)
class HardwareSpec:
    """A datasheet: what the vendor promises, each number with its source, dense rates only."""

    SCHEMA: ClassVar[str] = "chip.hardware_spec/1"

    name: str
    title: str
    vendor: str
    architecture: str
    compute_capability: str
    units: Quoted
    boost_clock_hz: Quoted
    memory_bytes: Quoted
    l2_bytes: Quoted
    power_w: Quoted
    ceilings: dict[str, Quoted]
    links: dict[str, Link] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    usable_bytes: Quoted | None = None  # of the memory, what CUDA offers: ECC and the driver set some aside
    note: str = ""
    chip: Chip | None = None

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors, or what another vendor calls compute units. `units` is its name in files."""
        return round(self.units.value)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A measured number with its interval and how it was had."""

    value: float
    low: float
    high: float
    unit: str  # "FLOP/s", "B/s", "s", "J/FLOP", "J/B", "W", "Hz", "1"
    method: str
    samples: tuple[float, ...] = ()  # raw, in `unit`
    clock_hz: float | None = None  # median SM clock while it was measured
    watts: float | None = None
    celsius: float | None = None
    flags: tuple[str, ...] = ()  # "throttled 3/40", "time cap before 0.5 %", ...


@dataclass(frozen=True, slots=True)
class Curve:
    """A measured function, as plain arrays."""

    x_name: str
    x_unit: str
    y_name: str
    y_unit: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    method: str


@dataclass(frozen=True, slots=True)
class HardwareProfile:
    """What a device really does, measured by `chip calibrate`. The host's share lies in `HostProfile`.

    Ceilings: matmul_<dtype> (boost) and matmul_<dtype>_settled, hbm_read, hbm_write, hbm_fill, hbm_copy,
    hbm_mix_<r>to<w>, l2_read, l2_knee (B), h2d_pinned, d2h_pinned, launch_graph (on a CPU launch_stream).
    """

    SCHEMA: ClassVar[str] = "chip.hardware_profile/1"

    name: str
    device: str  # as the driver calls it
    kind: str  # "cuda" or "cpu"
    spec: str  # bundled datasheet it is compared with; "" when there is none
    units: int
    memory_bytes: int
    l2_bytes: int
    ceilings: dict[str, Ceiling]
    curves: dict[str, Curve] = field(default_factory=dict)
    factors: dict[str, Ceiling] = field(default_factory=dict)  # realistic / ideal
    power: dict[str, Ceiling] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # what was not measured, and why
    # by kind: what its file of points would hold (`chip.hardware.points`), of a few sizes
    operators: dict[str, tuple[str, ...]] = field(default_factory=dict)
    flags: tuple[str, ...] = ()  # "disturbed: ...": what makes all of it doubtful

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors, or cores of a CPU. `units` is its name in files."""
        return self.units


@dataclass(frozen=True, slots=True)
class HostProfile:
    """Dispatch, launch and synchronisation of one host: not the GPU's property, so never inside a GPU's profile.

    Terms: dispatch (one framework operator, seconds), launch (one kernel from the host), launch_stream and
    launch_replay (period of tiny kernels and graphs, fetched from host memory), sync, alloc, and the rates
    h2d_pageable and d2h_pageable (B/s), which its own copies to staging buffers bound.
    """

    SCHEMA: ClassVar[str] = "chip.host_profile/1"

    name: str
    cpu: str
    terms: dict[str, Ceiling]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One operator call, measured. `ok` has samples, anything else has a reason."""

    SCHEMA: ClassVar[str] = "chip.measurement/1"

    op: dict[str, int | str | bool | float]  # {"op": kind, axis: value, ...}
    implementation: str  # "torch", "flash", "cudnn", ...
    context: str  # "cold", "hot", "graph", "host", "layer"
    status: str  # "ok", "skipped", "failed"
    reason: str = ""
    samples_ns: tuple[int, ...] = ()
    method: str = ""
    clock_hz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    flags: tuple[str, ...] = ()
    device: str = ""
