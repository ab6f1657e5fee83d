"""vLLM's own HTTP server as people start it, under traffic: `chip bench --server`.

Everything is the server's default: prefix caching, asynchronous scheduling, the engine core in a process of its own.
Weights are random (`vllm_worker.refill`), which a worker extension draws; it also measures the launch latency inside
the engine core. The vocabulary is made up (w0, w1, ...), so that the words of a chunk are its tokens.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from chip.files import artifact, output
from chip.lab.run import Job, Lost, vllm, vllm_worker
from chip.lab.run.completions import CLOSED, StreamedCompletion, call, drive, request_of
from chip.lab.run.traffic import MARGIN_S, run_of
from chip.lab.run.vllm_protocol import ending, last_useful_line
from chip.simulator.recorded import TrafficRun
from chip.simulator.workload import Workload
from chip.types import ChipError

HOST, MODEL = "127.0.0.1", "m"
EXTENSION = "chip_vllm_extension"  # what a copy of vllm_worker.py is called where the server imports it
MODULE = "vllm.entrypoints.openai.api_server"
METHOD = (
    "vLLM's HTTP server in processes of its own, completions of token ids streamed over loopback; a token's time is "
    "when its chunk came to the client, which runs on the same machine"
)
LOOK_S, STOP_S, ASK_S = 0.5, 20.0, 300.0
COUNTED = re.compile(r"^vllm:(\w+)(?:\{[^}]*\})? (\S+)$", re.MULTILINE)
KEPT = ("_sum", "_count", "_total")


class ServerSession:
    """A server with one model. Used as a context manager."""

    def __init__(self, job: Job) -> None:
        if not job.device.startswith("cuda"):
            raise ChipError(f"vllm runs on a CUDA device, not on {job.device}")
        if job.folder is not None:
            raise ChipError("--server runs random weights: its chunks are counted by the words of a made-up vocabulary")
        self.job, self.log_stays = job, False
        self.port = _free_port()
        self.folder = model_folder(job.config)
        handle, name = tempfile.mkstemp(prefix="chip-server-", suffix=".log")
        self.log = Path(name)
        try:
            with os.fdopen(handle, "wb") as log:
                self.process = subprocess.Popen(
                    self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment(),
                    start_new_session=True,
                )  # fmt: skip
        except OSError as e:
            self.log.unlink(missing_ok=True)
            raise ChipError(f"vLLM's server cannot be started ({e.strerror}); check --python") from None
        try:
            self._wait_until_up(time.monotonic() + job.timeout_s)
            self.opened = json.loads(self.rpc("chip_open"))
        except BaseException:
            self.close()
            raise

    def command(self) -> list[str]:
        job = self.job
        words = [job.python or sys.executable, "-m", MODULE, "--model", str(self.folder), "--served-model-name", MODEL]
        words += ["--host", HOST, "--port", str(self.port), "--load-format", "dummy", "--dtype", vllm.DTYPES[job.dtype]]
        words += ["--worker-extension-cls", f"{EXTENSION}.ServerWorker"]
        for key, value in vllm.arguments(job).items():
            flag = key.replace("_", "-")
            if isinstance(value, bool):
                words.append(f"--{flag}" if value else f"--no-{flag}")
            else:
                words += [f"--{flag}", value if isinstance(value, str) else json.dumps(value)]
        return words

    def environment(self) -> dict[str, str]:
        env = {**vllm_worker.UNLESS_SET, **vllm.environment(self.job)}
        env["VLLM_SERVER_DEV_MODE"] = "1"  # /collective_rpc and /reset_prefix_cache; nothing else changes
        env["PYTHONPATH"] = os.pathsep.join(p for p in (str(self.folder), env.get("PYTHONPATH", "")) if p)
        if not any((Path(p) / "flashinfer").is_dir() for p in env["PYTHONPATH"].split(os.pathsep)):
            env.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
        return env

    def _wait_until_up(self, until: float) -> None:
        while call(HOST, self.port, "/health", LOOK_S)[0] != 200:
            if (code := self.process.poll()) is not None:
                raise Lost(f"vLLM's server ended while it started ({ending(code)}): {self._log_end()}")
            if time.monotonic() > until:
                raise Lost(f"vLLM's server was not up within {self.job.timeout_s:g} s: {self._log_end()}")
            time.sleep(LOOK_S)

    def _log_end(self) -> str:
        self.log_stays = True
        return f"{last_useful_line(self.log)}; log: {self.log}"

    def __enter__(self) -> ServerSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The whole session of processes: the engine core ends with its server."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is None:
                try:
                    os.killpg(self.process.pid, sign)
                    self.process.wait(STOP_S)
                except (OSError, subprocess.TimeoutExpired):
                    continue
        if not self.log_stays:
            self.log.unlink(missing_ok=True)

    def rpc(self, method: str) -> str:
        """The answer of a method of `vllm_worker.ServerWorker`, run inside the engine core."""
        status, text = call(HOST, self.port, "/collective_rpc", ASK_S, {"method": method})
        if status != 200:
            raise Lost(f"vLLM's server did not answer {method} (status {status}): {text[:200] or self._log_end()}")
        return str(json.loads(text)["results"][0])

    # -- traffic
    def serve(self, w: Workload, rate: float, seed: int) -> TrafficRun:
        """One run of a workload; the prefix cache is empty before."""
        self.warm(w)
        call(HOST, self.port, "/reset_prefix_cache", ASK_S, {})
        ids = w.blocks or [()] * len(w)
        requests = [
            request_of(HOST, MODEL, self.prompt(i, w.prompt[i], ids[i], w.block_tokens), w.output[i])
            for i in range(len(w))
        ]
        latencies = [float(self.rpc("chip_launch_ns"))]
        self.rpc("chip_clock")
        before = self.counters()
        planned_s = w.arrival_s[-1] if len(w) and not w.users else 0.0
        began = time.perf_counter()
        completions = drive(HOST, self.port, requests, w.arrival_s, w.users, planned_s + MARGIN_S + self.job.timeout_s)
        wall_s = time.perf_counter() - began
        if (code := self._exit_code(completions)) is not None:
            raise Lost(f"vLLM's server ended under traffic ({ending(code)}): {self._log_end()}")
        after = self.counters()
        host_s = json.loads(self.rpc("chip_clock"))
        latencies.append(float(self.rpc("chip_launch_ns")))
        counted = {k: round(v - before.get(k, 0.0), 6) for k, v in after.items() if v != before.get(k, 0.0)}
        return run_of(
            self.job, self.opened, w, rate, seed,
            **columns(completions, w),
            steps=round(counted.get("iteration_tokens_total_count", 0)),
            wall_s=round(wall_s, 6),
            method=METHOD,
            launch_ns=tuple(ns for ns in latencies if ns),
            server=True,
            users=w.users,
            host_s=host_s,
            counters=counted,
        )  # fmt: skip

    def _exit_code(self, completions: Sequence[StreamedCompletion]) -> int | None:
        """How the server ended, None while it runs; it may take a moment to end after its connections have."""
        try:
            return self.process.wait(STOP_S if any(c.error == CLOSED for c in completions) else 0)
        except subprocess.TimeoutExpired:
            return None

    def warm(self, w: Workload) -> None:
        """Other prompts of the same lengths, all at once and then one by one: nothing is met for the first time
        later."""
        longest = int(self.opened["max_model_len"]) - vllm_worker.WARM_TOKENS - 1
        lengths = sorted(w.prompt)[:: max(1, len(w) // vllm_worker.WARM_REQUESTS)]
        requests = [
            request_of(HOST, MODEL, self.prompt(-1 - i, min(n, longest), (), 1), vllm_worker.WARM_TOKENS)
            for i, n in enumerate(lengths)
        ]
        for apart_s in (0.0, vllm_worker.WARM_APART_S):
            drive(HOST, self.port, requests, [i * apart_s for i in range(len(requests))], 0, self.job.timeout_s)

    def prompt(self, seed: int, tokens: int, blocks: Sequence[int], block_tokens: int) -> list[int]:
        return vllm_worker.random_prompt(int(self.opened["vocab_size"]), seed, tokens, blocks, block_tokens)

    def counters(self) -> dict[str, float]:
        """What the server counts of itself, and the CPU seconds of its processes' threads."""
        _, text = call(HOST, self.port, "/metrics", ASK_S)
        counters: dict[str, float] = {}
        for name, value in COUNTED.findall(text):
            if name.endswith(KEPT):
                counters[name] = counters.get(name, 0.0) + float(value)
        for name, pid in (("server", self.process.pid), ("core", int(self.opened["pid"]))):
            counters |= {f"cpu_s.{name}_{which}": s for which, s in cpu_s(pid).items()}
        return counters


