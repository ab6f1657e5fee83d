"""What a decoder-only model is made of, as data. A family's file turns an HF config into a `Decoder`; `lower` turns a
`Decoder` and a step into the operators that run. Parameter counts follow from the same description."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from chip.decoders import roles
from chip.decoders.compressed import CompressedAttn
from chip.decoders.encoder import Encoder
from chip.decoders.extras import Extra
from chip.decoders.formats import UNIFORM, Matrix, WeightFormat
from chip.decoders.states import StateMixer
from chip.dtypes import BYTES, Precision


@dataclass(frozen=True, slots=True)
class Attn:
    """Multi-head, grouped-query or multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    qkv_bias: bool = False
    out_bias: bool = False
    fused_qkv: bool = False  # the checkpoint holds one matrix for q, k and v
    rope_dim: int = 0  # values of each head that are rotated; 0: no rotary embedding
    qk_norm: str = ""  # "head": over each head's values; "full": over all heads' values; "": none
    qk_norm_params: int = 1  # vectors of each q/k norm (1: RMS, 2: layer norm with bias)
    qk_norm_per_head_weights: bool = False  # a norm weight for each head of its own (Cohere)
    sinks: bool = False  # one learned sink logit per head (gpt-oss)
    # outputs of a layer whose sigmoid multiplies the attention's output: each head or each value; 0: none
    gate: int = 0
    v_dim: int = 0  # values of a head where they are not as wide as keys
    q_rank: int = 0  # queries go through a normed latent of this rank (Step 3); 0: directly
    # Where keys and values come from. "": of its own. "tied": values are the keys before their norm (Gemma 4).
    # "shared": the cache of an earlier layer (Gemma 3n, cross-layer attention). "both": its own under the window, and
    # the whole cache of an earlier layer (LoopCoder).
    source: str = ""
    chunked: bool = False  # `window` is a chunk: a token sees those of its chunk (Llama 4)
    in_dim: int = 0  # width of its input where it is not the layer's (Zamba 2)
    index_heads: int = 0  # an indexer chooses the keys that are seen (MiniMax M3)
    index_dim: int = 0
    index_keys: int = 0

    @property
    def outputs(self) -> dict[str, int]:
        """Of the projections of the layer's input, by role."""
        q, kv = self.q_rank or self.heads * self.head_dim, self.kv_heads * self.head_dim
        v = self.kv_heads * (self.v_dim or self.head_dim)
        if self.fused_qkv:
            return {roles.QKV_PROJ: q + kv + v}
        found = {roles.Q_DOWN if self.q_rank else roles.Q_PROJ: q}
        if self.source != "shared":
            found[roles.K_PROJ] = kv
        if self.source not in ("shared", "tied"):
            found[roles.V_PROJ] = v
        return found

    @property
    def index_outputs(self) -> dict[str, int]:
        heads, dim = self.index_heads, self.index_dim
        return {"index_q": heads * dim, "index_k": dim} if heads else {}

    def params(self, hidden: int) -> int:
        total = sum(m.n * m.k for m in self.matrices(hidden)) + self.norm_params()
        if self.qkv_bias:
            total += sum(self.outputs.values())
        if self.out_bias:
            total += hidden
        return total + (self.heads if self.sinks else 0)

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        for role, n in (self.outputs | self.index_outputs).items():
            yield Matrix(role, n, self.in_dim or hidden)
        if self.q_rank:
            yield Matrix(roles.Q_UP, self.heads * self.head_dim, self.q_rank)
        if self.gate:
            yield Matrix("attn_gate", self.gate, hidden)
        yield Matrix(roles.O_PROJ, hidden, self.heads * (self.v_dim or self.head_dim))

    def norm_params(self) -> int:
        more = self.q_rank + 2 * self.index_dim
        if not self.qk_norm:
            return more
        if self.qk_norm == "full" or self.qk_norm_per_head_weights:
            return more + self.qk_norm_params * (self.heads + self.kv_heads) * self.head_dim
        return more + self.qk_norm_params * (1 if self.source == "shared" else 2) * self.head_dim

    def kv_values(self, latent: bool) -> int:
        own = self.kv_heads * (self.head_dim + (self.v_dim or self.head_dim))
        return 0 if self.source == "shared" else own


