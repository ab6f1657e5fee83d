"""The fields of each `quant_method`, read into formats and rules. Sizes are those of the tensors that each method's own
library writes: packed values, scales, zero points, and GPTQ's group of every input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from chip.decoders.config import Config
from chip.decoders.formats import UNIFORM, WeightFormat
from chip.decoders.quantization import CLASSES, Quantization, Rule
from chip.types import ChipError

ALL = CLASSES[:1]
NVFP4, MXFP4 = UNIFORM["nvfp4"], UNIFORM["mxfp4"]
FP8_TENSOR = WeightFormat("fp8", input="fp8", input_per_tensor=True, input_static=True, whole_bytes=4)
FP8_CHANNEL = WeightFormat("fp8", rows=1, input="fp8")
INTS = {4: "int4", 8: "int8"}
ROUTED = r"re:.*\bexperts\..*"  # not the shared ones
EXPERT_FORMATS = {
    "FP4": MXFP4,
    "NVFP4": NVFP4,
}  # of experts, where they are stored otherwise than the rest (DeepSeek V4)
SECTIONS = ("quantization_config", "compression_config")


def read(c: Config) -> Quantization | None:
    """What the config says, or None where it says nothing. Unknown methods are refused."""
    name = next((s for s in SECTIONS if c.has(s)), None)  # of the language part, else of the whole model
    if name is None:
        c = c.root
        name = next((s for s in SECTIONS if c.has(s)), None)
    if name is None:
        return None
    section = c.section(name)
    method = section.text("quant_method", "modelopt" if section.has("quant_algo") else "").lower()
    if not method:
        raise ChipError(f"{section.where}: field 'quant_method' is missing; known: {', '.join(METHODS)}")
    if method not in METHODS:
        raise ChipError(f"{section.where}: quant_method {method[:40]!r} is not known; known: {', '.join(METHODS)}")
    found = METHODS[method](section)
    experts = section.text("moe_quant_algo", section.text("expert_dtype", c.text("expert_dtype", ""))).upper()
    if experts not in EXPERT_FORMATS:
        return found
    rule = Rule((ROUTED,), EXPERT_FORMATS[experts])
    return replace(found, rules=(rule, *found.rules), ignore=() if section.has("moe_quant_algo") else found.ignore)


def _brief(name: str) -> str:
    """A key of a config on one line."""
    return " ".join(str(name).split())[:60]


def _listed(c: Config, *names: str) -> tuple[tuple[str, ...], str]:
    """(entries, field) of the first list that is there; two that differ contradict each other."""
    found = [(tuple(c.names(n)), n) for n in names if c.has(n)]
    if len({entries for entries, _ in found}) > 1:
        raise ChipError(f"{c.where}: {found[0][1]} and {found[1][1]} contradict each other")
    return found[0] if found else ((), names[0])


def _choice(c: Config, name: str, known: tuple[str, ...], default: str) -> str:
    value = c.text(name, default)
    if value not in known:
        raise ChipError(f"{c.where}: {name} {value[:40]!r} is not known; known: {', '.join(known)}")
    return value


def _bits(c: Config, *names: str, known: tuple[int, ...] = (4, 8)) -> int:
    present = {n: c.raw[n] for n in names if c.has(n)}
    if len(set(map(str, present.values()))) > 1:
        both = " and ".join(f"{n} {v!r:.20}" for n, v in present.items())
        raise ChipError(f"{c.where}: {both} contradict each other")
    for name, value in present.items():
        if isinstance(value, bool) or value not in known:
            raise ChipError(f"{c.where}: {name} {value!r:.20} is not served; known: {', '.join(map(str, known))} bits")
    if not present:
        raise ChipError(f"{c.where}: field {names[0]!r} is missing")
    return int(next(iter(present.values())))


def _group(c: Config, *names: str, default: int | None = None) -> int:
    """Weights of a row that share a scale; 0 for the whole row, which configs write -1."""
    for name in names:
        if c.raw.get(name) == -1:
            return 0
    return c.size(*names, default=default)


def _block(c: Config, name: str) -> tuple[int, int]:
    value = c.raw[name]
    if not isinstance(value, list) or len(value) != 2 or not all(type(v) is int and v > 0 for v in value):
        raise ChipError(f"{c.where}: {name} must be two sizes such as [128, 128], got {value!r:.40}")
    return value[0], value[1]


def _fp8(c: Config) -> Quantization:
    static = _choice(c, "activation_scheme", ("dynamic", "static"), "dynamic") == "static"
    if c.text("fmt", "e4m3") not in ("e4m3", "float8_e4m3fn"):
        raise ChipError(f"{c.where}: fmt {c.text('fmt', '')[:40]!r} is not known; known: e4m3")
    ignore, field = _listed(c, "modules_to_not_convert", "ignored_layers")
    if c.has("weight_block_size"):
        if static:
            raise ChipError(f"{c.where}: activation_scheme 'static' and weight_block_size contradict each other")
        rows, cols = _block(c, "weight_block_size")
        stored = WeightFormat("fp8", rows=rows, cols=cols, input="fp8", input_group=cols)
    else:
        stored = FP8_TENSOR if static else UNIFORM["fp8"]
    return Quantization("fp8", c.where, (Rule(ALL, stored),), ignore, field)


def _fbgemm_fp8(c: Config) -> Quantization:
    ignore, field = _listed(c, "modules_to_not_convert", "ignored_layers")
    return Quantization("fbgemm_fp8", c.where, (Rule(ALL, FP8_CHANNEL),), ignore, field)


def _awq(c: Config) -> Quantization:
    _choice(c, "version", ("gemm", "gemv", "gemv_fast", "GEMM", "GEMV", "GEMVFast"), "gemm")
    bits, group = _bits(c, "bits", "w_bit", known=(4,)), _group(c, "group_size", "q_group_size", default=128)
    zeros = c.flag("zero_point", True)
    stored = WeightFormat(INTS[bits], 1, group, scale_bytes=2, zero_bytes=bits / 8 if zeros else 0)
    ignore, field = _listed(c, "modules_to_not_convert")
    return Quantization("awq", c.where, (Rule(ALL, stored),), ignore, field)


def _gptq(c: Config) -> Quantization:
    bits, group = _bits(c, "bits"), _group(c, "group_size", default=128)
    c.flag("desc_act", False)
    # zero points are written even where all are alike, and the group of every input even where they are in order
    stored = WeightFormat(INTS[bits], 1, group, scale_bytes=2, zero_bytes=bits / 8, index_bytes=4)
    ignore, field = _listed(c, "modules_to_not_convert")
    rules = []
    for pattern, change in _dynamic(c):
        if pattern.startswith("-:"):
            ignore = (*ignore, "re:" + pattern[2:])
            continue
        own = Config({"bits": bits, "group_size": group or -1, **change}, f"{c.where}: dynamic {pattern[:40]!r}")
        width, size = _bits(own, "bits"), _group(own, "group_size")
        rules.append(
            Rule(
                ("re:" + pattern.removeprefix("+:"),),
                replace(stored, dtype=INTS[width], cols=size, zero_bytes=width / 8),
            )
        )
    return Quantization("gptq", c.where, (*rules, Rule(ALL, stored)), ignore, field, head=c.flag("lm_head", False))


def _dynamic(c: Config) -> list[tuple[str, dict[str, Any]]]:
    """GPTQModel's exceptions: a pattern of names, and what differs there."""
    value = c.raw.get("dynamic") or {}
    if not isinstance(value, dict) or not all(isinstance(v, dict) for v in value.values()):
        raise ChipError(f"{c.where}: dynamic must be an object of patterns, each with an object")
    return list(value.items())