def columns(completions: Sequence[StreamedCompletion], w: Workload) -> dict[str, Any]:
    """A run's fields with an entry for each request. Requests that the server refused have no times; any other error
    ends the run."""
    broken = next((c.error for c in completions if c.error and not c.error.startswith("status 4")), "")
    if broken:
        raise ChipError(f"a request was not answered: {broken}")
    refused = [bool(c.error) or not c.chunk_s for c in completions]
    return {
        "arrival_s": tuple(round(c.arrival_s, 6) for c in completions),
        "prompt": tuple(w.prompt),
        "output": tuple(w.output[i] if refused[i] else max(1, sum(c.chunk_tokens)) for i, c in enumerate(completions)),
        "sent_s": tuple(round(c.sent_s, 6) for c in completions),
        "first_s": tuple(-1.0 if no else round(c.chunk_s[0], 6) for c, no in zip(completions, refused)),
        "last_s": tuple(-1.0 if no else round(c.chunk_s[-1], 6) for c, no in zip(completions, refused)),
        "gap_us": tuple(tuple(10 * round((b - a) * 1e5) for a, b in pairwise(c.chunk_s)) for c in completions),
        "chunk_tokens": tuple(
            () if max(c.chunk_tokens, default=1) == 1 else tuple(c.chunk_tokens) for c in completions
        ),
    }


