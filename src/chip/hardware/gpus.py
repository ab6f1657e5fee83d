"""Finding a GPU: by bundled name, by a file that describes or measured it, or by compute capability and memory."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache, lru_cache, partial
from math import log
from pathlib import Path
from typing import Any

from chip.files import artifact, codec
from chip.hardware.points import SUFFIX, PointTable
from chip.types import GIVEN, ChipError, HardwareProfile, HardwareSpec, Link, Quoted

DATA = Path(__file__).parents[1] / "data"
SPECS = DATA / "hardware"
PROFILES = DATA / "profiles"
POINTS = DATA / "points"
IMPORTED = POINTS / "imported"  # other people's measurements, brought into the same form
BESIDE = ("schema", "measured")  # what a datasheet file may hold beside its fields: `chip show --json` adds the latter
NEEDED = {
    "hbm": "memory bandwidth, bytes per second",
    "matmul_fp32": "FLOP per second outside the tensor cores",
}
BY_CAPABILITY = re.compile(r"(?:sm_?|cc)(\d{2,3}|\d+\.\d):(\d+(?:\.\d+)?)(?:gi?b?)?", re.IGNORECASE)
LINKED = re.compile(r"(.+)@([0-9]{1,9}(?:\.[0-9]{1,6})?)GB/s(?:\+([0-9]{1,9}(?:\.[0-9]{1,6})?)us)?")  # h100@16GB/s+20us


@dataclass(frozen=True, eq=False, slots=True)
class Hardware:
    """A GPU to predict for: a datasheet, a measured profile, or both. Hashed by identity: a cheap key of caches."""

    name: str
    spec: HardwareSpec | None
    profile: HardwareProfile | None
    points: tuple[Path, ...] = ()  # folders of measured points of operators: ours first, then imported ones
    estimated_from: str = ""  # the GPU whose numbers stand in, where neither describes this one
    measured: Path | None = None  # the file of the profile
    sibling: str = ""  # the GPU of the same chip whose points answer for it, where it has none
    faster: str = ""  # a measured GPU of the same chip that is nowhere worse: no time is less than on it
    link: Link | None = None  # to its peers, as the asker gave it, instead of what was measured or promised

    @property
    def title(self) -> str:
        if self.spec:
            return self.spec.title
        assert self.profile
        return self.profile.device

    @property
    def is_cpu(self) -> bool:
        return self.profile is not None and self.profile.kind == "cpu"

    @property
    def memory_bytes(self) -> float:
        """What the device itself reports: where it was measured, or as others published; else the datasheet's."""
        if self.profile:
            return self.profile.memory_bytes
        assert self.spec
        return (self.spec.usable_bytes or self.spec.memory_bytes).value


@lru_cache(maxsize=1)
def spec_names() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in SPECS.glob("*.json")))


def profile_names() -> tuple[str, ...]:
    return tuple(sorted(p.stem for p in PROFILES.glob("*.json") if "." not in p.stem))


@cache
def spec(name: str) -> HardwareSpec:
    return read_spec(SPECS / f"{name}.json")


def read_spec(path: Path) -> HardwareSpec:
    return _spec_from(artifact.read_json(path), str(path))


def _spec_from(raw: Any, where: str) -> HardwareSpec:
    if not isinstance(raw, dict):
        raise ChipError(f"{where}: a GPU's datasheet is a JSON object")
    artifact.check_schema(raw.get("schema"), HardwareSpec.SCHEMA, where)
    found = codec.from_json(HardwareSpec, {k: v for k, v in raw.items() if k not in BESIDE}, where)
    for needed, meaning in NEEDED.items():
        if needed not in found.ceilings:
            raise ChipError(f"{where}: ceilings.{needed} ({meaning}) is missing")
    numbers = {
        **{f"ceilings.{k}": q for k, q in found.ceilings.items()},
        **{n: getattr(found, n) for n in ("units", "boost_clock_hz", "memory_bytes", "l2_bytes", "power_w")},
        **({"usable_bytes": found.usable_bytes} if found.usable_bytes else {}),
        **{f"links.{k}.bytes_per_s": link.bytes_per_s for k, link in found.links.items()},
        **{f"links.{k}.latency_s": link.latency_s for k, link in found.links.items() if link.latency_s},
    }
    for field, quoted in numbers.items():
        if not 0 < quoted.value < 1e30:
            raise ChipError(f"{where}: {field}.value must be a positive number, got {str(quoted.value)[:40]}")
    return found