def _mxfp4(c: Config) -> Quantization:
    ignore, field = _listed(c, "modules_to_not_convert")
    return Quantization("mxfp4", c.where, (Rule(ALL, MXFP4),), ignore, field, experts_only=True)


def _bitsandbytes(c: Config) -> Quantization:
    four = c.flag("load_in_4bit", c.flag("_load_in_4bit", False))
    eight = c.flag("load_in_8bit", c.flag("_load_in_8bit", False))
    if four == eight:
        both = "both" if four else "neither"
        raise ChipError(f"{c.where}: {both} of load_in_4bit and load_in_8bit are set; set one")
    if eight:
        stored = WeightFormat("int8", rows=1, input="int8")
    else:
        _choice(c, "bnb_4bit_quant_type", ("nf4", "fp4"), "fp4")
        twice = c.flag("bnb_4bit_use_double_quant", False)
        # a scale for each 64 values; quantised themselves: 8 bits, and a 32-bit one for each 256 of them
        stored = WeightFormat("int4", 1, 64, scale_bytes=1 + 4 / 256 if twice else 4)
    ignore, field = _listed(c, "llm_int8_skip_modules")
    return Quantization("bitsandbytes", c.where, (Rule(ALL, stored),), ignore, field, divided=False)


def _compressed_tensors(c: Config) -> Quantization:
    ignore, field = _listed(c, "ignore")
    groups = c.raw.get("config_groups")
    if not isinstance(groups, dict) or not groups:
        raise ChipError(f"{c.where}: field 'config_groups' is missing or empty; it names the layers and their formats")
    rules: list[Rule] = []
    for name in groups:
        group = Config(groups[name], f"{c.where}: config_groups.{_brief(name)}")
        targets = tuple(group.names("targets")) or ALL
        for earlier in rules:
            if set(earlier.targets) & set(targets):
                raise ChipError(f"{group.where}: targets {_brief(', '.join(targets))} are those of another group too")
        stored = _inputs(group, _weights(group))
        rules.append(Rule(targets, stored))
    return Quantization(
        "compressed-tensors", c.where, tuple(rules), ignore, field, whole_names=True, head=True, kv=_kv_scheme(c)
    )