def cpu_s(pid: int) -> dict[str, float]:
    """Seconds on a CPU of a process's first thread and of all its others; nothing where the system does not say."""
    seconds = {"main": 0.0, "others": 0.0}
    for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(ChipError):  # a thread that has just ended
            ns = int(artifact.read_text(thread).split()[0])
            seconds["main" if thread.parent.name == str(pid) else "others"] += ns * 1e-9
    return seconds if seconds["main"] else {}


def model_folder(config: Mapping[str, Any]) -> Path:
    """A folder with the config.json, a vocabulary of words and the worker extension."""
    folder = vllm.config_folder(config)
    size = int((config.get("text_config") or config)["vocab_size"])
    model = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(size)}, "unk_token": "w0"}
    tokenizer: dict[str, Any] = dict.fromkeys(("truncation", "padding", "normalizer", "post_processor", "decoder"))
    tokenizer |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    special = {"eos_token": "w1", "bos_token": "w2", "pad_token": "w0", "unk_token": "w0"}
    for name, content in (
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **special}),
        ("generation_config.json", {"eos_token_id": 1, "bos_token_id": 2}),
    ):
        output.write(folder / name, json.dumps(content), output.ANY)
    output.write(folder / f"{EXTENSION}.py", artifact.read_text(vllm.WORKER), output.ANY)
    return folder


def _free_port() -> int:
    with socket.socket() as s:
        s.bind((HOST, 0))
        return int(s.getsockname()[1])