@dataclass(frozen=True, slots=True)
class LatentAttn:
    """Multi-head latent attention (DeepSeek): queries and keys/values go through low-rank latents."""

    heads: int
    q_rank: int  # 0: queries are projected directly
    kv_rank: int
    nope_dim: int
    rope_dim: int
    v_dim: int
    bias: bool = False  # of the down-projections and the output
    window: int = 0
    # an indexer (DeepSeek V3.2) scores all keys with small heads, and attention sees the best `index_keys` of them
    index_heads: int = 0
    index_dim: int = 0
    index_keys: int = 0

    @property
    def qk_dim(self) -> int:
        return self.nope_dim + self.rope_dim

    def params(self, hidden: int) -> int:
        q_out = self.heads * self.qk_dim
        q = hidden * self.q_rank + self.q_rank + self.q_rank * q_out if self.q_rank else hidden * q_out
        kv_down = hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        kv_up = self.kv_rank * self.heads * (self.nope_dim + self.v_dim)
        biases = self.q_rank + self.kv_rank + self.rope_dim + hidden if self.bias else 0
        index = sum(m.n * m.k for m in self.index_matrices(hidden)) + 2 * self.index_dim
        return q + kv_down + kv_up + self.heads * self.v_dim * hidden + biases + index

    def index_matrices(self, hidden: int) -> Iterator[Matrix]:
        if self.index_heads:
            yield Matrix("index_q", self.index_heads * self.index_dim, self.q_rank or hidden)
            yield Matrix("index_k", self.index_dim, hidden)
            yield Matrix("index_weights", self.index_heads, hidden)

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        if self.q_rank:
            yield Matrix(roles.Q_DOWN, self.q_rank, hidden)
        yield Matrix(roles.Q_UP if self.q_rank else roles.Q_PROJ, self.heads * self.qk_dim, self.q_rank or hidden)
        yield Matrix(roles.KV_DOWN, self.kv_rank + self.rope_dim, hidden)
        yield Matrix(roles.KV_UP, self.heads * (self.nope_dim + self.v_dim), self.kv_rank)
        yield from self.index_matrices(hidden)
        yield Matrix(roles.O_PROJ, hidden, self.heads * self.v_dim)

    def norm_params(self) -> int:
        return self.q_rank + self.kv_rank + 2 * self.index_dim

    def kv_values(self, latent: bool) -> int:
        """A cache holds the latent (absorbed attention) or every head's keys and values."""
        indexed = self.index_dim // 2 + 2 if self.index_dim else 0  # in 8 bits, with a scale
        return self.kv_rank + self.rope_dim + indexed if latent else self.heads * (self.qk_dim + self.v_dim)


@dataclass(frozen=True, slots=True)
class Mlp:
    intermediate: int  # 0: the layer has none
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    fused_gate_up: bool = False  # the checkpoint holds one matrix for gate and up

    def params(self, hidden: int) -> int:
        up = (2 if self.gated else 1) * self.intermediate
        return hidden * (up + self.intermediate) + (up + hidden if self.bias else 0)

    def matrices(self, hidden: int, prefix: str = "") -> Iterator[Matrix]:
        if self.gated and self.fused_gate_up:
            yield Matrix(prefix + roles.GATE_UP_PROJ, 2 * self.intermediate, hidden)
        else:
            if self.gated:
                yield Matrix(prefix + roles.GATE_PROJ, self.intermediate, hidden)
            yield Matrix(prefix + roles.UP_PROJ, self.intermediate, hidden)
        yield Matrix(prefix + roles.DOWN_PROJ, hidden, self.intermediate)


