"""What a config's `quantization_config` says of each dense layer: how its weights are stored, what its input is rounded
to, and what the KV cache holds. `quantization_methods` reads the fields of each method; here formats are given to
layers by name, and what does not fit the model is refused by name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from chip.decoders import modules, roles
from chip.decoders.decoder import Layer
from chip.decoders.formats import WeightFormat
from chip.types import ChipError

CLASSES = ("Linear", "linear")  # what a list may name instead of a layer
# Parts of a checkpoint that a list may name and that are no dense layer here: other towers, norms, tables, draft layers
OUTSIDE = re.compile(
    r"norm|embed|rotary|visual|vision|audio|image|speech|projector|mtp|eh_proj|sinks|shared_head|\bln_|\bwte|\bwpe|\bconv|"
    r"correction_bias|score|indexers_proj|multi_modal|patch_merge|mm_"
)
LONGEST_PATTERN = 1000  # characters: compiled it takes many times as much, and is kept
EXPERT = re.compile(r"(experts\.)\d+")
TOWER = re.compile(r"^(?:model\.)?language_model\.(?:model\.)?")  # around the language part of a model that sees
AROUND = ("", "language_model.", "model.")  # what a pattern may expect before a name
LAYER = re.compile(r"\blayers?\.(\d+)\b|\bh\.(\d+)\b")


@dataclass(frozen=True, slots=True)
class CheckpointNames:
    """Where a checkpoint has the two parts of each layer, by their index."""

    of_layers: Sequence[tuple[int, int]]
    architecture: str

    def names(self, layer: int, role: str) -> tuple[str, ...]:
        mixer, mlp = self.of_layers[layer]
        return modules.of_role(self.architecture, mlp if role in roles.OF_MLP or "shared" in role else mixer, role)


@dataclass(frozen=True, slots=True)
class Rule:
    """Layers that `targets` name are stored in `format`."""

    targets: tuple[str, ...]
    format: WeightFormat


@dataclass(frozen=True, slots=True)
class Quantization:
    """A `quantization_config`, understood. The first rule that names a layer holds, unless `ignore` names it too."""

    method: str
    where: str  # file and section, for errors
    rules: tuple[Rule, ...]
    ignore: tuple[str, ...] = ()
    ignore_field: str = "ignore"
    whole_names: bool = False  # lists hold whole names or `re:` patterns; else parts of names and wildcards
    head: bool = False  # the output matrix is a layer like the others
    experts_only: bool = False
    divided: bool = True  # each scale covers whole groups of a row, so that they must divide it
    kv: str = ""  # what the KV cache holds; "": 16 bits

    def format_of(self, name: str) -> WeightFormat | None:
        if self._listed(self.ignore, name):
            return None
        return next((rule.format for rule in self.rules if self._listed(rule.targets, name)), None)

    def shortened(self) -> Quantization:
        """With the first expert for all of them in every list: checkpoints may list each of thousands."""
        rules = tuple(replace(rule, targets=_distinct(rule.targets)) for rule in self.rules if rule.targets)
        return replace(self, rules=rules, ignore=_distinct(self.ignore))

    def _listed(self, entries: tuple[str, ...], name: str) -> bool:
        plain, others = _sorted_out(entries)
        if self.whole_names:
            parts = name.split(".")
            if any(".".join(parts[i:]) in plain for i in range(len(parts))):
                return True
        elif any(map(name.__contains__, plain)):  # checkpoints list hundreds
            return True
        return any(names(entry, name, self.whole_names, self.where) for entry in others)


@lru_cache(maxsize=4)
def _sorted_out(entries: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Names or parts of names, and all other entries: classes, patterns, wildcards."""
    others = tuple(e for e in entries if e in CLASSES or e.startswith("re:") or "*" in e or "[" in e)
    return frozenset(entries) - frozenset(others), others


def _distinct(entries: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(e if e.startswith("re:") else EXPERT.sub(r"\g<1>0", _plain(e)) for e in entries))


def _plain(entry: str) -> str:
    """As the language model alone would name it."""
    inside = TOWER.sub("", entry)
    return entry if inside == entry else inside if inside.startswith("lm_head") else "model." + inside


@lru_cache(maxsize=512)
def _pattern(text: str, where: str) -> re.Pattern[str]:
    if len(text) > LONGEST_PATTERN:
        raise ChipError(
            f"{where}: {text[:60]!r}... is a pattern of {len(text)} characters, more than {LONGEST_PATTERN}"
        )
    try:
        return re.compile(text)
    except (re.error, RecursionError) as e:
        raise ChipError(f"{where}: {text[:60]!r} is not a pattern ({e})") from None


