"""Reading results: each file is told by its `schema` and handed to the collector of that schema.

A file that nobody understands, or that is broken, is listed with its reason: nothing is dropped in silence.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from chip.decoders import library
from chip.files import artifact, output
from chip.hardware import points
from chip.show.report import collect, headlines, pairs, spreads, tallies
from chip.show.report.summary import Summary
from chip.types import ChipError

LARGEST_FILE = 64 << 20  # bytes
SUFFIXES = (".json", ".jsonl", ".ndjson", points.SUFFIX)
NOT_SHOWN = {  # of use to other commands, whose results are shown
    "chip.trace": "`chip explain` and `chip validate --by-operator` read it",
    "chip.traffic": "`chip validate` judges simulations by it",
    "chip.kernel_signatures": "`chip replay` reads it",
    "chip.engine_profile": "`chip predict --engine-profile` reads it",
    "chip.replay": "`chip explain` reads it",
    "chip.full_model_timing": "comparison_report.json has the same step",
    "chip.peer_answers": "`chip validate` reads it",
    "chip.profiler_trace": "the profiler's own trace, for Perfetto",
    "chip.step_timeline": "`chip predict --timeline` wrote it for Perfetto",
    "chip.power_limit": "`benchmarks/power_limit.py` holds energies against it",
    "chip.lab": "`chip lab` keeps its steps in it",
    "chip.hardware_spec": "a datasheet: profiles are shown beside theirs",
    "chip.kernel_counters": "`chip kernels profile` printed it",
    "chip.kernel_check": "`chip kernels check` printed it",
    "chip.kernel_sanitize": "`chip kernels check --sanitize` printed it",
    "chip.benchmark_native": "benchmarks/ makes it: results/h200/README.md tells of it",
    "chip.kernel_plans": "how `chip kernels bench` launched what is shown",
}
KINDS = ("class", "group", "peer", "stage", "unseen", "operator")  # of accuracy, in the order they are shown
OUR_OWN = ("index.html", "summary.json", "summary.csv", "site.json")


@dataclass
class Opened:
    """A results file whose schema is known; `data` is what the collector is to read."""

    path: Path
    name: str  # as shown
    schema: str
    data: Any  # the JSON document, its "data" where it is an artifact; of JSON Lines nothing
    envelope: Mapping[str, Any] = field(default_factory=dict)

    @property
    def environment(self) -> Mapping[str, Any]:
        found = self.envelope.get("environment")
        return found if isinstance(found, dict) else {}


MOST_ENTRIES = 50_000  # of a folder that is searched
MOST_FILES, MOST_BYTES = 1000, 64 << 20  # of them that may be results: what is read in some ten seconds


@cache
def collectors() -> dict[str, ModuleType]:
    """Schema without its version -> the module of `collect` that reads it, in the order they must run."""
    modules = [import_module(f"{collect.__name__}.{name}") for _, name, _ in pkgutil.iter_modules(collect.__path__)]
    modules.sort(key=lambda m: m.ORDER)
    return {schema: m for m in modules for schema in m.SCHEMAS}


def _inside(folder: Path) -> Iterable[Path]:
    """Files that may be results; a folder such as / is refused before hours are spent in it."""
    files = size = 0
    for count, path in enumerate(folder.rglob("*")):
        if count >= MOST_ENTRIES:
            raise ChipError(f"{folder}: holds over {MOST_ENTRIES} files; name the folders that hold results")
        if path.suffix in SUFFIXES and path.is_file() and path.name not in OUR_OWN:
            own = path.stat().st_size
            files, size = files + 1, size + (own if own <= LARGEST_FILE else 0)  # larger ones are not read
            if files > MOST_FILES or size > MOST_BYTES:
                most = f"{MOST_FILES} files or {MOST_BYTES >> 20} MiB"
                raise ChipError(f"{folder}: what may be results in it are over {most}; name the folders that hold them")
            yield path


def find(paths: Iterable[Path]) -> list[tuple[Path, str]]:
    """(file, name to show) of all results; folders are searched, and a file given twice counts once."""
    found: dict[Path, tuple[Path, str]] = {}
    for given in paths:
        if given.is_dir():
            for p in sorted(_inside(given)):
                found.setdefault(p.resolve(), (p, p.relative_to(given).as_posix()))
        elif given.is_file():
            found.setdefault(given.resolve(), (given, given.name))
        else:
            raise ChipError(f"{given}: no such file or folder")
    return list(found.values())


def gather(paths: Iterable[Path], title: str = "") -> Summary:
    """The summary of all results under `paths`."""
    out = Summary(title)
    files = find(paths)
    understood = [opened for path, name in files if (opened := _open(path, name, out)) is not None]
    order = list(collectors())
    understood.sort(key=lambda o: order.index(_family(o.schema)))  # profiles first: operators stand under their roofs
    seen: dict[str, str] = {}  # id -> file
    for opened in understood:
        content = opened.envelope.get("id")
        if isinstance(content, str) and content in seen:
            same = {"file": opened.name, "schema": opened.schema, "id": content, "status": "repeated"}
            out.add("sources", reason=f"the same as {seen[content]}", **same)
        else:
            _collect(opened, out)
            seen[str(content)] = opened.name
    out.tables["accuracy"].sort(key=lambda row: KINDS.index(str(row["kind"])))
    out.tables["runs"].sort(key=lambda row: not row["bundled"])  # models cut down to calibrate an engine come last
    out.runs.sort(key=lambda held: held[1].model not in library.names())
    pairs.add(out)
    tallies.add(out)
    spreads.add(out)
    headlines.add(out)
    return out


def _family(schema: str) -> str:
    return schema.rsplit("/", 1)[0]


def _open(path: Path, name: str, out: Summary) -> Opened | None:
    """The file, if somebody understands it; else its row says why not."""
    try:
        raw = _head(path)
    except (ChipError, OSError) as e:
        out.add("sources", file=name, status="refused", reason=str(e).removeprefix(f"{path}: "))
        return None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str):
        out.add("sources", file=name, status="not understood", reason="has no schema")
        return None
    if _family(schema) in NOT_SHOWN:
        out.add("sources", file=name, schema=schema, status="not shown", reason=NOT_SHOWN[_family(schema)])
        return None
    if _family(schema) not in collectors():
        out.add("sources", file=name, schema=schema, status="not understood", reason="no section shows this schema")
        return None
    is_artifact = {"data", "environment", "inputs"} <= set(raw)
    return Opened(path, name, schema, raw["data"] if is_artifact else raw, raw)


def _head(path: Path) -> Any:
    """The whole document, or the header line of JSON Lines."""
    with artifact.opened_bytes(path, LARGEST_FILE) as f:
        first = f.readline(1 << 20)
        begins = output.SCHEMA.match(first + f.read(200))
    if begins and begins[1].decode() in NOT_SHOWN:
        return {"schema": begins[0].decode().split('"')[3]}
    if path.suffix == points.SUFFIX:
        return {"schema": points.SCHEMA} if first.startswith(b"# ") else {}
    if path.suffix != ".json":
        try:
            return json.loads(first)
        except (ValueError, RecursionError):
            raise ChipError("its first line is not JSON") from None
    return artifact.read_json(path)


def _collect(opened: Opened, out: Summary) -> None:
    before = {name: len(rows) for name, rows in out.tables.items()}
    module = collectors()[_family(opened.schema)]
    status, reason, records = "read", "", 0
    try:
        records = module.collect(opened, out)
    except ChipError as e:
        status, reason = "refused", str(e).removeprefix(f"{opened.path}: ")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as e:
        status, reason = "refused", f"is not a whole {opened.schema} ({type(e).__name__}: {str(e)[:80]})"
    if status == "refused":
        for name, rows in out.tables.items():  # half a file is worse than none
            del rows[before[name] :]
    environment = opened.environment
    out.add(
        "sources",
        file=opened.name,
        schema=opened.schema,
        id=opened.envelope.get("id"),
        made=_day(opened.envelope.get("made")),
        status=status,
        reason=reason,
        records=records,
        device=opened.envelope.get("device") or environment.get("device"),
        inputs=" ".join(map(str, _list(opened.envelope.get("inputs")))),
        environment=dict(environment),
        **{key: environment.get(key) for key in ("chip", "torch", "cuda", "driver", "python", "cpu")},
    )


def _day(made: Any) -> Any:
    """When a file was written; benchmarks/ say it among other things."""
    return made.get("date") if isinstance(made, dict) else made


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def troubles(out: Summary) -> Iterator[str]:
    """One line for each file that is not in the report."""
    for row in out.tables["sources"]:
        if row["status"] in ("not understood", "refused"):
            yield f"{row['status']}: {row['file']}: {row['reason']}"