@dataclass(frozen=True, slots=True)
class Moe:
    experts: int
    top_k: int
    intermediate: int
    shared: Mlp | None = None  # the expert that every token uses
    shared_gate: bool = False  # the shared expert's output is weighed by a learned gate
    gated: bool = True
    bias: bool = False  # of the experts' matrices
    router_bias: bool = False  # a parameter for each expert beside the router's matrix
    groups: int = 0  # of experts, of which some are chosen first; 0: all are alike
    router: str = ""  # the operator that chooses among groups
    zero: int = 0  # experts that hand their input on: they are chosen, and cost nothing (LongCat)
    latent: int = 0  # width that tokens are projected to for the experts, and back (Nemotron 3 Super); 0: none

    @property
    def used(self) -> int:
        """Experts that cost something, of those that a token chooses, in the mean."""
        return max(1, round(self.top_k * self.experts / (self.experts + self.zero)))

    def expert_params(self, hidden: int) -> int:
        one = (3 if self.gated else 2) * (self.latent or hidden) * self.intermediate
        if self.bias:
            one += (2 if self.gated else 1) * self.intermediate + hidden
        return self.experts * one

    def params(self, hidden: int) -> int:
        router = (hidden + self.router_bias) * (self.experts + self.zero)
        shared = self.shared.params(hidden) if self.shared else 0
        around = 2 * hidden * self.latent + (hidden if self.shared_gate else 0)
        return router + self.expert_params(hidden) + shared + around

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        """Of the experts and the shared expert; the router's matrix always keeps 16 bits."""
        width = self.latent or hidden
        yield Matrix(roles.EXPERTS, self.intermediate, width, self.experts * (2 if self.gated else 1))
        yield Matrix(roles.EXPERTS, width, self.intermediate, self.experts)
        if self.latent:
            yield Matrix("latent_in", self.latent, hidden)
            yield Matrix("latent_out", hidden, self.latent)
        if self.shared:
            yield from self.shared.matrices(hidden, "shared_")

    def active_params(self, hidden: int) -> int:
        """Parameters that one token uses."""
        return self.params(hidden) - self.expert_params(hidden) * (self.experts - self.used) // self.experts


