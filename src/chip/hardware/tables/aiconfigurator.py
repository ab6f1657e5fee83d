"""Reading aiconfigurator-core (NVIDIA, Apache-2.0): an installed package, its wheel, or a folder it was unpacked to.

Its tables lie under systems/data/<system>/<family>/<backend>/<version>/<table>.parquet. Of several versions of a
table the newest is taken. The package itself is never imported: only its files are read.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from chip.hardware import gpus, points
from chip.hardware.tables import short_runs
from chip.hardware.tables.aiconfigurator_pick import PICK, TOLERANCE
from chip.hardware.tables.aiconfigurator_rows import DTYPES, HOT, ROUTING, SOURCES, Columns, TableSource
from chip.hardware.tables.points_csv import Row, Table
from chip.hardware.tables.thin import merged
from chip.types import ChipError, install

PACKAGE, FOLDER, VERSION = "aiconfigurator-core", "aiconfigurator_core", "0.12.0"
BACKENDS = ("vllm",)
LICENCE = "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES (see NOTICE beside this folder)"
GET = f"`pip download {PACKAGE}=={VERSION} --no-deps` and give the wheel with --package"
# systems by the names that CHIP gives their GPUs
GPUS = {
    "a100_pcie": "a100-pcie",
    "a100_sxm": "a100",
    "a30": "a30",
    "b200_sxm": "b200",
    "gb200": "gb200",
    "h100_pcie": "h100-pcie",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "l4": "l4",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000-server",
}
WEIGHT_COPIES = 6
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 0.5}
LAUNCH_S = 3e-6
# Whose products in bf16 are taken: all engines run cuBLAS for them, and the weights of vLLM's were never set
# (`short_runs`). Up to so many rows SGLang's, which take six weights in turn so that they come from memory. Of more
# rows TensorRT-LLM's: a weight beyond the L2's size is read again and again there, but long runs scatter less.
FEW_ROWS, MANY_ROWS = "sglang", "trtllm"
MANY = 512
CLOCK = "as collected, in short runs at boost clocks. Nothing was corrected here"
ABOUT = {
    "linear": "bf16: SGLang's collector up to 512 rows, TensorRT-LLM's above; both have random operands. fp8, "
    "fp8_block and nvfp4 include the quantisation of the activations. fp8_block: the kernel that vLLM "
    "chooses for the shape; it was not timed in a CUDA graph, so shapes whose time is the host's are left out. hot: "
    "six weights in turn fit the L2, so they were not read from memory",
    "attention": "one cache in turn: what fits the L2 comes from it; prefill is slower than the kernel alone under "
    "200 us on an H200, probably because the cache is written too. bf16_kv_fp8: bf16 queries over an fp8 cache",
    "moe_experts": f"routing of tokens to experts: {ROUTING}, no expert parallelism; intermediate is that of one GPU. "
    "At one to four tokens 8 to 11 us longer than our own records on an H200, probably with the choice of experts",
    "mla_module": "a whole attention module of DeepSeek-V3 (hidden 7168), its projections included: do not add them. "
    "dtype is that of the projections; the cache is bf16",
    "bmm": "products that absorb the up-projections of latent attention",
    "all_reduce": "bytes of the tensor that each GPU holds; vllm: its custom kernel, and NCCL where that is larger "
    "than it takes; context host: launched by the host, one by one",
    "all_gather": "bytes of the gathered tensor",
    "reduce_scatter": "bytes of the tensor before it is scattered",
    "moe_dispatch": "DeepEP: tokens of each GPU, sent once to every GPU of one host that has an expert for them",
    "moe_combine": "DeepEP: the experts' results back to the GPU of the token, and added up",
    "all_to_all": "bytes that each GPU sends in all, its own share included",
}
Part = tuple[TableSource, str, str, list[Row]]  # of a table: its source, file, device and rows


@dataclass(frozen=True, slots=True)
class Package:
    """The files of the package, wherever they lie."""

    systems: Path | zipfile.Path
    where: str

    def names(self) -> list[str]:
        return sorted(p.name for p in (self.systems / "data").iterdir() if p.is_dir())

    def of_backend(self, backend: str) -> list[str]:
        """Systems that have products of an engine: the others have only collectives, or another engine's."""
        return [n for n in self.names() if (self.systems / "data" / n / "gemm" / backend).is_dir()]

    def versions(self, system: str, family: str, backend: str, file: str) -> list[str]:
        folder = self.systems / "data" / system / family / backend
        if not folder.is_dir():
            return []
        found = [p.name for p in folder.iterdir() if (p / f"{file}.parquet").is_file()]
        return sorted(found, key=lambda v: [int(n) for n in re.findall(r"\d+", v)])


