"""vLLM's offline `LLM` class, run in a process of its own and, with --python, in an environment of its own.

Everything is vLLM's default but prefix caching, which is off; `--engine-setting key=value` goes to `LLM` as it is. A
variable CHIP_ENGINE_NAME of the environment becomes NAME for the worker alone (PYTHONPATH, LD_LIBRARY_PATH, ...).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from chip import stats
from chip.decoders import describe
from chip.dtypes import AUTO
from chip.files import output
from chip.files.runs import Energy, Run
from chip.lab.measure import nvml
from chip.lab.measure.energy import (
    EnergyProbe,
    EnergyReading,
    NoProbe,
    NotAvailable,
    SampledProbe,
    idle_watts,
    named_probe,
    of_work,
    start_whole,
)
from chip.lab.run import Job, vllm_trace
from chip.lab.run.energy import above_idle
from chip.lab.run.vllm_protocol import VllmWorker
from chip.types import ChipError, Scenario

NAME = "vllm"
TITLE = "vLLM, offline LLM class, default settings without prefix caching"
OWN_PROCESS = True
WORKER = Path(__file__).with_name("vllm_worker.py")
PREFIX = "CHIP_ENGINE_"
# Formats that it makes of 16-bit weights as it loads them
ON_LOAD = {"fp8": "fp8", "fp8_per_tensor": "fp8", "mxfp4": "mxfp4"}
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
METERED = 3  # runs at least while joules are counted
LEAST_DISTINCT = 0.5  # fewer different tokens in a step than this share of its rows: too many choose the same experts
LEAST_WAIT_SHARE = 0.02  # a wait below this share of its step is not named
METHOD = (
    "all requests submitted at once; the engine's steps timed one by one on the host, a step ending when every request "
    "has one token more"
)
FORKED = "; the worker was forked from a process that had imported vLLM, hence no import in setup_s"


def open(job: Job) -> VllmSession:
    return VllmSession(job)


def traffic(job: Job, server: bool) -> Any:
    from chip.lab.run.traffic import TrafficSession
    from chip.lab.run.vllm_server import ServerSession

    return (ServerSession if server else TrafficSession)(job)


def formats(job: Job) -> tuple[str, str]:
    kv = job.settings.get("kv_cache_dtype", AUTO)
    kv_dtype = "fp8" if kv.startswith("fp8") else AUTO if kv == AUTO else job.dtype
    if job.config.get("quantization_config") is not None:
        return describe(job.config, job.model, job.model).dtype, kv_dtype
    quantization = job.settings.get("quantization")
    if quantization is not None and quantization not in ON_LOAD:
        raise ChipError(
            f"--engine-setting quantization={quantization[:40]}: a run in it could not be predicted; known of 16-bit "
            f"weights: {', '.join(ON_LOAD)}"
        )
    return ON_LOAD[quantization] if quantization else job.dtype, kv_dtype


class VllmSession:
    """One worker with one model."""

    def __init__(self, job: Job) -> None:
        if not job.device.startswith("cuda"):
            raise ChipError(f"vllm runs on a CUDA device, not on {job.device}; the hf engines run on a CPU")
        if job.sdpa:
            raise ChipError("--sdpa is for the hf engines; vllm takes --engine-setting attention_backend=...")
        self.job = job
        self.worker = VllmWorker([job.python or sys.executable, str(WORKER)], environment(job), "vLLM")
        try:
            self.opened = self.worker.ask(
                "open",
                time.monotonic() + job.timeout_s,
                model=str(job.folder or config_folder(job.config)),
                dtype=DTYPES[job.dtype],
                random_weights=job.folder is None,
                settings=arguments(job),
            )
            self.meter = _meter(self.opened["uuid"])
            self.idle_w = _idle_w(self.meter, job.energy_s)
        except BaseException:
            self.worker.close()
            raise

    def __enter__(self) -> VllmSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.worker.close()

    def measure(self, scenario: Scenario, repeats: int) -> Run:
        until = time.monotonic() + self.job.timeout_s
        point = {"batch": scenario.batch, "prompt": scenario.prompt, "output": scenario.output}
        warm = self.worker.ask("prepare", until, **point, prompt_ids=list(self.job.prompt_ids))
        timed = self._repeat(scenario.output, repeats, until)
        joules = self._energy(scenario.output, until)
        return Run(
            model=self.job.model,
            engine=NAME,
            variant=self.job.variant,
            scenario=scenario,
            status="ok",
            ttft_ns=tuple(timed["ttft_ns"]),
            step_ns=tuple(map(tuple, timed["step_ns"])),
            e2e_ns=tuple(timed["e2e_ns"]),
            launch_ns=tuple(timed.get("launch_ns", ())),
            memory={**timed["memory"], "kv_cache_tokens": self.opened["kv_cache_tokens"]},
            energy=joules,
            setup_s={k: round(v, 3) for k, v in {**self.opened["setup_s"], "warm_up": warm["warm_up_s"]}.items()},
            weights=self.job.weights,
            engine_version=f"vllm {self.opened['version']}",
            settings={**self.opened["settings"], "torch": self.opened["torch"]},
            text=self._generated_text(timed["tokens"]),
            method=METHOD + (FORKED if self.opened["imported"] else ""),
            flags=self._flags(scenario, repeats, timed),
            device=self.opened["device"],
        )

    def look(self, run: Run) -> Run:
        s, until = run.scenario, time.monotonic() + self.job.timeout_s
        point = {"batch": s.batch, "prompt": s.prompt, "output": s.output}
        self.worker.ask("prepare", until, **point, prompt_ids=list(self.job.prompt_ids))
        profile = self.worker.ask("profile", until, kernels=True, events=bool(self.job.traces))
        walls = {"prefill": stats.median(run.ttft_ns)}
        if s.output > 1:
            walls["decode"] = stats.median([sum(each) / len(each) for each in run.step_ns])
        if self.job.traces:
            vllm_trace.write(self.job.traces, run, profile, self.job.config)
        return replace(
            run,
            busy={p: min(1.0, profile[p]["busy_ns"] / wall) for p, wall in walls.items() if p in profile},
            waits=waits(profile, walls),
            settings={**run.settings, "kernels": {phase: activity["kernels"] for phase, activity in profile.items()}},
        )

    def _repeat(self, output: int, count: int, until: float, least_s: float = 0.0) -> dict[str, Any]:
        """The point `count` times and for as long as a meter needs."""
        most_s = self.job.max_seconds
        return self.worker.ask("repeat", until, output=output, count=count, least_seconds=least_s, most_seconds=most_s)

    def _energy(self, output: int, until: float) -> Energy | None:
        """Decode is the whole less a prefill alone: the meter is too slow to see them apart in one run. Timing has
        repeats of its own: the launch latency is measured between those."""
        if not isinstance(self.idle_w, float):
            return None
        whole = self._metered(output, until, self.idle_w)
        alone = self._metered(1, until, self.idle_w) if output > 1 else whole
        return above_idle(alone, whole, self.idle_w, self.job.energy_s) if whole and alone else None

    def _metered(self, output: int, until: float, idle_w: float) -> EnergyReading | None:
        """What one run of so many tokens took by the meter."""
        start_whole(self.meter)
        try:
            answer = self._repeat(output, METERED, until, self.job.energy_s)
        finally:
            used = self.meter.stop()
        return of_work(used, answer["seconds"], idle_w, answer["runs"]) if isinstance(used, EnergyReading) else None

    def _generated_text(self, tokens: list[list[int]]) -> tuple[str, ...]:
        if not self.job.folder or not self.job.prompt_ids:
            return ()
        from chip.lab.run.text import decode

        return decode(self.job.folder, tokens, self.job.trust_remote_code)

    def _flags(self, scenario: Scenario, repeats: int, timed: Mapping[str, Any]) -> tuple[str, ...]:
        flags = []
        done = len(timed["ttft_ns"])
        if done < repeats:
            flags.append(f"{done} of {repeats} repeats in {self.job.max_seconds:g} s (--max-seconds)")
        if isinstance(self.idle_w, NotAvailable):
            flags.append(f"no energy: {self.idle_w.reason}")
        kinds = [len(set(step)) for step in zip(*timed["tokens"])]
        if self.opened["experts"] and not self.job.folder and stats.median(kinds) < LEAST_DISTINCT * scenario.batch:
            flags.append(
                f"{stats.median(kinds):g} different tokens in a step of {scenario.batch}: "
                "random weights choose fewer experts than text does"
            )
        return tuple(flags)


def environment(job: Job) -> dict[str, str]:
    """Ours, with what is meant for the engine alone, and only the device that was asked for."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(PREFIX)}
    env.update({k.removeprefix(PREFIX): v for k, v in os.environ.items() if k.startswith(PREFIX)})
    index = int(job.device.partition(":")[2] or 0)
    seen = [v for v in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if v]
    if seen and index >= len(seen):
        raise ChipError(f"device {job.device}: CUDA_VISIBLE_DEVICES shows only {len(seen)}")
    if seen or index:
        env["CUDA_VISIBLE_DEVICES"] = seen[index] if seen else str(index)
    return env


