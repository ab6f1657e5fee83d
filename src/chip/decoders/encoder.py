"""The encoder of images beside a language model, from the sizes of a config's `vision_config` under any of their usual
names: its weights are in memory, and each image takes its time before the first token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from chip.decoders.config import Config
from chip.ops.attention import Attention
from chip.ops.elementwise import Add, Gelu, LayerNorm, SiluMul
from chip.ops.linear import Linear
from chip.types import Op

DEPTH = ("num_hidden_layers", "depth", "vt_num_hidden_layers", "num_layers", "layers")
WIDTH = ("embed_dim", "vt_hidden_size", "hidden_size", "width")  # in this order: hidden_size may be the language's
HEADS = ("num_attention_heads", "num_heads", "vt_num_attention_heads", "heads")
INNER = ("intermediate_size", "vt_intermediate_size")
GATED = ("silu", "gelu_pytorch_tanh_gated")
GATED_TYPES = ("gemma4_vision", "glm4v_vision", "pixtral", "qwen2_5_vl")


@dataclass(frozen=True, slots=True)
class Encoder:
    """Layers of full attention over the patches of an image, then a projection of several patches into a token."""

    layers: int
    hidden: int
    inner: int
    heads: int
    gated: bool
    patch: int  # values of a patch
    merge: int  # patches that make a token
    out: int  # width of a token
    projectors: int = 1

    @property
    def params(self) -> int:
        attention, mlp = 4 * self.hidden**2, (3 if self.gated else 2) * self.hidden * self.inner
        wide = self.hidden * self.merge
        projector = self.projectors * (wide * (wide if self.merge > 1 else self.out) + max(wide, self.out) * self.out)
        return self.layers * (attention + mlp) + self.patch * self.hidden + projector

    def ops(self, tokens: int, images: int, tp: int, act: str) -> Iterator[tuple[str, int, Op]]:
        """(role, how often, operator) for so many images of so many tokens each."""
        patches, h, inner, heads = tokens * self.merge, self.hidden, self.inner // tp, max(1, self.heads // tp)
        rows, n = patches * images, self.layers
        yield "patches", 1, Linear(rows, h, self.patch, act, act)
        yield "encoder_norms", 2 * n, LayerNorm(rows, h, act)
        yield "encoder_attention_products", n, Linear(rows, 3 * h // tp, h, act, act)
        sizes = (images, heads, heads, h // self.heads, patches, patches)
        yield "encoder_attention", n, Attention(*sizes, False, dtype=act)
        yield "encoder_output", n, Linear(rows, h, h // tp, act, act)
        yield "encoder_up", n, Linear(rows, (2 if self.gated else 1) * inner, h, act, act)
        yield "encoder_act", n, (SiluMul if self.gated else Gelu)(rows, inner, act)
        yield "encoder_down", n, Linear(rows, h, inner, act, act)
        yield "encoder_adds", 2 * n, Add(rows, h, act)
        wide, merged = h * self.merge, tokens * images
        yield "projector", self.projectors, Linear(merged, wide if self.merge > 1 else self.out, wide, act, act)
        yield "projector_out", self.projectors, Linear(merged, self.out, max(wide, self.out), act, act)


def read(c: Config, out: int) -> Encoder | None:
    """None where the config gives no sizes of it. `out`: width of the language model."""
    if not isinstance(c.raw.get("vision_config"), dict):
        return None
    raw = c.raw["vision_config"]
    v = Config({k: n[0] if isinstance(n, list) and k == "patch_size" and n else n for k, n in raw.items()}, c.where)
    if not all(any(v.has(name) for name in names) for names in (DEPTH, WIDTH, HEADS)):
        return None
    hidden, heads = v.size(*WIDTH), v.size(*HEADS)
    own = "out_hidden_size" if v.text("model_type", "").startswith("glm4v") else INNER[0]
    inner = v.size(own, *INNER, default=int(v.number("mlp_ratio", 4.0) * hidden))
    gated = v.text("hidden_act", v.text("hidden_activation", "")) in GATED or v.text("model_type", "") in GATED_TYPES
    patch = 3 * v.size("patch_size", "spatial_patch_size", default=14) ** 2 * v.size("temporal_patch_size", default=1)
    deep = v.raw.get("deepstack_visual_indexes")
    projectors = 1 + (len(deep) if isinstance(deep, list) else 0)
    return Encoder(v.size(*DEPTH), hidden, inner, heads, gated, patch, _merge(c, v), out, projectors)


def _merge(c: Config, v: Config) -> int:
    """Patches that make a token."""
    kernel = v.raw.get("merge_kernel_size")
    if isinstance(kernel, list) and len(kernel) == 2 and all(isinstance(n, int) for n in kernel):
        return int(kernel[0] * kernel[1])
    for where in (v, c):
        if where.has("spatial_merge_size") or where.has("pooling_kernel_size"):
            return where.size("spatial_merge_size", "pooling_kernel_size") ** 2
        share = where.number("pixel_shuffle_ratio", where.number("downsample_ratio", 0.0))
        if 0 < share <= 1:
            return round(1 / share**2)
        if where.has("scale_factor") and isinstance(where.raw["scale_factor"], int):
            return where.size("scale_factor") ** 2
    return 1
