"""vLLM in a process of its own: one JSON request a line on stdin, one JSON answer a line on what was stdout.

`chip.lab.run.vllm` starts this file with any interpreter that has vLLM; it imports nothing of chip. Whatever vLLM and
its libraries print goes to stderr, so that nothing can break into the answers.

Requests: `open`, then for each point `prepare`, `repeat` as often as wanted, `profile`, or `traffic`; the end of stdin
ends it all.
An answer is {"ok": {...}} or {"error": "one line", "kind": ..., "fatal": true when the engine is of no more use}.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib.util
import inspect
import itertools
import json
import math
import os
import random
import sys
import time
import traceback
from collections import Counter
from typing import Any

ALWAYS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}  # the engine in this process, where its steps can be timed
UNLESS_SET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TOKENIZERS_PARALLELISM": "false",
}
SPREAD = 0.02  # standard deviation of random weights, as models are initialised
# ... and of what quantised ones store, which scales bring back to that. Those of caches and inputs stay as they are.
FP8_SPREAD, INT4_SPREAD = 60.0, 4.6
SCALES, KEPT_SCALES = ("scale", "scales", "scale_inv"), ("q_scale", "k_scale", "v_scale", "prob_scale", "input_scale")
PACKED = ("weight", "weight_packed", "qweight", "qzeros")
PART = 2**28  # values drawn at a time: little memory is left beside the KV cache
EMBEDDED = 1.0  # ... and of the embeddings of a mixture of experts; see `refill`
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")
FIRST_TOKEN = 3  # prompts leave out the lowest ids, which often mean the end of a text
LAST_TOKEN = 30000  # ... and the highest, where special tokens and unused rows lie
WARM_S = 0.3  # of load before anything counts: clocks rise, and what is met for the first time is met
WARM_TOKENS = 8
WARM_REQUESTS, WARM_APART_S = 20, 0.03  # before traffic: so many of its lengths, and so long between two
NAP_S = 0.001  # at most, while nothing is there to do
LAUNCHES, BATCHES, UNDISTURBED = 200, 3, 4  # as chip.lab.run.launch_latency, which cannot be imported where this runs
PROFILED_STEPS = 4  # decode steps under the profiler
SHORT_GAP_NS = 10_000  # a pause no longer than this lies between two kernels of one launch; a longer one is the host's
NAME = 240  # characters of a kernel's name
SETUP = {  # what takes time in a start, and the methods (module, class, name) that do it in one version or another
    "load": [("vllm.v1.worker.gpu_worker", "Worker", "load_model")],
    "profile": [("vllm.v1.worker.gpu_worker", "Worker", "determine_available_memory")],
    "engine_warm_up": [("vllm.v1.worker.gpu_worker", "Worker", "compile_or_warm_up_model")],
    "capture": [
        ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "capture_model"),
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "capture_model"),
    ],
}
NOT_SETTINGS = {  # of vLLM's configuration: the model's own config, and what only the running engine can use
    *("hf_config", "hf_text_config", "hf_image_processor_config", "encoder_config", "model_arch_config"),
    *("static_forward_context", "static_all_moe_layers", "traced_files", "bs_to_padded_graph_size"),
}


class RequestRefused(Exception):
    """A request that cannot be served; the engine is as good as before."""


class Tap:
    """Keeps what the engine core gave in the last step, where `LLM.generate` shows only what is finished."""

    def __init__(self, core: Any) -> None:
        self.take, self.last = core.get_output, None
        core.get_output = self

    def __call__(self) -> Any:
        self.last = self.take()
        return self.last


class HostClock:
    """How long the host takes for its parts of a step while traffic runs, each a method of an object. A part that this
    version of vLLM has elsewhere is left out."""

    def __init__(self, **parts: tuple[Any, str]) -> None:
        self.parts = parts
        self.spent: dict[str, list[float]] = {}

    def __enter__(self) -> HostClock:
        for name, (owner, method) in self.parts.items():
            if inner := getattr(owner, method, None):
                setattr(owner, method, self.timed(name, inner))
        return self

    def __exit__(self, *_: object) -> None:
        for owner, method in self.parts.values():
            if owner is not None and method in getattr(owner, "__dict__", {}):
                delattr(owner, method)  # that of the class is found again

    def timed(self, name: str, inner: Any) -> Any:
        spent = self.spent.setdefault(name, [])

        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                spent.append(time.perf_counter() - began)

        return call

    def means(self) -> dict[str, float]:
        return {name: round(sum(s) / len(s), 9) for name, s in self.spent.items() if s}


def clock_of_engine(engine: Any) -> HostClock:
    """The clock of an engine in its caller's process."""
    scheduler = getattr(getattr(engine.engine_core, "engine_core", None), "scheduler", None)
    return HostClock(
        schedule=(scheduler, "schedule"),
        update=(scheduler, "update_from_output"),
        hand_out=(getattr(engine, "output_processor", None), "process_outputs"),
        admit=(engine, "add_request"),
    )