def find(path: str = "") -> Package:
    if not path:
        spec = importlib.util.find_spec(FOLDER)
        if spec is None or not spec.submodule_search_locations:
            raise ChipError(f"{PACKAGE} is not installed: pip install {PACKAGE}=={VERSION}, or {GET}")
        _check_version(importlib.metadata.version(PACKAGE), "it is installed")
        return Package(Path(spec.submodule_search_locations[0], "systems"), "the installed package")
    given = Path(path)
    root: Path | zipfile.Path = given
    if given.is_file():
        if not zipfile.is_zipfile(given):
            raise ChipError(f"{path}: is not a wheel; {GET}")
        root = zipfile.Path(given)
    elif not given.is_dir():
        raise ChipError(f"{path}: no such wheel or folder; {GET}")
    infos = [p.name for p in root.iterdir() if re.fullmatch(FOLDER + r"-[^-]+\.dist-info", p.name)]
    systems = root / FOLDER / "systems"
    if not infos or not (systems / "data").is_dir():
        raise ChipError(f"{path}: holds no {PACKAGE} (a folder {FOLDER}/systems/data); {GET}")
    _check_version(infos[0].removesuffix(".dist-info").rpartition("-")[2], path)
    return Package(systems, given.name)


def _check_version(found: str, where: str) -> None:
    if found != VERSION:
        raise ChipError(f"{where}: {PACKAGE} {found}; only {VERSION} is read, since its tables change: {GET}")


def tables(
    package: Package, system: str, backend: str, every: bool = False, tolerance: float = TOLERANCE
) -> list[Table]:
    """All that CHIP has an operator for, one table a kind. `every`: all shapes, not only those that models have."""
    _check_system(package, system, backend)
    made: dict[str, list[Part]] = {}
    for source in SOURCES:
        for file in source.files:
            folder = "nccl" if source.nccl else backend
            versions = package.versions(system, source.family, folder, file)
            if not versions:
                continue
            relative = f"{source.family}/{folder}/{versions[-1]}/{file}.parquet"
            columns, device = _read(package, system, relative, source)
            rows = list(source.convert(columns))
            if source.kind == "linear" and (random := _random_products(package, system, source)):
                made["linear"] = random
                rows = [row for row in rows if row.dtype != "bf16"]
            made.setdefault(source.kind, []).append((source, relative, device, rows))
    found = [_table(kind, parts, system, every, tolerance) for kind, parts in made.items()]
    return [replace(t, notes=t.notes | _settling(package, system)) if t.kind == "linear" else t for t in found]


def _random_products(package: Package, system: str, source: TableSource) -> list[Part]:
    """The products in bf16 with random operands; none where the package has none for the system."""
    names = (FEW_ROWS, MANY_ROWS)
    if not all(package.versions(system, source.family, name, *source.files) for name in names):
        return []
    return [_of_collector(package, system, source, name) for name in names]


def _of_collector(package: Package, system: str, source: TableSource, name: str, every: bool = False) -> Part:
    """The products in bf16 of an engine's collector, of the rows that it stands for."""
    (file,) = source.files
    version = package.versions(system, source.family, name, file)[-1]
    relative = f"{source.family}/{name}/{version}/{file}.parquet"
    columns, device = _read(package, system, relative, source, "bfloat16")
    rows = [row._replace(kernel="torch") for row in source.convert(columns)]
    return source, relative, device, [row for row in rows if every or (row.at[0] > MANY) == (name == MANY_ROWS)]


def _check_system(package: Package, system: str, backend: str) -> None:
    if backend not in BACKENDS:
        raise ChipError(f"backend {backend[:40]!r} is not read; choose one of {', '.join(BACKENDS)}")
    known = package.names()
    if system not in known:
        near = get_close_matches(system, known, 2, 0.4)
        hint = f"did you mean {' or '.join(near)}?" if near else f"it has {', '.join(known)}"
        raise ChipError(f"{package.where} has no system {system[:40]!r}; {hint}")
    held = package.of_backend(backend)
    if system not in held:
        raise ChipError(f"{package.where} has no tables of {backend} for {system}; it has them for {', '.join(held)}")