def read_profile(path: Path) -> HardwareProfile:
    a = artifact.read(path, HardwareProfile.SCHEMA)
    found = codec.from_json(HardwareProfile, a.data, f"{path}: data")
    for group in ("ceilings", "factors"):
        for key, c in getattr(found, group).items():
            if not 0 < c.low <= c.value <= c.high < 1e30:
                raise ChipError(f"{path}: data.{group}.{key} must have 0 < low <= value <= high")
    for kind, lines in found.operators.items():
        PointTable(Path(f"{path}: data.operators") / f"{kind}{SUFFIX}", lines)
    if not 0 < found.memory_bytes < 1e30:
        raise ChipError(f"{path}: data.memory_bytes must be a positive number, got {str(found.memory_bytes)[:40]}")
    for needed in ("hbm_read", "hbm_copy"):
        if needed not in found.ceilings:
            raise ChipError(f"{path}: data.ceilings.{needed} is missing; run `chip calibrate` again")
    return found


@lru_cache(maxsize=64)
def find(name: str) -> Hardware:
    """The GPU that `name` stands for, or a ChipError with near names and the ways to describe another."""
    if not isinstance(name, str) or not name:
        raise ChipError("gpu must be a name such as h200, or a file")
    lowered = name.lower()
    if lowered in spec_names():
        return _bundled(lowered)
    if linked := LINKED.fullmatch(name):
        return _linked(find(linked[1]), linked[2], linked[3])
    by_capability = BY_CAPABILITY.fullmatch(name)
    if by_capability:
        return _by_capability(name, by_capability[1], float(by_capability[2]))
    for other in spec_names():
        if lowered in spec(other).aliases:
            return _bundled(other)
    if name.endswith(".json") or os.path.isfile(name):
        return _from_file(Path(name))
    near = get_close_matches(lowered[:80], spec_names(), 3, 0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "`chip list gpus` shows the known ones."
    raise ChipError(
        f"no GPU {name[:80]!r}; {hint} Another GPU can be described by a JSON file like `chip show h200 --json` "
        "prints, or roughly by compute capability and memory, such as sm_90:80GB"
    )


def is_known(name: str) -> bool:
    """Whether `name` stands for a GPU without a look at any file of the user: bundled, alias, or compute capability."""
    if linked := LINKED.fullmatch(name):
        return is_known(linked[1])
    lowered = name.lower()
    return (
        lowered in spec_names()
        or bool(BY_CAPABILITY.fullmatch(name))
        or any(lowered in spec(n).aliases for n in spec_names())
    )


def points_folder(profile: Path) -> Path:
    """Where the points of a profile lie: my-gpu.json -> my-gpu.points/; of a bundled GPU data/points/<gpu>/."""
    return POINTS / profile.stem if profile.resolve().parent == PROFILES else profile.with_suffix(".points")


def _point_folders(*folders: Path) -> tuple[Path, ...]:
    return tuple(f for f in folders if f.is_dir())


def _of_chip(s: HardwareSpec) -> list[HardwareSpec]:
    """The other GPUs of its chip that have points."""
    names = {*profile_names(), *(f.name for f in IMPORTED.iterdir() if f.is_dir())} - {s.name} if s.chip else ()
    return [other for other in map(spec, sorted(names)) if other.chip and s.chip and other.chip.name == s.chip.name]


def _strengths(s: HardwareSpec) -> dict[str, float]:
    """Everything that a time may hang on."""
    rates = {name: q.value for name, q in s.ceilings.items()}
    own = {"units": s.units.value, "clock": s.boost_clock_hz.value, "l2": s.l2_bytes.value, "power": s.power_w.value}
    return rates | own


def _apart(s: HardwareSpec, other: HardwareSpec) -> float:
    own, theirs = _strengths(s), _strengths(other)
    return sum(abs(log(own[key] / value)) for key, value in theirs.items() if key in own)


def unmeasured(name: str, s: HardwareSpec, folders: tuple[Path, ...] = ()) -> Hardware:
    """A GPU that was never calibrated, with what GPUs of its chip tell about it."""
    own, others = _strengths(s), sorted(_of_chip(s), key=partial(_apart, s))
    better = [o for o in others if all(_strengths(o).get(key, 0.0) >= own[key] for key in own)]
    sibling = others[0].name if others and not folders else ""
    faster = next((o.name for o in better if o.name in profile_names()), "")
    return Hardware(name, s, None, folders, sibling=sibling, faster=faster)


def _bundled(name: str) -> Hardware:
    measured, folders = PROFILES / f"{name}.json", _point_folders(POINTS / name, IMPORTED / name)
    if not measured.is_file():
        return unmeasured(name, spec(name), folders)
    return Hardware(name, spec(name), read_profile(measured), folders, measured=measured)


def _from_file(path: Path) -> Hardware:
    raw = artifact.read_json(path)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if isinstance(schema, str) and schema.startswith("chip.hardware_profile/"):
        measured = read_profile(path)
        sheet = spec(measured.spec) if measured.spec in spec_names() else None
        return Hardware(measured.name, sheet, measured, _point_folders(points_folder(path)), measured=path)
    sheet = _spec_from(raw, str(path))
    return unmeasured(sheet.name, sheet)


def _linked(h: Hardware, gb_per_s: str, latency_us: str | None) -> Hardware:
    """The same GPU, its peers reached over a link that the asker knows."""
    rate, latency_s = float(gb_per_s) * 1e9, float(latency_us or 0) * 1e-6
    if not 1e8 <= rate <= 1e14 or latency_s > 1:
        raise ChipError(f"{h.name}@...: a link has between 0.1 and 100,000 GB/s and at most 1,000,000 us")
    return replace(h, link=Link(Quoted(rate, GIVEN), Quoted(latency_s, GIVEN)))


def _by_capability(name: str, capability: str, memory_gib: float) -> Hardware:
    """Stand in the datasheet of the same compute capability whose memory is nearest."""
    dotted = capability if "." in capability else f"{capability[:-1]}.{capability[-1]}"
    same = [s for s in map(spec, spec_names()) if s.compute_capability == dotted]
    if not same:
        known = sorted({s.compute_capability for s in map(spec, spec_names())})
        raise ChipError(f"no GPU of compute capability {dotted} to estimate from; known: {', '.join(known)}")
    wanted = memory_gib * 2**30
    if not 2**30 <= wanted <= 2**50:
        raise ChipError(f"{name[:40]!r}: memory must be between 1 GB and 1 PB")
    nearest = min(same, key=lambda s: abs(s.memory_bytes.value - wanted))
    memory = Quoted(wanted, GIVEN)
    title = f"GPU of compute capability {dotted} with {memory_gib:g} GiB, estimated from {nearest.title}"
    described = replace(nearest, name=name, title=title, memory_bytes=memory, usable_bytes=None)
    return Hardware(name, described, None, (), nearest.name)


def unlisted(device: str, capability: str, units: int) -> Hardware | None:
    """What stands in for a GPU that has no datasheet: that of the same compute capability with the nearest number of
    SMs. None where there is no such GPU."""
    same = [s for s in map(spec, spec_names()) if capability and s.compute_capability == capability]
    if not same:
        return None
    nearest = min(same, key=lambda s: abs(s.units.value - units))
    title = f"{device}, which is not listed, estimated from {nearest.title}"
    return Hardware(device, replace(nearest, title=title), None, (), nearest.name)


def capability(h: Hardware) -> float:
    """Compute capability as a number, 9.0 of Hopper; 0 where it is not known, as of other vendors' cards."""
    try:
        return float(h.spec.compute_capability) if h.spec else 0.0
    except ValueError:
        return 0.0


def match_device(device: str) -> str:
    """The datasheet of a device as its driver names it ("NVIDIA H200" -> "h200"), or ""."""
    words = set(re.split(r"[^a-z0-9]+", device.lower()))
    best = ""
    for name in spec_names():
        parts = set(name.split("-"))
        if parts <= words and len(parts) >= len(best.split("-") if best else ()):
            best = name
    return best
