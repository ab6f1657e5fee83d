"""What a prediction rests on, by the ids that artifacts give of their inputs. A run among them proves nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from chip.engines import profile as engine_profile
from chip.files import artifact
from chip.hardware import gpus, points
from chip.hardware.gpus import Hardware
from chip.predictor.roof import reference
from chip.types import ChipError


class UsedFile(NamedTuple):
    """An artifact that a prediction reads, and the ids of what it was made from."""

    path: Path
    id: str
    inputs: tuple[str, ...]


def _profile(h: Hardware, engine: str) -> Path | None:
    """Its own, or that of the GPU whose kept share stands in."""
    if h.profile is None:
        assert h.spec
        return gpus.PROFILES / f"{reference(h.spec.architecture, h.spec.vendor).name}.json"
    return h.measured


def _terms(h: Hardware, engine: str) -> Path:
    """Where the terms of the engine lie, on the GPU's own host or on the reference host."""
    beside = engine_profile.path_for(h, engine)
    return beside if beside.is_file() else engine_profile.ENGINES / f"{engine_profile.REFERENCE}.{engine}.json"


# Whatever else a prediction comes to read has its place here.
SOURCES: tuple[Callable[[Hardware, str], Path | None], ...] = (_profile, _terms)


def rests_on(gpu: str, engine: str, engine_file: str = "") -> list[UsedFile]:
    """Every measured or fitted file that a prediction for `gpu` and `engine` reads; `engine_file`: instead of the terms
    that lie beside the GPU's profile."""
    h = gpus.find(gpu)
    paths = [source(h, engine) for source in SOURCES]
    if engine_file:
        paths = [Path(engine_file) if p == _terms(h, engine) else p for p in paths]
    used = [_used(path) for path in paths if path is not None and path.is_file()]
    return used + [one for folder in h.points for one in _points(folder)]


def _points(folder: Path) -> list[UsedFile]:
    """A folder of points as one, with what the # inputs of its files name."""
    digest, inputs = hashlib.sha256(), dict[str, None]()
    for kind in points.kinds(folder):
        path = folder / f"{kind}{points.SUFFIX}"
        digest.update(artifact.read_bytes(path))
        inputs.update(dict.fromkeys(points.about(path).get("inputs", "").split()))
    return [UsedFile(folder, digest.hexdigest()[:16], tuple(inputs))]


def _used(path: Path) -> UsedFile:
    raw = artifact.read_json(path)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str) or "/" not in schema:
        raise ChipError(f"{path}: has no schema, so it does not tell what it was made from")
    document = artifact.read(path, schema)
    return UsedFile(path, document.id, document.inputs)


def leaked(ids: Iterable[str], used: Iterable[UsedFile]) -> UsedFile | None:
    """The artifact that was made from one of `ids`, if any."""
    wanted = set(ids)
    return next((u for u in used if wanted & set(u.inputs)), None)