def _weights(group: Config) -> WeightFormat:
    w = group.section("weights")
    kind, strategy = _kind(w), _strategy(w, ("tensor", "channel", "group", "block", "tensor_group"))
    symmetric = w.flag("symmetric", True)
    if strategy == "tensor_group":
        if kind != "float" or _bits(w, "num_bits") != 4:
            raise ChipError(f"{w.where}: strategy 'tensor_group' is that of 4-bit floats (NVFP4)")
        return replace(NVFP4.weight_only, cols=_group(w, "group_size", default=16))
    if kind == "float":
        bits = _bits(w, "num_bits")
        if bits == 4:
            return replace(MXFP4, cols=_group(w, "group_size", default=32))
        dtype, scale = "fp8", 4.0
    else:
        dtype, scale = INTS[_bits(w, "num_bits")], 2.0
    zero = 0.0 if symmetric else (0.5 if dtype == "int4" else 1.0)
    rows, cols = 0, 0
    if strategy == "group":
        rows, cols = 1, w.size("group_size")
    elif strategy == "channel":
        rows = 1
    elif strategy == "block":
        rows, cols = _block(w, "block_structure") if w.has("block_structure") else (128, 128)
    # the group of every input is stored where columns were reordered by group
    index = 4 if w.raw.get("actorder") in ("group", "dynamic", True) else 0
    return WeightFormat(dtype, rows, cols, scale, zero, index)


def _inputs(group: Config, stored: WeightFormat) -> WeightFormat:
    if not group.has("input_activations"):
        return stored
    a = group.section("input_activations")
    kind, bits = _kind(a), _bits(a, "num_bits")
    strategy = _strategy(a, ("tensor", "token", "group", "tensor_group"))
    rounded = {("float", 8): "fp8", ("int", 8): "int8", ("float", 4): "fp4"}.get((kind, bits))
    if rounded is None:
        raise ChipError(
            f"{a.where}: {bits}-bit {kind} activations are not served; known: 8-bit int, 8- and 4-bit float"
        )
    dynamic = a.raw.get("dynamic", False)
    if strategy == "token" and not dynamic:
        raise ChipError(f"{a.where}: strategy 'token' needs dynamic scales, but dynamic is false")
    grouped = _group(a, "group_size", default=128) if strategy in ("group", "tensor_group") else 0
    static = strategy == "tensor" and not dynamic
    return replace(
        stored,
        input=rounded,
        input_group=grouped,
        input_per_tensor=strategy == "tensor",
        input_static=static,
        whole_bytes=stored.whole_bytes + (4 if static else 0),
    )