@dataclass(frozen=True, slots=True)
class Layer:
    attn: Attn | LatentAttn | CompressedAttn | StateMixer
    mlp: Mlp | Moe
    norm: str = "rms_norm"  # operator kind
    norm_vectors: int = 1  # 1: weight; 2: weight and bias; 0: neither
    # pre: norm before attention and MLP; post: after each, before it is added; post_add: after each addition;
    # sandwich: before and after each;
    # parallel: attention and MLP read the same normed input; parallel_two: each its own norm of the same input
    placement: str = "pre"
    residual_scale: bool = False  # each branch is multiplied by a constant before it is added (Granite)
    beside: StateMixer | None = None  # heads with a state that read the same input as attention (Falcon-H1)
    formats: tuple[tuple[str, WeightFormat], ...] = ()  # (role, format) of dense layers that the config quantises
    extras: tuple[Extra, ...] = ()
    again: bool = False  # with the weights of an earlier layer, but for its parts (Ouro, Zamba 2)

    def format_of(self, role: str, p: Precision) -> WeightFormat | None:
        """How a dense layer is stored; None: as wide as the activations."""
        if not p.per_layer:
            return UNIFORM.get(p.name)
        return next((found for name, found in self.formats if name == role), None)

    def matrices(self, hidden: int) -> Iterator[Matrix]:
        yield from self.attn.matrices(hidden)
        if self.beside:
            yield from self.beside.matrices(hidden)
        if self.mlp.intermediate:
            yield from self.mlp.matrices(hidden)

    def weight_bytes(self, hidden: int, p: Precision) -> tuple[float, float]:
        """(what tensor parallelism splits, what each GPU has whole): matrices and biases; norms and the router."""
        matrices = split = 0.0
        of_extras = sum(part.params for part in self.extras)
        if self.again:
            return 0.0, of_extras * BYTES[p.activation]
        for m in self.matrices(hidden):
            found = self.format_of(m.role, p)
            matrices += m.copies * m.n * m.k
            split += m.copies * (found.bytes(m.n, m.k) if found else m.n * m.k * BYTES[p.activation])
        whole = self.norm_count * self.norm_vectors * hidden + self.attn.norm_params()
        whole += (self.beside.norm_params() if self.beside else 0) + of_extras
        if isinstance(self.mlp, Moe):
            whole += hidden * (self.mlp.experts + self.mlp.zero)
        if isinstance(self.attn, CompressedAttn):
            whole += sum(m.n * m.k for m in self.attn.compressors(hidden))
        biases = self.params(hidden) - matrices - whole
        return split + biases * BYTES[p.activation], whole * BYTES[p.activation]

    def expert_bytes(self, hidden: int, p: Precision) -> float:
        """Of all experts' matrices, without the one that every token uses."""
        found = self.format_of(roles.EXPERTS, p)
        experts = [m for m in self.matrices(hidden) if m.role == roles.EXPERTS]
        return sum(m.copies * (found.bytes(m.n, m.k) if found else m.n * m.k * BYTES[p.activation]) for m in experts)

    def token_bytes(self, p: Precision, tp: int = 1, latent: bool = True) -> float:
        """Of the cache, for a token that the layer keeps; a compressed one has no size for each."""
        a = self.attn
        if isinstance(a, (StateMixer, CompressedAttn)):
            return 0.0
        shards = min(tp, a.kv_heads if isinstance(a, Attn) else 1 if latent else a.heads)
        indexed = a.index_dim if isinstance(a, Attn) else 0  # the keys of an indexer are whole on each GPU
        return (a.kv_values(latent) / shards + indexed) * p.kv_bytes

    @property
    def norm_count(self) -> int:
        if not self.mlp.intermediate or (isinstance(self.attn, StateMixer) and not self.attn.width):
            return 1
        return {"pre": 2, "post": 2, "post_add": 2, "sandwich": 4, "parallel": 1, "parallel_two": 2}[self.placement]

    def params(self, hidden: int) -> int:
        parts = sum(part.params for part in self.extras)
        if self.again:
            return parts
        norms = self.norm_count * self.norm_vectors * hidden
        beside = self.beside.params(hidden) if self.beside else 0
        return self.attn.params(hidden) + beside + self.mlp.params(hidden) + norms + parts


def grouped(layers: Iterable[Layer]) -> tuple[tuple[int, Layer], ...]:
    """Layers of one kind together, each kind where it first appears."""
    return tuple((n, layer) for layer, n in Counter(layers).items())