def warm(rows: Sequence[Row], l2_bytes: float, hbm_bytes_per_s: float) -> list[Row]:
    """Products with their context corrected. The tables take several weights in turn, not enough of them to be cold on
    a large L2: on an L40S (96 MiB) weights up to 16.8 MB and on an RTX PRO 6000 (128 MiB) up to 22 MB were read faster
    than the memory delivers. Where reading them takes no longer than a launch it makes no difference."""

    def context(row: Row) -> str:
        _, n, k = row.at
        weight_bytes = n * k * WEIGHT_BYTES[row.dtype]
        fits = WEIGHT_COPIES * weight_bytes <= l2_bytes
        return HOT if fits and weight_bytes / hbm_bytes_per_s > LAUNCH_S else row.context

    return [row._replace(context=context(row)) for row in rows]


def _table(kind: str, parts: Sequence[Part], system: str, every: bool, tolerance: float) -> Table:
    found = merged([row for *_, rows in parts for row in rows])
    if kind == "linear" and system in GPUS:
        sheet = gpus.spec(GPUS[system])
        found = warm(found, sheet.l2_bytes.value, sheet.ceilings["hbm"].value)
    picked = found if every else PICK[kind](found, tolerance)
    files = ", ".join(dict.fromkeys(relative for _, relative, _, _ in parts))
    kept = "every shape" if every else f"{len(picked)} of {len(found)}, curves over tokens to {100 * tolerance:g} %"
    notes = {
        "device": parts[0][2],
        "source": f"{PACKAGE} {VERSION}, systems/data/{system}: {files}",
        "licence": LICENCE,
        "changed": f"converted from Parquet to this form; latencies in us; shapes kept: {kept}",
        "clock": CLOCK,
        "about": ABOUT[kind],
    }
    return Table(kind, parts[0][0].axes, tuple(picked), notes)


def _settling(package: Package, system: str) -> dict[str, str]:
    """The note that says how the GPU's clock settles, with the time constant of the one that CHIP measured."""
    source = next(s for s in SOURCES if s.kind == "linear")
    if not package.versions(system, source.family, FEW_ROWS, *source.files):
        return {}
    _, path, _, rows = _of_collector(package, system, source, FEW_ROWS, every=True)
    words = points.about(gpus.POINTS / "h200" / "linear.csv")["settling"].split()
    settled = short_runs.settling(rows, float(dict(word.split("=") for word in words)["time_s"]))
    if settled is None:
        return {}
    flop_per_s, boost = settled
    return {"settled by": path, "settling": f"boost={boost:.4g} measured=1 flop_per_s={flop_per_s:.4g}"}


def _read(package: Package, system: str, relative: str, source: TableSource, only: str = "") -> tuple[Columns, str]:
    """`only`: rows of products in this format."""
    parquet = _parquet()
    path = package.systems / "data" / system / relative
    where = f"{package.where}: {system}/{relative}"
    with path.open("rb") as file:
        try:
            table = parquet.read_table(file)
        except Exception as e:  # pyarrow's own classes, which are not imported where it is not installed
            raise ChipError(f"{where}: cannot be read as Parquet ({str(e)[:80]}); get it again: {GET}") from None
    missing = [c for c in source.columns if c not in table.column_names]
    if missing:
        raise ChipError(f"{where}: column {missing[0]!r} is missing; only {PACKAGE} {VERSION} is read: {GET}")
    columns: dict[str, list[Any]] = {c: table.column(c).to_pylist() for c in table.column_names}
    if only:
        rows = [i for i, name in enumerate(columns["gemm_dtype"]) if name == only]
        columns = {name: [values[i] for i in rows] for name, values in columns.items()}
    _check_values(columns, source, where)
    device = next(iter(columns.get("device") or ["not named"]))
    return columns, str(device)


def _check_values(columns: Columns, source: TableSource, where: str) -> None:
    for name in source.columns:
        if name.endswith("dtype") or name == "gemm_type":
            unknown = {str(v) for v in columns[name]} - set(DTYPES) - {"int8"}
            if unknown:
                raise ChipError(f"{where}: {name} {sorted(unknown)[0]!r} is not known to this reader")
    if not all(isinstance(ms, float) and 0 < ms < 1e9 for ms in columns["latency"]):
        raise ChipError(f"{where}: latency must be a positive number of milliseconds in every row")


def _parquet() -> Any:
    try:
        load: Callable[[str], Any] = importlib.import_module
        return load("pyarrow.parquet")
    except ImportError:
        raise ChipError(f"reading Parquet needs pyarrow: {install('import')}") from None
