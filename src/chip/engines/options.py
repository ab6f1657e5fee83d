"""What an engine can be told: its own names and values, as `--engine-setting` and `engine_settings` take them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from chip.records import fields, replace
from chip.suggest import get_close_matches
from chip.types import ChipError

Settings = tuple[tuple[str, Any], ...]  # (name, value), as given
Options = TypeVar("Options", bound=Any)


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
            raise ChipError(f"--engine-setting {key}: {text[:40]!r} is neither a number nor true or false") from None
    return settings


def settings_of(given: Any) -> Settings:
    if not isinstance(given, (Mapping, tuple)):
        raise ChipError(f"engine_settings must be an object of names and values, got {type(given).__name__}")
    items = given.items() if isinstance(given, Mapping) else given
    for name, value in items:
        if not isinstance(value, (bool, int, float)):
            raise ChipError(
                f"engine setting {str(name)[:40]}: {str(value)[:40]!r} is neither a number nor true or false"
            )
    return tuple(items)


def no_options(settings: Settings, memory_bytes: float) -> None:
    """Of an engine that predictions know no setting of."""
    if settings:
        raise ChipError(f"engine setting {str(settings[0][0])[:40]!r}: no setting of this engine is predicted")


def with_settings(
    base: Options,
    settings: Settings,
    limits: Mapping[str, tuple[float, float]],
    aliases: Mapping[str, str],
    elsewhere: Mapping[str, str],
) -> Options:
    """`base` with other values. `limits`: the least and the most of numbers. `elsewhere`: settings that are not among
    these but fields of a question."""
    kinds = {f.name: type(getattr(base, f.name)) for f in fields(base)}
    values: dict[str, Any] = {}
    for given_name, value in settings:
        name = aliases.get(given_name, given_name)
        if name in elsewhere:
            option = elsewhere[name]
            raise ChipError(f"engine setting {name}: say it as --{option.replace('_', '-')}, in Python as {option}")
        if name not in kinds:
            near = get_close_matches(str(name), kinds, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(kinds)}"
            raise ChipError(f"engine setting {str(name)[:40]!r} is not known; {hint}")
        kind = kinds[name]
        if type(value) not in ((int, float) if kind is float else (kind,)):
            raise ChipError(f"engine setting {name}: must be {_named(kind)}, got {str(value)[:40]!r}")
        least, most = limits.get(name, (value, value))
        if not least <= value <= most:
            raise ChipError(f"engine setting {name}: must be between {least} and {most}, got {value!r:.40}")
        values[name] = value
    return replace(base, **values)


def _named(kind: type) -> str:
    return {bool: "true or false", int: "a whole number", float: "a number"}[kind]
