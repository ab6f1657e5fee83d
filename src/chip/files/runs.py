"""The file of real inference runs: one artifact, one `Run` for each point of a grid, with the configs of their models.

It is rewritten whole, atomically, after each point, so that a grid that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from chip import stats
from chip.dtypes import AUTO
from chip.files import artifact, codec, identity, output
from chip.types import ChipError, Scenario

Key = tuple[str, str, str, Scenario]  # identity (or label, where that is unknown), engine, variant, scenario
COMPARABLE = ("torch", "driver", "cuda", "device")  # a file holds one of each: other versions, other times
MOST = 10**9  # of a scenario's numbers
STATUSES = ("ok", "skipped", "failed")


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of the device for one repeat of the whole batch, idle power subtracted, prefill and decode apart.

    A part is None where nothing was left of it above idle: then a flag says so.
    """

    prefill_j: float | None
    decode_j: float | None
    idle_w: float
    method: str
    counter_j: float | None = None  # prefill and decode by the counter, idle not subtracted ...
    integrated_j: float | None = None  # ... and by integrating power samples over the same time
    flags: tuple[str, ...] = ()  # "counter and integrated power differ by 7 %", ...


@dataclass(frozen=True, slots=True)
class Run:
    """One model, engine and scenario as it really ran. `ok` has samples, anything else has a reason.

    A repeat is a whole request batch: ttft_ns[i], step_ns[i] (output - 1 decode steps) and e2e_ns[i] belong together.
    """

    SCHEMA: ClassVar[str] = "chip.runs/1"

    model: str  # a label: bundled name, or the name of the config; unique for each identity in a file
    engine: str
    variant: str  # what else was chosen: an sdpa backend, capture sizes, ...; "" for the engine's defaults
    scenario: Scenario
    status: str
    reason: str = ""
    ttft_ns: tuple[int, ...] = ()
    step_ns: tuple[tuple[int, ...], ...] = ()
    e2e_ns: tuple[int, ...] = ()
    busy: dict[str, float] = field(default_factory=dict)  # "prefill", "decode": share of the step the device worked
    waits: tuple[str, ...] = ()  # what the device waited for, where it could be found; the largest first
    memory: dict[str, int] = field(default_factory=dict)  # allocated_, reserved_, device_ peak bytes, kv_cache_tokens
    energy: Energy | None = None
    setup_s: dict[str, float] = field(default_factory=dict)  # load, compile, capture, warm_up: outside every sample
    weights: str = "random"  # or "files"
    engine_version: str = ""
    settings: dict[str, Any] = field(default_factory=dict)  # the engine's resolved configuration
    text: tuple[str, ...] = ()  # what it said, where real text went in
    method: str = ""
    flags: tuple[str, ...] = ()
    device: str = ""
    launch_ns: tuple[float, ...] = ()  # what the host took to launch a small kernel, before each repeat and after
    identity: str = ""  # content of config and weights, see `chip.identity`; "" in records older than that

    @property
    def launches_between(self) -> bool:
        """Whether the launch latency was measured between any two repeats."""
        return len(self.launch_ns) == len(self.ttft_ns) + 1 > 2

    @property
    def ttft_launch_ns(self) -> float:
        """Launch latency around the repeat that has the median; 0 where it was not measured."""
        return _beside_median(self.ttft_ns, self._each_launch_ns)

    @property
    def tpot_launch_ns(self) -> float:
        return _beside_median([sum(steps) for steps in self.step_ns], self._each_launch_ns)

    @property
    def _each_launch_ns(self) -> tuple[float, ...]:
        """Launch latency of each repeat; the mean where it was not measured between them."""
        if self.launches_between:
            return tuple((before + after) / 2 for before, after in pairwise(self.launch_ns))
        mean = sum(self.launch_ns) / len(self.launch_ns) if self.launch_ns else 0.0
        return (mean,) * len(self.ttft_ns)

    @property
    def title(self) -> str:
        return " ".join(w for w in (self.model, self.engine, self.variant, self.scenario.name) if w)

    @property
    def ttft_s(self) -> float:
        return stats.median(self.ttft_ns) * 1e-9

    @property
    def tpot_s(self) -> float:
        """Median over repeats of the mean decode step, as a user waits for it."""
        return stats.median([sum(steps) / len(steps) for steps in self.step_ns if steps]) * 1e-9

    @property
    def e2e_s(self) -> float:
        return stats.median(self.e2e_ns) * 1e-9

    @property
    def decodes(self) -> bool:
        return any(self.step_ns)

    @property
    def tokens_per_s(self) -> float:
        """Output tokens of the whole batch over the end-to-end time."""
        return self.scenario.batch * self.scenario.output / self.e2e_s

    @property
    def joules_per_token(self) -> float | None:
        if self.energy is None or self.energy.prefill_j is None or self.energy.decode_j is None:
            return None
        tokens = self.scenario.batch * self.scenario.output
        return (self.energy.prefill_j + self.energy.decode_j) / tokens

    @property
    def joules_per_token_with_idle(self) -> float | None:
        """With what the device draws anyway while the request lasts: a GPU that waits for its host is not free."""
        if self.energy is None or self.joules_per_token is None:
            return None
        return self.joules_per_token + self.energy.idle_w * self.e2e_s / (self.scenario.batch * self.scenario.output)


