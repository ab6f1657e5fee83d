"""Files of runs against predictions: every metric of every run, refusing what a prediction was made from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from chip import engines
from chip.decoders import describe, library
from chip.decoders.decoder import Decoder
from chip.engines.options import Settings, parse
from chip.files import runs
from chip.files.runs import Run, Runs
from chip.hardware import gpus
from chip.predictor.request import predict
from chip.predictor.stages import ALL, Stage
from chip.question import Question
from chip.types import ChipError
from chip.validate.points import FIRST, METRICS, Point, compare
from chip.validate.provenance import UsedFile, leaked, rests_on

# Files of engines' terms, by engine and by the name of the file of runs that they are for: "" for all others.
Terms = Mapping[tuple[str, str], str]


@dataclass(frozen=True, slots=True)
class RunsSource:
    """A file of runs with where it was measured."""

    path: Path
    id: str
    device: str
    held: Runs
    decoders: dict[str, Decoder] = field(default_factory=dict)  # those asked for, by model: one for all of its runs

    @property
    def ok(self) -> list[Run]:
        return [r for r in self.held.runs if r.status == "ok"]


@dataclass(frozen=True, slots=True)
class Validation:
    """Points of one stage, with what the predictions rest on and what could not be judged."""

    gpu: str
    stage: Stage
    sources: tuple[RunsSource, ...]
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()
    used: tuple[UsedFile, ...] = field(default=())
    files: Mapping[str, str] = field(default_factory=dict)  # from the id of a run to that of its file


def read(paths: Iterable[Path]) -> list[RunsSource]:
    """Files, and all the .json files of folders."""
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not inside:
            raise ChipError(f"{path}: the folder holds no file of runs (.json)")
        files += inside
    sources = []
    for path in files:
        document, these = runs.read(path)
        devices = {r.device for r in these.runs if r.device} or {str(document.environment.get("device", ""))}
        if len(devices) > 1:
            raise ChipError(f"{path}: holds runs of several devices: {', '.join(sorted(devices))}")
        sources.append(RunsSource(path, document.id, devices.pop(), these))
    return sources


def gpu_of(sources: Sequence[RunsSource], wanted: str) -> str:
    """The GPU to predict for: the one given if the runs are of it, else the bundled one that the runs name."""
    devices = sorted({s.device for s in sources})
    if len(devices) > 1:
        raise ChipError(f"the runs are of several devices: {', '.join(devices)}; validate them one by one")
    device = devices[0]
    name = wanted or gpus.match_device(device)
    if not name:
        raise ChipError(f"no GPU is known for runs of {device or 'a device they do not name'}; give --gpu PROFILE.json")
    h = gpus.find(name)
    is_title = h.profile.device if h.profile else h.title
    other = is_title != device if h.profile else h.name in gpus.spec_names() and h.name != gpus.match_device(device)
    if device and other:
        raise ChipError(f"--gpu {name} is {is_title}, the runs are of {device}")
    return name


def judge(
    sources: Sequence[RunsSource],
    gpu: str,
    engine: str = "",
    stage: Stage = ALL,
    terms: Terms | None = None,
    latency_known: bool = False,
) -> Validation:
    """Compare every ok run (of one engine, where given). A leaked run is an error, a run that cannot be predicted is
    left out by name. `terms`: files to predict from instead of the GPU's own. `latency_known`: with the launch latency
    that was measured beside each run, instead of an unknown host."""

    def file_of(source: RunsSource, run: Run) -> str:
        files_of = terms or {}
        return files_of.get((source.path.stem, run.engine)) or files_of.get(("", run.engine), "")

    wanted = [(s, r) for s in sources for r in s.ok if engine in ("", r.engine)]
    if not wanted:
        raise ChipError(f"no run to judge: none is ok{f' and of engine {engine}' if engine else ''}")
    pairs = dict.fromkeys((r.engine, file_of(s, r)) for s, r in wanted)
    used = {(name, file): rests_on(gpu, name, file) for name, file in pairs}
    points: list[Point] = []
    files: dict[str, str] = {}
    left_out = [
        f"{label(r)}: {r.status} ({r.reason})"
        for s in sources
        for r in s.held.runs
        if r.status != "ok" and engine in ("", r.engine)
    ]
    for source, run in wanted:
        run_id, file = runs.id_of(run), file_of(source, run)
        files[run_id] = source.id
        refuse_leaked(source, run, run_id, used[run.engine, file])
        try:
            model = decoder_of(source, run)
            q = Question.of(model, gpu, run.engine, run.scenario, engine_profile=file, engine_settings=settings_of(run))
            latencies = {run.ttft_launch_ns, run.tpot_launch_ns} if latency_known else {0.0}
            answers = {ns: predict(replace(q, launch_ns=ns), run.scenario, stage).figures() for ns in latencies}
        except ChipError as e:
            left_out.append(f"{label(run)}: cannot be predicted ({e})")
            continue
        first, later = (answers[ns if latency_known else 0.0] for ns in (run.ttft_launch_ns, run.tpot_launch_ns))
        known = latency_known and bool(run.launch_ns)
        points += compare(run, {**dict.fromkeys(METRICS, later), FIRST: first}, run_id, latency_known=known)
    every = {u.path: u for used_files in used.values() for u in used_files}
    return Validation(gpu, stage, tuple(sources), tuple(points), tuple(left_out), tuple(every.values()), files)


def refuse_leaked(source: RunsSource, run: Run, run_id: str, used: Iterable[UsedFile]) -> None:
    by = leaked((source.id, run_id), used)
    if by:
        raise ChipError(
            f"{source.path}: {label(run)} is among the inputs of {by.path.name}; a prediction is not judged by what it "
            "was made from: give runs that it has not seen"
        )


def settings_of(run: Run) -> Settings:
    """What the engine was told, of what predictions know."""
    limits = engines.get(run.engine).LIMITS if run.engine in engines.names() else {}
    told = parse([part for part in run.variant.split(",") if part.partition("=")[0] in limits and "=" in part])
    return tuple((name, value) for name, value in told.items() if not isinstance(value, str) or value in limits[name])


def label(run: Run) -> str:
    variant = f" ({run.variant})" if run.variant else ""
    return f"{run.model} {run.engine}{variant} {run.scenario.name}"


def decoder_of(source: RunsSource, run: Run) -> Decoder:
    """From the config that really ran, where the file has it."""
    config = source.held.configs.get(run.model)
    if config is None:
        return library.find(run.model)
    decoder = source.decoders.get(run.model)
    if decoder is None:
        decoder = source.decoders[run.model] = describe(config, run.model, f"{source.path}: configs.{run.model}")
    return decoder