def _kind(c: Config) -> str:
    return _choice(c, "type", ("int", "float"), "int")


def _strategy(c: Config, known: tuple[str, ...]) -> str:
    size = c.raw.get("group_size")
    default = "tensor" if size is None else "channel" if size == -1 else "group"
    strategy = _choice(c, "strategy", known, default)
    if strategy in ("group", "tensor_group") and size in (None, -1) and "token" not in known:
        raise ChipError(f"{c.where}: strategy {strategy!r} needs a group_size")
    if strategy in ("tensor", "channel", "token") and size not in (None, -1):
        raise ChipError(f"{c.where}: strategy {strategy!r} and group_size {size!r:.20} contradict each other")
    return strategy


def _kv_scheme(c: Config) -> str:
    if not c.has("kv_cache_scheme"):
        return ""
    if c.raw["kv_cache_scheme"] == "FP8":
        return "fp8"
    scheme = c.section("kv_cache_scheme")
    if (_kind(scheme), _bits(scheme, "num_bits")) != ("float", 8):
        raise ChipError(f"{scheme.where}: a KV cache of this format is not served; known: 8-bit float")
    return "fp8"


ALGORITHMS = {
    "FP8": FP8_TENSOR,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8_CHANNEL,
    "MXFP8": WeightFormat("fp8", rows=1, cols=32, scale_bytes=1, input="fp8", input_group=32),
    "FP8_PB_WO": WeightFormat("fp8", rows=128, cols=128, input="fp8", input_group=128),
    "NVFP4": NVFP4,
    "W4A16_NVFP4": NVFP4.weight_only,
    "W4A16_AWQ": WeightFormat("int4", rows=1, cols=128, scale_bytes=2),
}


def _modelopt(c: Config) -> Quantization:
    inner = c.section("quantization") if c.has("quantization") else c
    ignore, field = _listed(inner, "exclude_modules", "ignore")
    kv = inner.text("kv_cache_quant_algo", "").upper()
    if kv not in ("", "NONE", "FP8"):
        raise ChipError(f"{inner.where}: kv_cache_quant_algo {kv[:40]!r} is not known; known: FP8")
    kv = kv.replace("NONE", "").lower()
    name = inner.text("quant_algo", "").upper()
    rules = _mixed(inner) if name == "MIXED_PRECISION" else (Rule(ALL, _algorithm(inner)),)
    # older exports have no list at all and leave the output matrix as it is
    return Quantization("modelopt", c.where, rules, ignore, field, head=bool(ignore), kv=kv or _kv_scheme(inner))


def _algorithm(c: Config) -> WeightFormat:
    name = c.text("quant_algo", "").upper()
    if name not in ALGORITHMS:
        known = ", ".join((*ALGORITHMS, "MIXED_PRECISION"))
        raise ChipError(f"{c.where}: quant_algo {name[:40]!r} is not known; known: {known}")
    stored = ALGORITHMS[name]
    if not c.has("group_size") or stored.dtype == "fp8":
        return stored
    size = c.size("group_size")
    return replace(stored, cols=size, input_group=size if stored.input else 0)


def _mixed(c: Config) -> tuple[Rule, ...]:
    """A format for each layer, by name."""
    layers = c.section("quantized_layers").raw
    by_format: dict[WeightFormat, list[str]] = {}
    for name in layers:
        one = _algorithm(Config(layers[name], f"{c.where}: quantized_layers.{_brief(name)}"))
        by_format.setdefault(one, []).append(name)
    return tuple(Rule(tuple(found), stored) for stored, found in by_format.items())


METHODS: dict[str, Callable[[Config], Quantization]] = {
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "compressed-tensors": _compressed_tensors,
    "awq": _awq,
    "gptq": _gptq,
    "mxfp4": _mxfp4,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
}