def _beside_median(samples: Sequence[float], beside: Sequence[float]) -> float:
    """What lies beside the sample in the middle, or beside the two that a median is the mean of."""
    order = sorted(range(len(samples)), key=lambda i: samples[i])
    middle = order[(len(order) - 1) // 2 : len(order) // 2 + 1]
    return sum(beside[i] for i in middle) / len(middle) if middle else 0.0


@dataclass(frozen=True, slots=True)
class Runs:
    """What a file of runs holds, with where it was measured."""

    runs: tuple[Run, ...]
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)  # model name -> config.json


def identity_of(run: Run, configs: Mapping[str, Mapping[str, Any]]) -> str:
    """The identity of a run, an older one's from the config beside it; "" where there is none, or its weights are
    unknown."""
    if run.identity or run.weights != "random" or run.model not in configs:
        return run.identity
    return identity.of_model(configs[run.model])


def key_of(run: Run, configs: Mapping[str, Mapping[str, Any]]) -> Key:
    """What makes a run the same one again: never the label of its model, where its config is known."""
    return identity_of(run, configs) or run.model, run.engine, run.variant, run.scenario


def id_of(run: Run) -> str:
    """Content id of one run: what is fitted on runs names these among its inputs, since a file's id changes as it
    grows."""
    data = codec.to_json(run)
    # As the record was before there were these fields: its id is written in other files.
    if not run.identity:
        del data["identity"]
    for name, usual in (("kv_dtype", AUTO), ("pp", 1), ("ep", 1)):
        if getattr(run.scenario, name) == usual:
            del data["scenario"][name]
    return artifact.new(Run.SCHEMA, data, {}).id


def read(path: Path) -> tuple[artifact.Artifact, Runs]:
    file = artifact.read(path, Run.SCHEMA)
    runs = codec.from_json(Runs, file.data, str(path))
    for i, run in enumerate(runs.runs):
        _check(run, f"{path}: runs[{i}]")
    return file, runs


def write(path: Path, runs: Runs, environment: Mapping[str, Any], inputs: Iterable[str] = ()) -> None:
    artifact.write(path, artifact.new(Run.SCHEMA, codec.to_json(runs), dict(environment), tuple(inputs)))


def resume(path: Path, environment: Mapping[str, Any]) -> Runs:
    """What a file already holds, empty where there is none; refused when it was measured with something else."""
    real = output.plain(path)
    if not real.exists() or not real.stat().st_size:
        return Runs(())
    file, runs = read(path)
    artifact.check_versions(path, file.environment, environment, COMPARABLE)
    return runs


def added(runs: Runs, run: Run, config: Mapping[str, Any] | None = None) -> Runs:
    """With one more run; the same one again takes the place of the old. A label that stands for another model in this
    file already is made unique."""
    if config is not None:
        run = replace(run, model=_label(runs, run, config))
    configs = runs.configs if config is None else {**runs.configs, run.model: dict(config)}
    by_key = {key_of(r, configs): r for r in runs.runs}
    return replace(runs, runs=tuple({**by_key, key_of(run, configs): run}.values()), configs=configs)


def _label(runs: Runs, run: Run, config: Mapping[str, Any]) -> str:
    mine = run.identity or identity.of_model(config)
    others = {identity_of(r, runs.configs) for r in runs.runs if r.model == run.model} - {mine, ""}
    taken = runs.configs.get(run.model)
    if others or (taken is not None and identity.of_config(taken) != identity.of_config(config)):
        return f"{run.model}@{mine[:8]}"
    return run.model


def _check(run: Run, where: str) -> None:
    if run.status not in STATUSES:
        raise ChipError(f"{where}: status {run.status!r} is not known; it is one of {', '.join(STATUSES)}")
    s = run.scenario
    if min(s.batch, s.prompt, s.output, s.tp) < 1 or max(s.batch, s.prompt, s.output, s.tp) > MOST:
        raise ChipError(f"{where}: batch, prompt, output and tp of a scenario must be between 1 and {MOST}")
    if (run.status == "ok") != bool(run.ttft_ns):
        raise ChipError(f"{where}: ok means samples, anything else means none; status is {run.status!r}")
    if len({len(run.ttft_ns), len(run.step_ns), len(run.e2e_ns)}) != 1:
        raise ChipError(f"{where}: ttft_ns, step_ns and e2e_ns must have one entry for each repeat")
    if any(len(steps) != run.scenario.output - 1 for steps in run.step_ns):
        raise ChipError(f"{where}: each entry of step_ns must have output - 1 steps")
    if any(s <= 0 for s in (*run.ttft_ns, *run.e2e_ns, *(s for steps in run.step_ns for s in steps))):
        raise ChipError(f"{where}: samples must be positive")
