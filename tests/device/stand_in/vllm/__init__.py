"""Just enough of vLLM to be timed: its offline class over a scheduler with chunked prefill and one step in flight.

Nothing is computed; a step takes 0.2 ms. STAND_IN in the environment says what shall go wrong, and when.
"""

import json
import os
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

__version__ = "0.26.0+stand.in"
CACHE = os.environ.get("VLLM_CACHE_ROOT")
STEP_S = 0.0002
print("vLLM prints to stdout while it is imported")
if os.environ.get("STAND_IN") == "CUDA in the import":
    import torch

    torch.cuda.is_initialized = lambda: True


def misbehave(when):
    what = os.environ.get("STAND_IN", "")
    if what == f"killed in {when}":
        print("ERROR 11-15 the host ran out of patience", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == f"crash in {when}":
        os.write(2, b"RuntimeError: CUDA error: an illegal memory access was encountered\nsome last words\n")
        os._exit(3)
    if what == f"hang in {when}":
        time.sleep(600)
    if what == f"memory in {when}":
        raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has ...")


class OutOfMemoryError(RuntimeError):
    pass


class Mode(Enum):
    FULL_AND_PIECEWISE = (2, 1)


@dataclass
class ModelConfig:
    max_model_len: int = 128
    hf_config: object = field(default_factory=object)
    is_moe: bool = False

    def get_vocab_size(self):
        return 512


@dataclass
class SchedulerConfig:
    max_num_batched_tokens: int = 64
    max_num_seqs: int = 16
    async_scheduling: bool = True


@dataclass
class CacheConfig:
    num_gpu_blocks: int = 100
    block_size: int = 16
    gpu_memory_utilization: float = 0.92


@dataclass
class CompilationConfig:
    compilation_time: float = 0.0
    cudagraph_mode: Mode = Mode.FULL_AND_PIECEWISE
    cudagraph_capture_sizes: list = field(default_factory=lambda: [1, 2, 4])
    static_forward_context: dict = field(default_factory=lambda: {"layer": object()})


@dataclass
class VllmConfig:
    model_config: ModelConfig = field(default_factory=ModelConfig)
    cache_config: CacheConfig = field(default_factory=CacheConfig)
    scheduler_config: SchedulerConfig = field(default_factory=SchedulerConfig)
    compilation_config: CompilationConfig = field(default_factory=CompilationConfig)


@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int = 16
    ignore_eos: bool = False
    detokenize: bool = True
    output_kind: object = None


@dataclass
class Out:
    """Of the engine core: a request's new tokens; of the engine: a finished request."""

    request_id: str
    new_token_ids: list = field(default_factory=list)
    token_ids: list = field(default_factory=list)
    finished: bool = False

    @property
    def outputs(self):
        return [self]


@dataclass
class Outputs:
    outputs: list = field(default_factory=list)


@dataclass
class Request:
    id: str
    prompt: int
    most: int
    computed: int = 0  # prompt tokens scheduled
    scheduled: int = 0  # output tokens scheduled
    tokens: list = field(default_factory=list)
    delta: bool = False  # every step's tokens are shown, not only the whole


class Core:
    def __init__(self, config):
        self.config, self.requests, self.queue, self.launched = config, [], deque(), 0

    def schedule(self):
        """Ids that this step gives a token: running requests first, then waiting ones, within the budget."""
        room, gives, part = self.config.max_num_batched_tokens, [], False
        alive = [r for r in self.requests if r.scheduled < r.most][: self.config.max_num_seqs]
        for r in sorted(alive, key=lambda r: r.computed < r.prompt):
            new = min(room, max(1, r.prompt - r.computed))
            room -= new
            part |= new > 0
            if new and r.computed < r.prompt:
                r.computed += new
            if new and r.computed >= r.prompt:
                r.scheduled += 1
                gives.append(r)
        return gives if part else None

    def get_output(self):
        misbehave("a step")
        misbehave(f"a step of {len(self.requests)}")
        step = self.schedule()
        if step is not None:
            self.launched += 1
            self.queue.append(step)
            if len(self.queue) == 1 and self.config.async_scheduling:
                return Outputs()
        time.sleep(STEP_S)
        out = []
        for r in self.queue.popleft():
            r.tokens.append(int(r.id) * 7 + len(r.tokens))
            out.append(Out(r.id, [r.tokens[-1]]))
        return Outputs(out)


class Engine:
    def __init__(self, config):
        self.vllm_config, self.engine_core = config, Core(config.scheduler_config)

    def has_unfinished_requests(self):
        return bool(self.engine_core.requests)

    def add_request(self, request_id, prompt, params):
        ids = prompt["prompt_token_ids"]
        if len(ids) >= self.vllm_config.model_config.max_model_len:
            raise ValueError("the prompt is longer than the model's context")
        assert (params.temperature, params.ignore_eos, params.output_kind.name) == (0, True, "DELTA")
        self.engine_core.requests.append(Request(request_id, len(ids), params.max_tokens, delta=True))

    def step(self):
        given = self.engine_core.get_output().outputs
        done = [r for r in self.engine_core.requests if len(r.tokens) == r.most]
        self.engine_core.requests = [r for r in self.engine_core.requests if len(r.tokens) < r.most]
        new = {o.request_id: o.new_token_ids for o in given}
        deltas = [r for r in (*self.engine_core.requests, *done) if r.delta and r.id in new]
        return [Out(r.id, token_ids=new[r.id], finished=len(r.tokens) == r.most) for r in deltas] + [
            Out(r.id, token_ids=r.tokens, finished=True) for r in done if not r.delta
        ]


def positions(model):
    file = Path(model, "config.json")
    return json.loads(file.read_text()).get("max_position_embeddings", 128) if file.exists() else 128


class LLM:
    def __init__(self, model, dtype, load_format="auto", **settings):
        misbehave("open")
        if settings.get("enable_prefix_caching"):
            raise ValueError("prefix caching must be off")
        os.write(1, b"and so does the C++ of its kernels\n")
        if CACHE:
            Path(CACHE, Path(model).name).mkdir(parents=True, exist_ok=True)
        config = VllmConfig()
        config.model_config.max_model_len = settings.get("max_model_len") or positions(model)
        config.model_config.is_moe = settings.get("is_moe", False)
        self.arguments = {"model": model, "dtype": dtype, "load_format": load_format, **settings}
        self.llm_engine, self.count = Engine(config), 0

    def apply_model(self, function):
        self.refill = function

    def enqueue(self, prompts, params, use_tqdm=True):
        assert (params.temperature, params.ignore_eos, params.detokenize, use_tqdm) == (0, True, False, False)
        for p in prompts:
            ids = p["prompt_token_ids"]
            assert all(0 <= i < 512 for i in ids)
            self.llm_engine.engine_core.requests.append(Request(str(self.count), len(ids), params.max_tokens))
            self.count += 1
