"""What an engine can be told: its own names and values, as `--engine-setting` and `engine_settings` take them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from difflib import get_close_matches
from typing import Any

from chip.types import ChipError

Settings = tuple[tuple[str, Any], ...]  # (name, value), as given
Limits = Mapping[str, tuple[Any, ...]]  # the least and the most of a number, or all that a text can be
KINDS = {bool: "true or false", int: "a whole number", float: "a number"}


def parse(words: Iterable[str]) -> dict[str, Any]:
    """`key=value` words, several in one word with commas."""
    settings: dict[str, Any] = {}
    for word in (part for words_ in words for part in words_.split(",") if part):
        key, equals, text = word.partition("=")
        if not key or not equals:
            raise ChipError(f"--engine-setting {word!r}: must be key=value")
        try:
            settings[key] = json.loads(text.lower() if text in ("True", "False") else text)
        except ValueError:
            settings[key] = text
    return settings


def settings_of(values: Any) -> Settings:
    if not isinstance(values, (Mapping, tuple)):
        raise ChipError(f"engine_settings must be an object of names and values, got {type(values).__name__}")
    items = values.items() if isinstance(values, Mapping) else values
    for name, value in items:
        if not isinstance(value, (bool, int, float, str)):
            raise ChipError(f"engine setting {str(name)[:40]}: {str(value)[:40]!r} is neither a number nor a word")
    return tuple(items)


def with_settings(
    base: Any, settings: Settings, limits: Limits, aliases: Mapping[str, str], elsewhere: Mapping[str, str]
) -> Any:
    """`base` with other values; None where an engine has no settings. `elsewhere`: settings that are fields of a
    question."""
    if base is None:
        if settings:
            raise ChipError(f"engine setting {str(settings[0][0])[:40]!r}: no setting of this engine is predicted")
        return None
    kinds = {f.name: type(getattr(base, f.name)) for f in fields(base)}
    values: dict[str, Any] = {}
    for alias, value in settings:
        name = aliases.get(alias, alias)
        if name in elsewhere:
            option = elsewhere[name]
            raise ChipError(f"engine setting {name}: say it as --{option.replace('_', '-')}, in Python as {option}")
        if name not in kinds:
            near = get_close_matches(str(name), kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ChipError(f"engine setting {str(name)[:40]!r} is not known; {hint}")
        values[name] = _checked(name, value, kinds[name], limits.get(name, ()))
    return replace(base, **values)


def _checked(name: str, value: Any, kind: type, limits: tuple[Any, ...]) -> Any:
    if kind is str:
        if value not in limits:
            raise ChipError(f"engine setting {name}: must be {' or '.join(limits)}, got {str(value)[:40]!r}")
    elif type(value) not in ((int, float) if kind is float else (kind,)):
        raise ChipError(f"engine setting {name}: must be {KINDS[kind]}, got {str(value)[:40]!r}")
    elif limits and not limits[0] <= value <= limits[1]:
        raise ChipError(f"engine setting {name}: must be between {limits[0]} and {limits[1]}, got {value!r:.40}")
    return value
