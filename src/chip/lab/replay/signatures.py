"""The workload of a step as a file one can carry, edit and replay: each unique kernel once, with its count and tier."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from chip import stats
from chip.files import artifact, codec
from chip.files.traces import Kernel, Operator, Trace, check_kernel, check_operator
from chip.lab.replay import gemm, tiers
from chip.types import ChipError

ENERGY_SHARE = 0.9  # of the time: the units whose joules are worth measuring


@dataclass(frozen=True, slots=True)
class Signature:
    """A unique kernel: what it is, how often it ran, how long in the model, and how it can be run again."""

    key: str  # the same kernel with the same arguments has the same key, in every file
    kernel: Kernel
    tier: int | None  # 1, 2, 3; None: cannot be run again, `reason` says why
    family: str  # runtime, cublas, attention, native, triton, custom
    launches: int
    median_ns: float  # as captured
    total_ns: int
    gemm: gemm.Gemm | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KernelWorkload:
    SCHEMA: ClassVar[str] = "chip.kernel_signatures/1"

    title: str
    device: str
    source: str
    operators: tuple[Operator, ...]
    signatures: tuple[Signature, ...]
    l2_bytes: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unit:
    """What is run at once: one operator's kernels of one tier, in the order of their launch."""

    tier: int
    operator: Operator | None
    members: tuple[Signature, ...]
    share: float = 0.0  # of all kernels' time
    energy: bool = False  # one of those that make ENERGY_SHARE of the time

    @property
    def key(self) -> str:
        return "+".join(s.key for s in self.members)

    @property
    def median_s(self) -> float:
        """As captured."""
        return sum(s.median_ns for s in self.members) * 1e-9


@dataclass(frozen=True, slots=True)
class TierShare:
    """How much of the step a tier is."""

    launches: int = 0
    unique: int = 0
    total_ns: int = 0
    launch_share: float = 0.0
    time_share: float = 0.0
    families: dict[str, int] = field(default_factory=dict)  # launches


def workload_of(trace: Trace) -> KernelWorkload:
    """Group the launches of a trace."""
    durations: dict[int, list[int]] = defaultdict(list)
    for event in trace.events:
        durations[event.kernel].append(event.duration_ns)
    rows = []
    for index, kernel in enumerate(trace.kernels):
        if durations[index]:
            operator = None if kernel.operator is None else trace.operators[kernel.operator]
            rows.append(_signature(kernel, operator, durations[index]))
    rows.sort(key=lambda s: -s.total_ns)
    return KernelWorkload(
        trace.title, trace.device, trace.source, trace.operators, tuple(rows), trace.l2_bytes, tuple(trace.missing)
    )


def _signature(kernel: Kernel, operator: Operator | None, durations: list[int]) -> Signature:
    tier = tiers.tier_of(kernel, operator)
    product, reason = None, "" if tier else "no operator launched it: it can be named, not called again"
    if tier == 2 and operator is not None:
        product_or_why = gemm.gemm_of(operator)
        if isinstance(product_or_why, gemm.Gemm):
            product = product_or_why
        else:
            tier, reason = 3, f"called through its operator: {product_or_why}"
    return Signature(
        key_of(kernel, operator),
        kernel,
        tier,
        tiers.family_of(kernel),
        len(durations),
        stats.median(durations),
        sum(durations),
        product,
        reason,
    )


def units_of(workload: KernelWorkload, only: Iterable[int] = ()) -> list[Unit]:
    """Units to run, the longest first; `only` names tiers."""
    wanted = set(only) or set(tiers.TIERS)
    total_ns = sum(s.total_ns for s in workload.signatures) or 1
    groups: dict[tuple[int, int | None, str], list[Signature]] = {}
    for s in workload.signatures:
        if s.tier is not None:
            alone = s.key if s.tier == 1 or s.kernel.operator is None else ""
            groups.setdefault((s.tier, s.kernel.operator, alone), []).append(s)
    units = []
    before = 0.0
    for (tier, operator, _), members in sorted(groups.items(), key=lambda g: -sum(s.total_ns for s in g[1])):
        share = sum(s.total_ns for s in members) / total_ns
        in_order = tuple(sorted(members, key=lambda s: s.kernel.position))
        called = None if operator is None else workload.operators[operator]
        units.append(Unit(tier, called, in_order, share, before < ENERGY_SHARE))
        before += share
    return [unit for unit in units if unit.tier in wanted]


def key_of(kernel: Kernel, operator: Operator | None) -> str:
    text = repr((kernel.name, kernel.kind, kernel.grid, kernel.block, kernel.size_bytes, kernel.position, operator))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def shares(workload: KernelWorkload) -> dict[str, TierShare]:
    """By tier, and `unclassified` for what has none."""
    launches = sum(s.launches for s in workload.signatures) or 1
    time_ns = sum(s.total_ns for s in workload.signatures) or 1
    by_tier = {}
    for tier, name in [*tiers.TIERS.items(), (None, "unclassified")]:
        mine = [s for s in workload.signatures if s.tier == tier]
        families: Counter[str] = Counter()
        for s in mine:
            families[s.family] += s.launches
        n, total = sum(s.launches for s in mine), sum(s.total_ns for s in mine)
        by_tier[name] = TierShare(n, len(mine), total, n / launches, total / time_ns, dict(families))
    return by_tier


def write(path: Path, workload: KernelWorkload, environment: dict[str, Any], inputs: tuple[str, ...]) -> None:
    artifact.write(path, artifact.new(KernelWorkload.SCHEMA, codec.to_json(workload), environment, inputs))


def read(path: Path) -> tuple[artifact.Artifact, KernelWorkload]:
    document = artifact.read(path, KernelWorkload.SCHEMA)
    workload = codec.from_json(KernelWorkload, document.data, str(path))
    for i, operator in enumerate(workload.operators):
        check_operator(operator, f"{path}: operators[{i}]")
    for i, s in enumerate(workload.signatures):
        check_kernel(s.kernel, len(workload.operators), f"{path}: signatures[{i}]")
        if s.tier is not None and s.tier not in tiers.TIERS:
            raise ChipError(f"{path}: signatures[{i}] has tier {s.tier}; tiers are 1, 2, 3 or null")
        if s.tier in (2, 3) and s.kernel.operator is None:
            raise ChipError(f"{path}: signatures[{i}] is of tier {s.tier} and names no operator to call")
        if s.launches < 1:
            raise ChipError(f"{path}: signatures[{i}] must have at least one launch")
    return document, workload