def arguments(job: Job) -> dict[str, Any]:
    """--engine-setting as arguments of `LLM`: JSON where it is JSON, else text."""
    settings: dict[str, Any] = {}
    for key, text in job.settings.items():
        try:
            settings[key] = json.loads(text)
        except ValueError:
            settings[key] = text
    if job.trust_remote_code:
        settings["trust_remote_code"] = True
    if job.folder is not None and not any(job.folder.glob("tokenizer*")):
        settings.setdefault("skip_tokenizer_init", True)  # a checkpoint made for timing has none
    return settings


def config_folder(config: Mapping[str, Any]) -> Path:
    """A folder with this config.json, the same one every time: its path is part of the key of vLLM's compile cache."""
    text = json.dumps(config, sort_keys=True, indent=1)
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "chip" / "vllm" / hashlib.sha256(text.encode()).hexdigest()[:12]
    output.write(folder / "config.json", text + "\n", output.ANY)
    return folder


def waits(profile: Mapping[str, Mapping[str, float]], walls: Mapping[str, float]) -> tuple[str, ...]:
    """What the device waited for, the largest share of a step first."""
    shares = []
    for phase, wall in walls.items():
        if phase not in profile:
            continue
        busy, gaps = profile[phase]["busy_ns"], profile[phase]["gaps_ns"]
        between = min(gaps, max(0.0, wall - busy))
        host = max(0.0, wall - busy - between)
        launched = round(profile[phase]["launched"])
        shares.append((host / wall, f"{phase}: the host, which schedules and launches, {_of(host, wall)}"))
        shares.append(
            (between / wall, f"{phase}: the next kernel, short pauses among {launched}, {_of(between, wall)}")
        )
    return tuple(text for share, text in sorted(shares, reverse=True) if share >= LEAST_WAIT_SHARE)


def _of(part_ns: float, wall_ns: float) -> str:
    return f"{part_ns / 1e6:.2f} of {wall_ns / 1e6:.2f} ms"


def _meter(uuid: str) -> EnergyProbe:
    """The user's own meter, or the device the worker sees, read from here: that disturbs nothing there."""
    if (meter := named_probe()) is not None:
        return meter
    gpu = nvml.open_gpu(0, uuid) if uuid else "the engine sees no GPU"
    return NoProbe(gpu) if isinstance(gpu, str) else SampledProbe("NVML", gpu.joules, gpu.watts)


def _idle_w(meter: EnergyProbe, energy_s: float) -> float | NotAvailable:
    if isinstance(meter, NoProbe):
        return NotAvailable(meter.reason)
    return idle_watts(meter) if energy_s else NotAvailable("--energy-seconds 0")