@dataclass(frozen=True, eq=False, slots=True)
class Decoder:
    """A model. Compared and hashed by identity, so that it is a cheap key of caches."""

    name: str
    architecture: str
    hidden: int
    vocab: int
    layers: tuple[tuple[int, Layer], ...]  # (how many, what): layers of one kind stand together
    tied: bool = False  # output matrix is the embedding table
    head_bias: bool = False
    positions: int = 0  # rows of a learned position table; 0: none
    embed_dim: int = 0  # width of the embedding where it differs from hidden (projected in and out); 0: hidden
    embed_norm: bool = False
    embed_scale: bool = False  # embeddings are multiplied by a constant
    final_norm: bool = True
    logit_scale: bool = False
    logit_softcap: bool = False
    max_context: int = 0  # tokens; 0: not stated
    angle_rows: int = 0  # of all tables of angles, where these are longer than the context; 0: one, as long
    dtype: str = "bf16"  # what `--dtype auto` means: the format of most weights
    kv_dtype: str = ""  # what the config says of the KV cache; "": nothing
    quantization: str = ""  # method that the config names; "": none
    head_format: WeightFormat | None = None  # of the output matrix; None: 16 bits
    extras: tuple[Extra, ...] = ()  # around the layers, beside the embedding
    drafts: int = 0  # layers that predict a token more each (MTP): loaded only where an engine speculates with them
    encoder: Encoder | None = None  # of images; None where there is none, or its sizes are not known

    @property
    def layer_count(self) -> int:
        return sum(n for n, _ in self.layers)

    @property
    def alibi(self) -> bool:
        """Whether positions are biases of the attention: neither a table nor a rotation tells them."""
        return not self.positions and not self.states and not any(layer.attn.rope_dim for _, layer in self.layers)

    @property
    def copied_heads(self) -> float:
        """How many heads each key head serves, where it is copied to all of them; a single one is not copied."""
        a = next((layer.attn for _, layer in self.layers if isinstance(layer.attn, Attn)), None)
        return a.heads / a.kv_heads if isinstance(a, Attn) and a.kv_heads > 1 else 1.0

    @property
    def states(self) -> list[tuple[int, StateMixer]]:
        """Mixers with a state of one size per sequence, and in how many layers each is."""
        mixers = [(n, mixer) for n, layer in self.layers for mixer in (layer.attn, layer.beside)]
        return [(n, mixer) for n, mixer in mixers if isinstance(mixer, StateMixer)]

    def state_bytes(self, p: Precision, tp: int = 1) -> float:
        """Of one sequence on each GPU, whatever its length."""
        total = sum(n * state.state_bytes(p, tp) for n, state in self.states)
        for n, layer in self.layers:
            total += n * sum(part.state_bytes(p) for part in layer.extras)
            if isinstance(layer.attn, CompressedAttn):
                total += n * layer.attn.state_bytes(p, tp)
        return total

    @property
    def experts(self) -> int:
        """Of a layer, 0 where there are none."""
        return max((layer.mlp.experts for _, layer in self.layers if isinstance(layer.mlp, Moe)), default=0)

    def _outer_params(self) -> tuple[int, int]:
        """(tables and output head, norms and biases) outside the layers."""
        width = self.embed_dim or self.hidden
        tables = self.vocab * width + (0 if self.tied else self.vocab * width)
        tables += self.positions * self.hidden
        if width != self.hidden:
            tables += 2 * width * self.hidden
        first = self.layers[0][1]
        norms = (self.final_norm + self.embed_norm) * first.norm_vectors * self.hidden
        tables += sum(part.params for part in self.extras)
        return tables, norms + (self.vocab if self.head_bias else 0)

    def params(self) -> int:
        return sum(self._outer_params()) + sum(n * layer.params(self.hidden) for n, layer in self.layers)

    def draft_params(self) -> int:
        """Of the layers that predict several tokens: one like the last, and a projection of two streams into one."""
        return self.drafts * (self.layers[-1][1].params(self.hidden) + 2 * self.hidden**2 + 3 * self.hidden)

    def active_params(self) -> int:
        """Parameters that one token uses: fewer than all in a mixture of experts."""
        idle = sum(
            n * (layer.mlp.params(self.hidden) - layer.mlp.active_params(self.hidden))
            for n, layer in self.layers
            if isinstance(layer.mlp, Moe)
        )
        return self.params() - idle

    def weight_bytes(self, p: Precision, tp: int = 1, ep: int = 1) -> float:
        """Bytes of weights on each of `tp` GPUs, whole experts on each of `ep`. Tables, norms and routers keep the
        activation's width."""
        tables, small = self._outer_params()
        act = BYTES[p.activation]
        split, whole = tables * act, small * act
        if self.head_format and p.per_layer:
            width = self.embed_dim or self.hidden
            split += self.head_format.bytes(self.vocab, width) - (0 if self.tied else self.vocab * width * act)
        for n, layer in self.layers:
            divided, kept = layer.weight_bytes(self.hidden, p)
            experts = layer.expert_bytes(self.hidden, p) if ep > 1 else 0.0
            split += n * (divided - experts)
            whole += n * (kept + experts / ep)
        return split / tp + whole

    def kv_bytes(self, context: int, p: Precision, latent: bool = True, tp: int = 1) -> float:
        """Cache bytes of one sequence of `context` tokens on each GPU; a sliding window keeps its window only."""
        total = 0.0
        for n, layer in self.layers:
            a = layer.attn
            if isinstance(a, CompressedAttn):
                total += n * a.cache_bytes(context)
            else:
                total += n * (min(context, a.window) if a.window else context) * layer.token_bytes(p, tp, latent)
        return total
