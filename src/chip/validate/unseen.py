"""Leave one model out: predict it from points without any of its shapes.

Points are of operators, not of runs, but a model whose widths were among the measured ones is not a model never
measured. Here each model is.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chip import engines
from chip.decoders.decoder import Decoder
from chip.decoders.lower import body, head
from chip.dtypes import precision
from chip.files import artifact, codec, measurements
from chip.files.runs import id_of
from chip.hardware import gpus
from chip.hardware import points as point_files
from chip.hardware.points import PointGroup
from chip.ops.attention import Attention
from chip.ops.elementwise import OverRows
from chip.ops.linear import Linear
from chip.ops.masked_attention import MaskedAttention
from chip.predictor.stages import Stage
from chip.types import ChipError, HardwareProfile, Measurement, Op
from chip.validate.judge import Validation, decoder_of, judge
from chip.validate.points import Point

Fit = Callable[[Sequence[Measurement]], Sequence[PointGroup]]
Shape = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Unseen:
    """One model judged twice at the points stage: with the points as they are, and without its shapes."""

    model: str
    left_out: int  # measurements
    seen: tuple[Point, ...]
    unseen: tuple[Point, ...]


def shape(op: Op) -> Shape | None:
    """What a model fixes of an operator, whatever the number of tokens; None for operators without points."""
    if isinstance(op, Linear):
        return op.kind, op.n, op.k
    if isinstance(op, (Attention, MaskedAttention)):
        return op.kind, op.heads, op.kv_heads, op.head_dim
    if isinstance(op, OverRows):
        return op.kind, op.cols  # type: ignore[attr-defined]
    return None


def shapes(decoder: Decoder, engine: str, dtype: str, tp: int) -> set[Shape | None]:
    """The shapes of all operators that the engine launches."""
    e, p = engines.get(engine), precision(dtype)
    layers, last = body(decoder, 1, p, tp), head(decoder, 1, p, tp)
    programs = [e.rewrite(*of, decoder.architecture) for of in ((layers, True), (layers, False), (last, False))]
    return {shape(c.op) for program in programs for b in program.blocks for c in b.calls} - {None}


def read(paths: Iterable[Path], gpu: str) -> list[Measurement]:
    """The measurements that the points of a GPU were made from: these files and no others."""
    h = gpus.find(gpu)
    if not h.points or h.measured is None:
        raise ChipError(f"{gpu} has no points of operators, so there is no shape to leave out")
    inputs = point_files.about(h.points[0] / f"linear{point_files.SUFFIX}").get("inputs", "").split()
    profile = artifact.read(h.measured, HardwareProfile.SCHEMA)
    wanted = set(inputs) - {profile.id, *profile.inputs}
    records: list[Measurement] = []
    for path in paths:
        header, these = measurements.read(path)
        one = artifact.new(header["schema"], [codec.to_json(m) for m in these], {}).id
        if one not in wanted:
            raise ChipError(f"{path}: the points in {h.points[0].name} were not made from it")
        wanted.remove(one)
        records += these
    if wanted:
        raise ChipError(
            f"{h.points[0].name} was also made from {', '.join(sorted(wanted))}; give these measurements too"
        )
    return records


def leave_one_model_out(v: Validation, records: Sequence[Measurement], fit: Fit) -> Iterable[Unseen]:
    """Each model in turn, over the runs that were judged."""
    h = gpus.find(v.gpu)
    assert h.measured
    judged = {p.run for p in v.points}
    for model in dict.fromkeys(p.model for p in v.points):
        runs = [tuple(r for r in s.ok if r.model == model and id_of(r) in judged) for s in v.sources]
        mine = [replace(s, held=replace(s.held, runs=shapes_of_model)) for s, shapes_of_model in zip(v.sources, runs)]
        shapes_of_model = {
            one
            for s in mine
            for r in s.ok
            for one in shapes(decoder_of(s, r), r.engine, r.scenario.dtype, r.scenario.tp)
        }
        others = [m for m in records if shape(measurements.operator(m.op)) not in shapes_of_model]
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder, h.measured.name)
            shutil.copyfile(h.measured, profile)
            about_points = point_files.about(h.points[0] / f"linear{point_files.SUFFIX}")
            # how the clock settles is the device's property, whatever model is left out
            about = {"device": h.profile.device if h.profile else ""} | {
                k: about_points[k] for k in ("settling",) if k in about_points
            }
            groups = fit(others)
            for kind in dict.fromkeys(g.kind for g in groups):
                path = gpus.points_folder(profile) / f"{kind}{point_files.SUFFIX}"
                point_files.write(path, about, [g for g in groups if g.kind == kind])
            unseen = judge(mine, str(profile), stage=Stage.POINTS)
        seen = judge(mine, v.gpu, stage=Stage.POINTS)
        yield Unseen(model, len(records) - len(others), seen.points, unseen.points)
