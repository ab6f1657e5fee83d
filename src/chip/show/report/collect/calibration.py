"""Hardware and host profiles: ceilings beside the datasheet, calibration factors, power, curves, and the roofs."""

from __future__ import annotations

from chip.files import codec
from chip.hardware import gpus, roofline
from chip.show.report.sources import Opened
from chip.show.report.summary import Summary
from chip.types import Ceiling, ChipError, HardwareSpec, HostProfile

SCHEMAS = ("chip.hardware_profile", "chip.host_profile")
ORDER = 0


def collect(opened: Opened, out: Summary) -> int:
    if opened.schema.startswith("chip.host_profile/"):
        host = codec.from_json(HostProfile, opened.data, opened.name)
        for name, c in host.terms.items():
            _ceiling(out, opened.name, host.cpu, "host", name, c, None)
        return len(host.terms)
    profile = gpus.read_profile(opened.path)
    sheet = gpus.spec(profile.spec) if profile.spec in gpus.spec_names() else None
    groups = {"ceiling": profile.ceilings, "factor": profile.factors, "power": profile.power}
    for group, found in groups.items():
        for name, c in found.items():
            _ceiling(out, opened.name, profile.device, group, name, c, _promised(sheet, group, name))
    for name, curve in profile.curves.items():
        if len(curve.x) != len(curve.y):
            raise ChipError(f"{opened.path}: data.curves.{name} has {len(curve.x)} x and {len(curve.y)} y")
        names = {"x_name": curve.x_name, "x_unit": curve.x_unit, "y_name": curve.y_name, "y_unit": curve.y_unit}
        for x, y in zip(curve.x, curve.y):
            out.add("curves", device=profile.device, curve=name, x=x, y=y, source=opened.name, **names)
    add_roofs(out, opened.name, profile.device, roofline.from_profile(profile))
    out.profiles.setdefault(profile.device, profile)
    return sum(map(len, groups.values()))


def _promised(sheet: HardwareSpec | None, group: str, name: str) -> float | None:
    if sheet is None or group != "ceiling":
        return None
    plain = name.removesuffix(roofline.SETTLED)
    quoted = sheet.ceilings.get("hbm" if plain.startswith("hbm_") else plain)
    return quoted.value if quoted else None


def _ceiling(
    out: Summary, source: str, device: str, group: str, name: str, c: Ceiling, datasheet: float | None
) -> None:
    same = ("value", "low", "high", "unit", "clock_hz", "watts", "celsius", "method")
    share = c.value / datasheet if datasheet else None
    about = {"device": device, "group": group, "name": name, "datasheet": datasheet, "share_of_datasheet": share}
    values = {key: getattr(c, key) for key in same} | {"samples": len(c.samples), "flags": ", ".join(c.flags)}
    out.add("ceilings", source=source, **about, **values)


def add_roofs(out: Summary, source: str, device: str, found: roofline.Roofs) -> None:
    same = {"device": device, "basis": found.source, "source": source}
    for roof in found.compute.values():
        out.add("roofs", kind="compute", name=roof.name, value=roof.value, unit="FLOP/s", settled=roof.settled, **same)
    for roof in found.memory.values():
        out.add("roofs", kind="memory", name=roof.name, value=roof.value, unit="B/s", **same)
    if found.floor_s:
        out.add("roofs", kind="launch", name="least time of a kernel", value=found.floor_s, unit="s", **same)