def names(entry: str, name: str, whole: bool, where: str) -> bool:
    """Whether an entry of a list names this layer, or all layers. The first expert stands for all of a layer."""
    if entry in CLASSES:
        return True
    if entry.startswith("re:"):
        return any(_pattern(entry[3:], where).match(around + name) for around in AROUND)
    if entry == name or name.endswith("." + entry):
        return True
    if whole:
        return False
    if "*" in entry or "[" in entry:
        return fnmatchcase(name, entry) or fnmatchcase(name, entry + ".*")
    return entry in name


def format_layers(
    q: Quantization, layers: Sequence[Layer], hidden: int, architecture: str, places: Sequence[tuple[int, int]] = ()
) -> list[Layer]:
    """The layers with their formats; refuses lists that name nothing and groups that do not divide. `places`: where a
    checkpoint has the mixer and the MLP of each layer, if not side by side."""
    at = CheckpointNames(places or [(i, i) for i in range(len(layers))], architecture)
    roles = [_roles(q, layer, hidden) for layer in layers]
    present = [name for i, found in enumerate(roles) for role in found for name in at.names(i, role)]
    _check_lists(q, [*present, *_others(layers, at)], 1 + max(max(place) for place in at.of_layers))
    formatted = []
    for i, (layer, found) in enumerate(zip(layers, roles)):
        given = {role: _of_role(q, at.names(i, role), i) for role in found}
        for m in layer.matrices(hidden):
            _check_group(q, given.get(m.role), m.k, at.names(i, m.role)[-1])
        formatted.append(replace(layer, formats=tuple((role, f) for role, f in given.items() if f)))
    if not any(layer.formats for layer in formatted):
        raise ChipError(f"{q.where}: every layer of this model is left out, so that nothing is quantised")
    return formatted


def head_format(q: Quantization, architecture: str) -> WeightFormat | None:
    return q.format_of(modules.head(architecture)) if q.head else None


def _roles(q: Quantization, layer: Layer, hidden: int) -> list[str]:
    found = dict.fromkeys(m.role for m in layer.matrices(hidden))
    found.pop("index_weights", None)  # of an indexer: every engine keeps them in 16 bits
    return [role for role in found if role == roles.EXPERTS or not q.experts_only]


def _of_role(q: Quantization, named: tuple[str, ...], layer: int) -> WeightFormat | None:
    formats = {q.format_of(name) for name in named}
    if len(formats) > 1:
        raise ChipError(f"{q.where}: the experts of layer {layer} have matrices in different formats ({named[0]}, ...)")
    return formats.pop()


def _others(layers: Sequence[Layer], at: CheckpointNames) -> Iterable[str]:
    """Dense layers that always keep 16 bits, but may be listed."""
    yield modules.head(at.architecture)
    for i, layer in enumerate(layers):
        for m in layer.matrices(1):  # so that a list may leave out what a method never converts
            yield from at.names(i, m.role)
        if hasattr(layer.mlp, "experts"):
            yield from at.names(i, "router")
            yield from at.names(i, "shared_gate")


def _check_lists(q: Quantization, present: Sequence[str], layers: int) -> None:
    listed = "\n".join(("", *present, ""))

    def used(entry: str) -> bool:
        plain, _ = _sorted_out((entry,))
        if plain and q.whole_names:
            return f"\n{entry}\n" in listed or f".{entry}\n" in listed
        return entry in listed if plain else any(names(entry, n, q.whole_names, q.where) for n in present)

    for entry in q.ignore:
        if not (used(entry) or OUTSIDE.search(entry) or _beyond(entry, layers) or _parent(entry, present)):
            raise ChipError(
                f"{q.where}: {q.ignore_field} has {entry[:80]!r}, which names no layer of this model "
                f"(its layers are such as {present[0]})"
            )
    for rule in q.rules:
        for target in rule.targets:
            if not (used(target) or OUTSIDE.search(target) or _beyond(target, layers)):
                raise ChipError(
                    f"{q.where}: target {target[:80]!r} names no layer of this model "
                    f"(its layers are such as {present[0]})"
                )


def _parent(entry: str, present: Sequence[str]) -> bool:
    """A module around a layer: harmless where whole names are asked for, and then it leaves nothing out."""
    return any(name.startswith(entry + ".") for name in present)


def _beyond(entry: str, layers: int) -> bool:
    """A layer after the last: draft layers of multi-token prediction."""
    found = LAYER.search(entry)
    return found is not None and int(found[1] or found[2]) >= layers


def _check_group(q: Quantization, found: WeightFormat | None, k: int, name: str) -> None:
    if found and q.divided and found.cols and k % found.cols:
        raise ChipError(
            f"{q.where}: a group of {found.cols} does not divide the {k} inputs of {name}; "
            f"choose a group that does, or list the layer under {q.ignore_field!r}"
        )