def clock_of_core(core: Any) -> HostClock:
    """The clock of an engine core in a process of its own, which hands its tokens to another one."""
    scheduler, executor = getattr(core, "scheduler", None), getattr(core, "model_executor", None)
    return HostClock(
        schedule=(scheduler, "schedule"),
        execute=(executor, "execute_model"),
        sample=(executor, "sample_tokens"),
        update=(scheduler, "update_from_output"),
        admit=(core, "add_request"),
    )


def core_that_calls() -> Any:
    """The engine core whose loop runs this: the outermost caller that has a scheduler."""
    frame, core = inspect.currentframe(), None
    while frame is not None:
        owner = frame.f_locals.get("self")
        core = owner if hasattr(owner, "scheduler") and hasattr(owner, "model_executor") else core
        frame = frame.f_back
    return core


class EngineServer:
    """The engine and the point it is at."""

    def __init__(self) -> None:
        self.llm: Any = None
        self.tap: Any = None
        self.prompts: list[dict[str, list[int]]] = []

    # -- requests -----------------------------------------------------------------------------------------------------
    def open(self, model: str, dtype: str, random_weights: bool, settings: dict[str, Any]) -> dict[str, Any]:
        setup_s: dict[str, float] = {}
        imported = "vllm" in sys.modules
        began = time.perf_counter()
        vllm = load()
        for name, methods in SETUP.items():
            for method in methods:
                clock(setup_s, name, *method)
        if not imported:
            setup_s["import"] = time.perf_counter() - began
        arguments = {
            "model": model,
            "dtype": dtype,
            "enable_prefix_caching": False,
            **({"load_format": "dummy", "skip_tokenizer_init": True} if random_weights else {}),
            **settings,
        }
        began = time.perf_counter()
        self.llm = vllm.LLM(**arguments)
        whole_s = time.perf_counter() - began
        self.tap = Tap(self.llm.llm_engine.engine_core)
        config = self.llm.llm_engine.vllm_config
        experts = bool(getattr(config.model_config, "is_moe", False))
        began = time.perf_counter()
        if arguments.get("load_format") == "dummy":
            self.llm.apply_model(lambda model: refill(model, experts))
            setup_s["refill"] = time.perf_counter() - began
        split_setup(setup_s, whole_s, float(getattr(config.compilation_config, "compilation_time", 0) or 0))
        return {
            "version": vllm.__version__,
            "imported": imported,
            "setup_s": setup_s,
            "settings": {"arguments": plain(arguments), **describe(self.llm), "config": plain(config)},
            "kv_cache_tokens": kv_cache_tokens(config.cache_config),
            "experts": experts,
            **device(),
        }

    def prepare(self, batch: int, prompt: int, output: int, prompt_ids: list[int], seed: int = 0) -> dict[str, Any]:
        """Make the prompts of a point and run them, so that nothing is met for the first time later."""
        config = self.llm.llm_engine.vllm_config.model_config
        if prompt + output > config.max_model_len:
            raise RequestRefused(
                f"prompt + output is {prompt + output} tokens and this engine takes {config.max_model_len}; "
                "raise max_model_len or shorten them"
            )
        rng = random.Random(seed)
        most = min(int(config.get_vocab_size()), LAST_TOKEN)
        ids = [prompt_ids or [rng.randrange(FIRST_TOKEN, most) for _ in range(prompt)] for _ in range(batch)]
        self.prompts = [{"prompt_token_ids": i} for i in ids]
        began = time.perf_counter()
        self.once(min(output, WARM_TOKENS))
        while time.perf_counter() - began < WARM_S:
            self.once(min(output, WARM_TOKENS))
        if cuda := torch_cuda():
            cuda.reset_peak_memory_stats()
        return {"warm_up_s": time.perf_counter() - began}

    def repeat(self, output: int, count: int, least_seconds: float, most_seconds: float) -> dict[str, Any]:
        """The point again and again: `count` times and at least `least_seconds`, but two once `most_seconds` are over.

        Samples are those of the first `count`; `runs` and `seconds` cover all, for counting joules. Without
        `least_seconds` the launch latency is measured between them too.
        """
        ttft, steps, e2e, runs = [], [], [], 0
        finished: list[Any] = []
        with_latency = not least_seconds
        between = with_latency and output > UNDISTURBED
        latencies = [launch_ns()] if with_latency else []
        began = time.perf_counter()
        while runs < count or time.perf_counter() - began < least_seconds:
            if runs >= 2 and time.perf_counter() - began > most_seconds:
                break
            at, finished = self.once(output)
            runs += 1
            if runs <= count:
                ttft.append(at[1] - at[0])
                steps.append([b - a for a, b in itertools.pairwise(at[1:])])
                e2e.append(at[-1] - at[0])
                latencies += [launch_ns()] if between else []
        seconds = time.perf_counter() - began
        latencies += [launch_ns()] if with_latency and not between else []
        return {
            "ttft_ns": ttft,
            "step_ns": steps,
            "e2e_ns": e2e,
            "runs": runs,
            "seconds": seconds,
            "launch_ns": [ns for ns in latencies if ns],
            "memory": memory(),
            "tokens": [list(f.outputs[0].token_ids) for f in sorted(finished, key=lambda f: int(f.request_id))],
        }

    def profile(self, kernels: bool = False, events: bool = False) -> dict[str, Any]:
        """What the device did in one prefill and in a few decode steps; see `on_device`. `events`: each launch too."""
        if torch_cuda() is None:
            return {}
        phases = {"prefill": on_device(profiled(lambda: self.once(1)), 1, kernels, events)}
        config = self.llm.llm_engine.vllm_config
        batch, prompt = len(self.prompts), len(self.prompts[0]["prompt_token_ids"])
        # those served first must still be running when the last prompt is done
        ahead = 3 + batch * prompt // config.scheduler_config.max_num_batched_tokens
        steps = min(PROFILED_STEPS, config.model_config.max_model_len - prompt - ahead)
        if steps > 0 and batch <= config.scheduler_config.max_num_seqs:
            phases["decode"] = on_device(self.profiled_decode(steps, steps + ahead), steps, kernels, events)
        return phases

    def traffic(self, requests: list[list[float]], blocks: list[list[int]], block_tokens: int) -> dict[str, Any]:
        """Requests (arrival in seconds, prompt, output) by the clock, admitted between steps; when each had its first
        and its last token, in seconds from the start, -1 where the engine rejected it."""
        ids = blocks or [[]] * len(requests)
        prompts = [self.prompt_of(i, int(r[1]), ids[i], block_tokens) for i, r in enumerate(requests)]
        self.warm(requests)
        if hasattr(self.llm, "reset_prefix_cache"):
            self.llm.reset_prefix_cache()
        latencies = [launch_ns()]
        with clock_of_engine(self.llm.llm_engine) as host:
            served = self.by_the_clock(requests, prompts)
        return {
            **served,
            "host_s": host.means(),
            "launch_ns": [ns for ns in (*latencies, launch_ns()) if ns],
            "memory": memory(),
        }

    def by_the_clock(self, requests: list[list[float]], prompts: list[list[int]]) -> dict[str, Any]:
        engine, n, sent, steps = self.llm.llm_engine, len(requests), 0, 0
        first, last, count = [-1.0] * n, [-1.0] * n, [0] * n
        began = time.perf_counter()
        while sent < n or engine.has_unfinished_requests():
            now = time.perf_counter() - began
            while sent < n and requests[sent][0] <= now:
                # a request that it refuses (a prompt too long) is answered by nothing
                with contextlib.suppress(ValueError):
                    engine.add_request(str(sent), {"prompt_token_ids": prompts[sent]}, delta(int(requests[sent][2])))
                sent += 1
            if engine.has_unfinished_requests():
                outputs = engine.step()
                steps += 1
                now = time.perf_counter() - began
                for o in outputs:
                    i, tokens = int(o.request_id), len(o.outputs[0].token_ids) if o.outputs else 0
                    count[i] += tokens
                    first[i] = now if tokens and first[i] < 0 else first[i]
                    last[i] = now if o.finished else last[i]
            elif sent < n:
                time.sleep(max(0.0, min(NAP_S, requests[sent][0] - (time.perf_counter() - began))))
        return {
            "first_s": [round(t, 6) for t in first],
            "last_s": [round(t, 6) for t in last],
            "output": [c or int(r[2]) for c, r in zip(count, requests)],
            "steps": steps,
            "wall_s": round(time.perf_counter() - began, 6),
        }

    def warm(self, requests: list[list[float]]) -> None:
        """Other prompts of the same lengths, all at once and then one by one: nothing is met for the first time
        later."""
        few = sorted(requests, key=lambda r: r[1])[:: max(1, len(requests) // WARM_REQUESTS)]
        longest = int(self.llm.llm_engine.vllm_config.model_config.max_model_len) - WARM_TOKENS - 1
        rows = [[0.0, min(int(r[1]), longest), min(int(r[2]), WARM_TOKENS)] for r in few]
        prompts = [self.prompt_of(-1 - i, int(r[1]), [], 1) for i, r in enumerate(rows)]
        self.by_the_clock(rows, prompts)
        self.by_the_clock([[WARM_APART_S * i, *r[1:]] for i, r in enumerate(rows)], prompts)

    def prompt_of(self, seed: int, tokens: int, blocks: list[int], block_tokens: int) -> list[int]:
        vocabulary = int(self.llm.llm_engine.vllm_config.model_config.get_vocab_size())
        return random_prompt(vocabulary, seed, tokens, blocks, block_tokens)

    # -- work ---------------------------------------------------------------------------------------------------------
    def once(self, output: int) -> tuple[list[int], list[Any]]:
        """All requests at once, as `LLM.generate` runs them: when they were submitted, and when every one of them had
        its first token, its second, ... (ns); and vLLM's finished requests.

        With asynchronous scheduling a step's tokens come out while the next step already runs on the device: a stamp is
        taken when the tokens are in the caller's hands, which is when a user could have them.
        """
        engine, log, finished, params = self.llm.llm_engine, [], [], greedy(output)
        began = time.perf_counter_ns()
        self.llm.enqueue(self.prompts, params, use_tqdm=False)
        while engine.has_unfinished_requests():
            finished += engine.step()
            log.append((time.perf_counter_ns(), self.tap.last))
        return [began, *stamps(log, len(self.prompts), output)], finished

    def profiled_decode(self, steps: int, output: int) -> list[tuple[str, int, int]]:
        """Events of so many decode steps: a call of `step` launches one, whatever it waits for."""
        engine = self.llm.llm_engine
        first: set[str] = set()
        self.llm.enqueue(self.prompts, greedy(output), use_tqdm=False)
        while len(first) < len(self.prompts):
            engine.step()
            first |= {o.request_id for o in self.tap.last.outputs if o.new_token_ids}
        try:
            return profiled(lambda: [engine.step() for _ in range(steps)])
        finally:
            while engine.has_unfinished_requests():
                engine.step()


class ServerWorker:
    """What an HTTP server's engine core can be told: a worker extension, called through /collective_rpc."""

    def chip_open(self) -> str:
        """Draws random weights. What `EngineServer.open` says of an engine, as JSON, and the core's process."""
        worker: Any = self
        config = worker.vllm_config
        refill(worker.get_model(), bool(getattr(config.model_config, "is_moe", False)))
        about = {
            "version": importlib.import_module("vllm").__version__,
            "settings": {**described(config, worker), "config": plain(config)},
            "max_model_len": config.model_config.max_model_len,
            "vocab_size": config.model_config.get_vocab_size(),
            "pid": os.getpid(),
            **device(),
        }
        return json.dumps(about)

    def chip_clock(self) -> str:
        """From here to the next call: the mean seconds of the core's parts."""
        worker: Any = self
        before = getattr(worker, "_chip_clock", None)
        if before is not None:
            before.__exit__()
        worker._chip_clock = clock_of_core(core_that_calls()).__enter__()
        return json.dumps(before.means() if before is not None else {})

    def chip_launch_ns(self) -> str:
        return str(launch_ns())


def random_prompt(vocabulary: int, seed: int, tokens: int, blocks: Any, block_tokens: int) -> list[int]:
    """Random tokens; pieces of equal ids are equal."""
    most = min(vocabulary, LAST_TOKEN)
    ids: list[int] = []
    for block in blocks:
        rng = random.Random(f"block {block}")
        ids += [rng.randrange(FIRST_TOKEN, most) for _ in range(min(block_tokens, tokens - len(ids)))]
    rng = random.Random(f"request {seed}")
    return ids + [rng.randrange(FIRST_TOKEN, most) for _ in range(tokens - len(ids))]


def delta(output: int) -> Any:
    """As `greedy`, and every step shows its new tokens."""
    params = greedy(output)
    params.output_kind = importlib.import_module("vllm.sampling_params").RequestOutputKind.DELTA
    return params


def greedy(output: int) -> Any:
    return sys.modules["vllm"].SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)


# -- time -------------------------------------------------------------------------------------------------------------
def stamps(log: list[tuple[int, Any]], requests: int, output: int) -> list[int]:
    """When every request had k tokens, for k = 1 ... output.

    Where a prompt is chunked over several steps some requests run ahead; the slowest one counts. So the first stamp is
    the time to first token of the batch, and the differences of the others add up to the rest of the whole.
    """
    tokens: Counter[str] = Counter()
    have = [0] * (output + 2)  # how many requests have at least k tokens
    token_ns: list[int] = []
    for at, outputs in log:
        for o in outputs.outputs:
            for _ in o.new_token_ids:
                tokens[o.request_id] += 1
                have[tokens[o.request_id]] += 1
        while len(token_ns) < output and have[len(token_ns) + 1] == requests:
            if token_ns and token_ns[-1] == at:
                raise RuntimeError("a step gave several tokens: speculative decoding has no time of a step")
            token_ns.append(at)
    if len(token_ns) < output:
        raise RuntimeError(f"the engine ended after {len(token_ns)} of {output} tokens")
    return token_ns


def clock(into: dict[str, float], name: str, module: str, owner: str, method: str) -> None:
    """Add up the time a method takes; nothing where this version of vLLM has it elsewhere."""
    try:
        cls = getattr(importlib.import_module(module), owner)
        inner = getattr(cls, method)
    except (ImportError, AttributeError):
        return

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            into[name] = into.get(name, 0.0) + time.perf_counter() - began

    setattr(cls, method, timed)


def split_setup(setup_s: dict[str, float], whole_s: float, compile_s: float) -> None:
    """Parts that add up: compiling happens inside the memory profile, capturing inside the warm-up."""
    inside = (("compile", "profile", compile_s), ("capture", "engine_warm_up", setup_s.get("capture", 0.0)))
    for inner, outer, seconds in inside:
        setup_s[inner] = seconds
        if outer in setup_s:
            setup_s[outer] = max(0.0, setup_s[outer] - seconds)
    parts = sum(s for name, s in setup_s.items() if name not in ("import", "refill"))
    setup_s["other"] = max(0.0, whole_s - parts)


# -- device -----------------------------------------------------------------------------------------------------------
def torch_cuda() -> Any:
    import torch

    return torch.cuda if torch.cuda.is_available() else None


def launch_ns() -> float:
    """Launch latency of this host, as chip.lab.run.launch_latency measures it; 0 where there is no GPU."""
    cuda = torch_cuda()
    if cuda is None:
        return 0.0
    x, batches_ns = sys.modules["torch"].ones(64, device="cuda"), []
    for _ in range(BATCHES):
        cuda.synchronize()
        began = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            x = x * 1.0
        batches_ns.append((time.perf_counter_ns() - began) / LAUNCHES)
    cuda.synchronize()
    return round(sorted(batches_ns)[BATCHES // 2], 1)


def device() -> dict[str, Any]:
    import torch

    if not torch.cuda.is_available():
        return {"device": "", "uuid": "", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {"device": properties.name, "uuid": str(getattr(properties, "uuid", "")), "torch": torch.__version__}


def memory() -> dict[str, int]:
    """Peak bytes of torch since the point began, and what is in use on the device by anybody."""
    cuda = torch_cuda()
    if cuda is None:
        return {}
    free, total = cuda.mem_get_info()
    return {
        "allocated_peak_bytes": cuda.max_memory_allocated(),
        "reserved_peak_bytes": cuda.max_memory_reserved(),
        "device_peak_bytes": total - free,
    }


def refill(model: Any, experts: bool) -> None:
    """Random weights as models have them. vLLM's own are tiny and the same in all layers, and values change the power a
    product draws and so its speed. In place: captured graphs keep their addresses.

    Where there are experts, embeddings are larger: then a token's own direction outlives the layers, rows go on saying
    different tokens and choose different experts. Else all rows would soon say one token and crowd on its experts.
    """
    import torch

    generator = None
    with torch.no_grad():
        for name, p in model.named_parameters():
            if generator is None:
                generator = torch.Generator(device=p.device).manual_seed(0)
            if name.endswith(SCALES):
                if p.is_floating_point() and p.element_size() > 1 and not name.endswith(KEPT_SCALES):
                    p.fill_(SPREAD / (FP8_SPREAD if p.element_size() == 4 else INT4_SPREAD))
            elif not p.is_floating_point() or p.element_size() < 2:
                refill_narrow(name, p, generator)
            elif p.dim() > 1:
                spread = EMBEDDED if experts and name.endswith(EMBEDDINGS) else SPREAD
                p.normal_(0.0, spread, generator=generator)
            else:
                p.fill_(1.0 if name.endswith("weight") else 0.0)
    if cuda := torch_cuda():
        cuda.synchronize()


def refill_narrow(name: str, p: Any, generator: Any) -> None:
    """Quantised weights: fp8 or int8 numbers, or packed words of any layout. Other whole numbers are no weights."""
    import torch

    if p.is_floating_point():
        for part in p.split(max(1, PART // max(1, p[0].numel()))) if p.dim() > 1 else ():
            drawn = torch.empty(part.shape, dtype=torch.bfloat16, device=p.device)
            part.copy_(drawn.normal_(0.0, FP8_SPREAD, generator=generator).to(p.dtype))
    elif p.dim() > 1 and name.endswith(PACKED):
        limits = torch.iinfo(p.dtype)
        p.random_(limits.min, limits.max, generator=generator)


def profiled(work: Any) -> list[tuple[str, int, int]]:
    """(name, start ns, end ns) of everything the device did for `work`."""
    import torch
    from torch.autograd import DeviceType

    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return [
        (e.name, round(e.time_range.start * 1e3), round(e.time_range.end * 1e3))
        for e in profiler.events()
        if e.device_type == DeviceType.CUDA and not getattr(e, "is_user_annotation", False)
    ]


def on_device(events: list[tuple[str, int, int]], steps: int, kernels: bool, launches: bool = False) -> dict[str, Any]:
    """What the device did in one step: ns in which it worked, ns of short pauses between its kernels, the kernels. If
    asked, every launch of all steps in order too, as [index of its name, start ns, duration ns]."""
    busy = short = 0
    end = None
    ordered = sorted(events, key=lambda e: e[1])
    for _, start, stop in ordered:
        if end is None or start > end:
            if end is not None and start - end <= SHORT_GAP_NS:
                short += start - end
            busy += stop - start
            end = stop
        elif stop > end:
            busy += stop - end
            end = stop
    activity: dict[str, Any] = {"busy_ns": busy / steps, "gaps_ns": short / steps, "launched": len(events) / steps}
    if kernels:
        count: Counter[str] = Counter()
        total: Counter[str] = Counter()
        for name, start, stop in events:
            count[name] += 1
            total[name] += stop - start
        activity["kernels"] = [
            [n[:NAME], count[n] / steps, round(ns / steps / 1e3, 3)] for n, ns in total.most_common()
        ]
    if launches and ordered:
        first = ordered[0][1]
        index = {name: i for i, name in enumerate(dict.fromkeys(name for name, _, _ in ordered))}
        activity["names"] = [name[:NAME] for name in index]
        activity["events"] = [[index[name], start - first, stop - start] for name, start, stop in ordered]
        activity["steps"] = steps
    return activity


# -- configuration ----------------------------------------------------------------------------------------------------
LEFT_OUT = object()


def plain(value: Any) -> Any:
    """A configuration as JSON; what cannot be said in JSON is left out."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        settings = {str(k): plain(v) for k, v in value.items() if k not in NOT_SETTINGS}
        return {k: v for k, v in settings.items() if v is not LEFT_OUT}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [i for i in map(plain, value) if i is not LEFT_OUT]
        return sorted(items, key=str) if isinstance(value, (set, frozenset)) else items
    if isinstance(value, os.PathLike) or type(value).__module__ == "torch":
        return str(value)  # paths, dtypes, devices
    return LEFT_OUT


def describe(llm: Any) -> dict[str, Any]:
    engine = llm.llm_engine
    return described(engine.vllm_config, getattr(getattr(engine, "model_executor", None), "driver_worker", None))


def described(config: Any, worker: Any) -> dict[str, Any]:
    """What the configuration does not say: which runner and which attention it came to."""
    choices: dict[str, Any] = {}
    try:
        choices["model_runner"] = "v2" if config.use_v2_model_runner else "v1"
        groups = [g for gs in worker.model_runner.attn_groups for g in (gs if isinstance(gs, (list, tuple)) else [gs])]
        choices["attention"] = sorted({g.backend.get_name() for g in groups})
    except AttributeError:  # another version has them elsewhere
        pass
    return choices


def kv_cache_tokens(cache: Any) -> int:
    """How many tokens fit into the KV cache."""
    tokens = getattr(cache, "kv_cache_size_tokens", None)
    return int(tokens or (cache.num_gpu_blocks or 0) * cache.block_size)


# -- process ----------------------------------------------------------------------------------------------------------
def set_environment() -> None:
    """What vLLM is to find when it is imported."""
    os.environ.update(ALWAYS)
    for name, value in UNLESS_SET.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")


def load() -> Any:
    """vLLM with all that an engine is made of: by itself it imports little before it is used."""
    try:
        vllm = importlib.import_module("vllm")
    except ImportError as e:
        if (e.name or "").split(".")[0] != "vllm":
            raise
        raise ModuleNotFoundError("vllm") from None
    for module in dict.fromkeys(module for methods in SETUP.values() for module, _, _ in methods):
        with contextlib.suppress(ImportError):  # this version has it elsewhere
            importlib.import_module(module)
    _ = vllm.LLM  # found on demand
    return vllm


def one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {'; '.join(lines)}"[:400] if lines else type(error).__name__


def kind_of(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError) and str(error) == "vllm":
        return "missing"
    text = f"{type(error).__name__} {error}".lower()
    return "memory" if "outofmemory" in text or "out of memory" in text else "failed"


def serve(requests: Any, answers: Any) -> None:
    server = EngineServer()
    for line in requests:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(server, request.pop("do"))(**request)}
        except RequestRefused as e:
            answer = {"error": str(e), "kind": "refused", "fatal": False}
        except Exception as e:
            traceback.print_exc()
            answer = {"error": one_line(e), "kind": kind_of(e), "fatal": True}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if answer.get("fatal"):
            return


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != here]  # where `vllm` would be chip's own file
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # prints of any library go to the log
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    set_environment()
    serve(requests, answers)
    sys.stderr.flush()
    os._exit(0)  # taking an engine down by the book takes seconds and can hang


if __name__ == "__main__":
    main()
