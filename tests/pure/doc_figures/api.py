"""The reference of the Python API, from signatures and docstrings."""

import inspect
import re
import textwrap

import chip

ANY_NUMBER = {"SupportsIndex": "int", "SupportsFloat": "float"}  # of Python or numpy


def reference():
    """Every name of `chip.__all__`: what it takes, what it says of itself, and what its results have."""
    for name in sorted(chip.__all__, key=lambda name: (not name[0].islower(), name)):
        value = getattr(chip, name)
        yield from (f"### chip.{name}", "")
        if not inspect.isclass(value):
            yield from _code(_signature(f"chip.{name}", value))
        elif name == "StepTimes":
            yield from _code(_signature("chip.StepTimes", value.__init__))
        yield inspect.getdoc(value)
        yield ""
        if inspect.isclass(value) and not issubclass(value, Exception):
            members = [*_fields(value), *_members(value)]
            yield from textwrap.wrap(f"Has {', '.join(members)}.", 125, break_on_hyphens=False, break_long_words=False)
            yield ""


def _code(text):
    yield "```text"
    yield from textwrap.wrap(text, 118, subsequent_indent="    ", break_on_hyphens=False)
    yield from ("```", "")


def _signature(name, function):
    signature = inspect.signature(function)
    taken, star = [], False
    for p in signature.parameters.values():
        if p.kind is p.KEYWORD_ONLY and not star:
            star = True
            taken.append("*")
        stars = "**" if p.kind is p.VAR_KEYWORD else ""
        default = "" if p.default is p.empty else f" = {p.default!r}"
        if p.name != "self":
            taken.append(f"{stars}{p.name}: {_kind(p.annotation)}{default}")
    gives = "" if function.__name__ == "__init__" else f" -> {_kind(signature.return_annotation)}"
    return f"{name}({', '.join(taken)}){gives}"


def _fields(value):
    return [f"`{key}: {_kind(kind)}`" for key, kind in value.__annotations__.items() if not key.startswith("_")]


def _members(value):
    for key, member in vars(value).items():
        if key.startswith("_") or key in value.__annotations__:
            continue
        if isinstance(member, property):
            yield f"`{key}: {_kind(member.fget.__annotations__['return'])}`"
        elif inspect.isfunction(member):
            takes = ", ".join(p for p in inspect.signature(member).parameters if p != "self")
            yield f"`{key}({takes}) -> {_kind(member.__annotations__['return'])}`"


def _kind(annotation):
    text = getattr(annotation, "__forward_arg__", annotation)  # of a TypedDict
    text = text if isinstance(text, str) else getattr(text, "__name__", str(text))
    return re.sub("|".join(ANY_NUMBER), lambda m: ANY_NUMBER[m[0]], text)
