"""A session of HF transformers in this process: one model, any number of points."""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch

from chip.files.runs import Energy, Run
from chip.lab.measure.device import open_device, reason_of
from chip.lab.measure.energy import NotAvailable, idle_watts, probe_for
from chip.lab.measure.kineto import ProfilerUse
from chip.lab.run import ContextLost, Job, busy, clock, energy, text
from chip.lab.run.model import build, libraries, no_kernel, refuse_point
from chip.lab.run.steps import LEAST_STEPS, Steps
from chip.types import ChipError, Scenario

Make = Callable[[Any, torch.Tensor, Scenario, bool, dict[str, float]], Steps]
METHOD = "host clock from synchronisation to synchronisation, each step apart; warmed up; new cache for each repeat"
SEED = 0
POSITION_TABLES = ("embed_positions", "wpe")  # as the families with learned positions call them


class HfSession:
    """`make` builds the steps of a point and notes in a dict what that cost (capture, compile)."""

    def __init__(self, name: str, job: Job, make: Make, notes: tuple[str, ...] = (), grad: Any = None) -> None:
        self.name, self.job, self.make, self.notes = name, job, make, notes
        self.grad = grad or torch.inference_mode
        self.device = open_device(job.device)
        began = time.perf_counter()
        with self._context():
            self.model: Any = self._load()
        self.load_s = time.perf_counter() - began
        gc.freeze()  # what is loaded stays: every capture collects garbage, and would search all of it
        self.attention = self._attention()
        if job.sdpa and self.attention != "sdpa":
            self.close()
            raise ChipError(f"{job.model}: transformers has no sdpa attention for it; leave --sdpa out")
        self.probe = probe_for(self.device)
        self.idle_w = idle_watts(self.probe) if job.energy_s else NotAvailable("--energy-seconds 0")

    def __enter__(self) -> HfSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.model = None
        gc.unfreeze()
        gc.collect()
        if not self.device.lost():
            self.device.empty_cache()

    # what an engine of our own does otherwise
    def _load(self) -> Any:
        return build(self.job)

    def _attention(self) -> str:
        return str(self.model.config._attn_implementation)

    def _refuse(self, scenario: Scenario) -> None:
        refuse_too_long(self.model, scenario)
        refuse_point(self.job, self.name, scenario)

    def _vocabulary(self) -> int:
        return int(self.model.config.get_text_config().vocab_size)

    def _version(self) -> str:
        return f"transformers {libraries()[1].__version__}"

    def measure(self, scenario: Scenario, repeats: int) -> Run:
        self._refuse(scenario)
        with self._point(scenario):
            return self._measure(scenario, repeats)

    def look(self, run: Run) -> Run:
        with self._point(run.scenario):
            steps = self.make(self.model, self._ids(run.scenario), run.scenario, bool(self.job.prompt_ids), {})
            clock.warm_up(self.device, steps, run.scenario.output)
            return _seen(run, busy.look(self.device, steps, run.scenario.output))

    @contextmanager
    def _point(self, scenario: Scenario) -> Iterator[None]:
        self._forget()
        with ExitStack() as stack:
            stack.enter_context(self._context())
            stack.enter_context(self._one_line(scenario))
            stack.enter_context(clock.deadline(self.job.timeout_s))
            stack.enter_context(self.grad())
            stack.enter_context(backend(self.job.sdpa))
            yield

    def _forget(self) -> None:
        """What the point before left: caches held in cycles, torch's pool, and the workspace that cuBLAS keeps for each
        stream it was ever used on."""
        gc.collect()
        if self.device.kind == "cuda":
            torch._C._cuda_clearCublasWorkspaces()
        self.device.empty_cache()

    def _measure(self, s: Scenario, repeats: int) -> Run:
        job, device = self.job, self.device
        if device.kind == "cuda":
            torch.cuda.reset_peak_memory_stats(device.torch_device)
        setup = {"load": self.load_s}
        steps = self.make(self.model, self._ids(s), s, bool(job.prompt_ids), setup)
        began = time.perf_counter()
        clock.warm_up(device, steps, s.output)
        setup["warm_up"] = time.perf_counter() - began
        slowed = (ProfilerUse.FLAG,) if device.kind == "cuda" and ProfilerUse.before else ()
        samples = clock.repeated(device, steps, s.output, repeats, job.max_seconds)
        memory = self._memory()
        joules, notes = self._energy(steps, s)
        run = Run(
            model=job.model,
            engine=self.name,
            variant=job.variant,
            scenario=s,
            status="ok",
            ttft_ns=tuple(samples.ttft_ns),
            step_ns=tuple(samples.step_ns),
            e2e_ns=tuple(samples.e2e_ns),
            launch_ns=tuple(samples.launch_ns),
            memory=memory,
            energy=joules,
            setup_s={k: round(v, 3) for k, v in setup.items()},
            weights=job.weights,
            engine_version=self._version(),
            settings=self._settings(),
            text=self._generated_text(steps, s) if job.prompt_ids and job.folder else (),
            method=METHOD,
            flags=(*self.notes, *samples.flags, *clock.latency_flags(samples.launch_ns), *notes, *slowed),
            device=device.title,
        )
        return _seen(run, busy.look(device, steps, s.output)) if busy.by_events(steps) else run

    def _ids(self, s: Scenario) -> torch.Tensor:
        device = self.device.torch_device
        if self.job.prompt_ids:
            return torch.tensor([self.job.prompt_ids] * s.batch, device=device)
        draw = torch.Generator(device=device).manual_seed(SEED)
        return torch.randint(0, self._vocabulary(), (s.batch, s.prompt), device=device, generator=draw)

    def _settings(self) -> dict[str, Any]:
        settings = {"attention": self.attention, "sdpa": self.job.sdpa or "torch's choice", **self.job.settings}
        experts = getattr(self.model.config, "_experts_implementation", None) or "eager"
        return settings if experts == "eager" else {**settings, "experts": str(experts)}  # dense models say eager too

    def _memory(self) -> dict[str, int]:
        if self.device.kind != "cuda":
            unit = 1 if sys.platform == "darwin" else 1024
            return {"process_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
        at = self.device.torch_device
        memory = {
            "allocated_peak_bytes": torch.cuda.max_memory_allocated(at),
            "reserved_peak_bytes": torch.cuda.max_memory_reserved(at),
        }
        used = self.device.gpu.used_bytes() if self.device.gpu else None  # the pool still holds what it took
        return memory if used is None else {**memory, "device_peak_bytes": used}

    def _energy(self, steps: Steps, s: Scenario) -> tuple[Energy | None, tuple[str, ...]]:
        if isinstance(self.idle_w, NotAvailable):
            return None, (f"no energy: {self.idle_w.reason}",)
        joules = energy.of_request(self.device, self.probe, self.idle_w, steps, s.output, self.job.energy_s)
        if isinstance(joules, NotAvailable):
            return None, (f"no energy: {joules.reason}",)
        return joules, ()

    def _generated_text(self, steps: Steps, s: Scenario) -> tuple[str, ...]:
        steps.rewind()
        steps_tokens = [steps.prefill().tolist()] + [steps.decode().tolist() for _ in range(s.output - 1)]
        rows = [[step[row][0] for step in steps_tokens] for row in range(s.batch)]
        assert self.job.folder is not None
        return text.decode(self.job.folder, rows, self.job.trust_remote_code)

    @contextmanager
    def _context(self) -> Iterator[None]:
        """What goes wrong inside may have taken the device's context with it: then nothing else can run here."""
        try:
            yield
            self.device.synchronize()
        except (ChipError, RuntimeError) as e:
            if lost := self.device.lost():
                why = str(e) if isinstance(e, ChipError) else f"failed ({reason_of(e)})"
                raise ContextLost(f"{why}; the context is lost: {lost}") from None
            raise

    @contextmanager
    def _one_line(self, s: Scenario) -> Iterator[None]:
        try:
            yield
        except ChipError:
            raise
        except torch.OutOfMemoryError:
            room = f"{self.device.memory_bytes / 2**30:.0f} GiB"
            raise ChipError(f"out of memory: {s.name} does not fit into {room} of {self.device.title}") from None
        except Exception as e:  # torch and transformers fail in many ways
            if self.job.sdpa and no_kernel(e):
                raise ChipError(f"--sdpa {self.job.sdpa}: torch has no such kernel for this step") from None
            raise ChipError(f"failed ({reason_of(e)})") from None


def _seen(run: Run, looks: dict[str, busy.Look]) -> Run:
    samples = clock.RunSamples(list(run.ttft_ns), list(run.step_ns), list(run.e2e_ns))
    return replace(run, busy=busy.shares(looks, samples), waits=busy.waits(looks, samples))


@contextmanager
def backend(name: str) -> Iterator[None]:
    """The sdpa backend by its short name; "" leaves the choice to torch."""
    if not name:
        yield
        return
    from torch.nn.attention import SDPBackend, sdpa_kernel

    wanted = "MATH" if name == "math" else f"{name.upper()}_ATTENTION"
    with sdpa_kernel(getattr(SDPBackend, wanted)):
        yield


def refuse_too_long(model: Any, s: Scenario) -> None:
    """A position beyond a learned table is an assertion on the device, which ends the process's CUDA context."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int):
        return
    table = any(name.rpartition(".")[2] in POSITION_TABLES for name, _ in model.named_modules())
    looked_at = 1 + LEAST_STEPS if table else 1
    if s.prompt + max(s.output, looked_at) <= positions:
        return
    least = f", and {LEAST_STEPS} decode steps are always run" if s.output < looked_at else ""
    raise ChipError(
        f"prompt + output is {s.prompt + s.output} tokens and the model has {positions} positions{least}; shorten them"
    )


def refuse_settings(job: Job, known: tuple[str, ...] = ()) -> None:
    """An engine setting that would be ignored is an error."""
    if unknown := sorted(set(job.settings) - set(known)):
        has = f"it has {', '.join(known)}" if known else "it has none"
        raise ChipError(f"--engine-setting {unknown[0]}: this engine does not know it; {has}")
