"""Results of every kind, made up for tests: what the other commands write, with numbers that were not measured."""

import json
import random

from chip.files import artifact, codec, runs
from chip.files.measurements import record
from chip.ops.elementwise import RmsNorm
from chip.ops.linear import Linear
from chip.types import Measurement, Scenario

DEVICE = "NVIDIA H200"
ENVIRONMENT = {"chip": "0", "device": DEVICE, "torch": "2.11.0", "cuda": "13.0", "driver": "580", "python": "3.12"}


def measurement_lines(count, seed=1, **changes):
    """`count` measured operators of distinct shapes."""
    draw = random.Random(seed)
    header = {
        "schema": Measurement.SCHEMA,
        "made": "2026-01-01T00:00:00Z",
        "device": DEVICE,
        "environment": ENVIRONMENT,
    }
    lines = [json.dumps(header)]
    for i in range(count):
        op = Linear(1 + i, 2 ** draw.randint(8, 14), 4096) if i % 3 else RmsNorm(1 + i, 2 ** draw.randint(8, 14))
        p50 = int(2000 + op.cost().flops / 4e5 + op.cost().bytes / 3000)
        m = Measurement(record(op), "torch", "cold", "ok", "", (p50, p50 + 9, p50 + 31), "made up", device=DEVICE)
        lines.append(json.dumps({**codec.to_json(m), **changes}))
    return "\n".join(lines) + "\n"


def a_run(model="tinyllama-1.1b", engine="hf-graph", batch=4, slow=1.0, **changes):
    s = Scenario(batch, 128, 5)
    ns = [int(1e6 * slow * (20 + batch + 0.1 * i)) for i in range(9)]
    steps = tuple(tuple(int(slow * (4e6 + 1e4 * i + j)) for j in range(4)) for i in range(9))
    values = {
        "model": model,
        "engine": engine,
        "variant": "",
        "scenario": s,
        "status": "ok",
        "ttft_ns": tuple(ns),
        "step_ns": steps,
        "e2e_ns": tuple(a + sum(b) for a, b in zip(ns, steps)),
        "busy": {"prefill": 0.99, "decode": 0.9},
        "memory": {"allocated_peak_bytes": 3 << 30},
        "energy": runs.Energy(3.0, 2.0, 75.0, "made up"),
        "device": DEVICE,
        "engine_version": "5.17",
    }
    return runs.Run(**{**values, **changes})


def write_runs(path, *some):
    runs.write(path, runs.Runs(tuple(some)), ENVIRONMENT)


def validation(points=60, seed=2):
    draw = random.Random(seed)
    found = []
    for i in range(points):
        measured = 10 ** draw.uniform(-3, 0)
        error = draw.gauss(0.0, 0.04)
        found.append(
            {
                "who": "chip",
                "model": f"model-{i % 5}",
                "engine": ("vllm", "hf-graph", "hf-eager")[i % 3],
                "variant": "",
                "batch": 1 + i % 8,
                "prompt": 512,
                "output": 64,
                "dtype": "bf16",
                "tp": 1,
                "metric": ("ttft", "tpot")[i % 2],
                "unit": "s",
                "predicted": measured * (1 + error),
                "low": measured * 0.95,
                "high": measured * 1.06,
                "measured": measured,
                "error": error,
                "inside": abs(error) < 0.05,
                "bound": "gpu",
                "called": "memory",
                "run": f"{i:016x}",
            }
        )
    figures = {
        "points": points,
        "models": 5,
        "median": 0.027,
        "p90": 0.066,
        "bias": 0.001,
        "worst": 0.1,
        "coverage": 0.9,
    }
    wanted = {"target_median": 0.03, "target_p90": 0.08, "met": True}
    peer = {
        **found[0],
        "who": "peer 1.0",
        "predicted": found[0]["measured"] * 1.3,
        "error": 0.3,
        "low": None,
        "high": None,
    }
    return {
        "schema": "chip.validation/1",
        "gpu": "h200",
        "files": [],
        "rests_on": [],
        "left_out": [],
        "host_bound": [],
        "intervals": {},
        "points": found,
        "classes": [{"class": "vLLM TTFT, all", **wanted, **figures}],
        "groups": [{"engine": "vllm", "variant": "", "metric": "ttft", "bound": "all", **figures}],
        "peers": {
            "points": [{**peer, "inside": None}],
            "classes": [
                {
                    "class": "vLLM TTFT, all",
                    "peer": "peer 1.0",
                    "points": 1,
                    "median": 0.3,
                    "p90": 0.3,
                    "bias": 0.3,
                    "chip_median": 0.02,
                    "chip_p90": 0.05,
                    "chip_bias": 0.0,
                }
            ],
        },
        "ablation": [
            {
                "stage": "roofline",
                "title": "datasheet roofline",
                "classes": [{"class": "vLLM TTFT, all", **wanted, **figures, "median": 0.4, "met": False}],
            }
        ],
    }


def comparison():
    who = {"model": "gpt2", "variant": "", "scenario": codec.to_json(Scenario(1, 32, 8))}
    line = {
        "metric": "TTFT",
        "unit": "s",
        "first": 0.02,
        "second": 0.01,
        "ratio": 0.5,
        "low": 0.48,
        "high": 0.52,
        "verdict": "faster",
        "samples": [9, 9],
    }
    pair = {"first": {**who, "engine": "hf-eager"}, "second": {**who, "engine": "hf-graph"}, "metrics": [line]}
    return {"schema": "chip.comparison/1", "pairs": [pair], "without_partner": []}


def timed(op, name, ours, p50_s, **changes):
    m = Measurement(record(op), name, "cold", "ok", "", (int(p50_s * 1e9),), "made up", device=DEVICE)
    cost = op.cost()
    return {
        "measurement": codec.to_json(m),
        "ours": ours,
        "p50_s": p50_s,
        "p95_s": p50_s * 1.1,
        "bytes_per_s": cost.bytes / p50_s,
        "flops_per_s": cost.flops / p50_s,
        "share_of_copy": 0.9,
        "max_error": 1e-3,
        "joules": 0.5,
        "speedup_p50": None,
        "speedup_p95": None,
        "against": "",
        "verdict": "",
        **changes,
    }


def kernel_bench():
    op = Linear(4096, 4096, 4096, "fp16")
    steps = {"1_naive": 20e-3, "2_tiled": 8e-3, "3_wmma": 1e-3, "4_mma": 300e-6, "5_wgmma": 205e-6}
    rows = [timed(op, "torch", False, 200e-6)]
    for step, p50_s in steps.items():
        over = {"speedup_p50": 200e-6 / p50_s, "speedup_p95": 199e-6 / p50_s, "against": "torch", "verdict": "slower"}
        rows.append(timed(op, f"hgemm_{step}", True, p50_s, **over))
    rungs = [
        {
            "rung": f"hgemm_{s}",
            "path": "mma",
            "flops_per_s": op.cost().flops / t,
            "of_cublas": 0.5,
            "of_roof": 0.4,
            "over_last": None,
            "over_first": None,
        }
        for s, t in steps.items()
    ]
    call = "linear 4096x4096x4096 fp16"
    return {
        "kernel": "hgemm",
        "rows": rows,
        "ladder": [{"call": call, "roofs_flops_per_s": {"mma": 8e14}, "rungs": rungs}],
    }


def comparison_report():
    tier = {"launches": 40, "replayed_kernels": 7, "same_kernel_share": 0.9}
    names = ("kernels alone, cold", "cache state", "gaps between kernels", "clock under load", "unexplained")
    terms = [{"term": n, "label": n, "us": us} for n, us in zip(names, (980.0, -60.0, 75.0, 10.0, -5.0))]
    return {
        "schema": "chip.comparison_report/1",
        "title": "bloom-560m hf-graph prefill 1x5",
        "device": DEVICE,
        "full_model": "graph",
        "full_model_inference_us": 1000.0,
        "predicted_from_kernels_us": 1005.0,
        "error_percent": 0.5,
        "error_percent_gpu_busy": 0.7,
        "energy": {"kernels_error_percent": -8.0, "error_percent": 2.0},
        "unexplained_percent": -0.5,
        "kernels": {"median_abs_error_percent": 2.5, "median_abs_error_us": 0.05},
        "coverage": {"launches": 0.99, "gpu_time": 0.995, "unique_kernels": 0.9},
        "tier_breakdown": {
            "tier1_cuda_runtime": {
                "method": "cudaMemcpyAsync",
                "unique_kernels": 3,
                "total_us": 20.0,
                "captured_us": 21.0,
                **tier,
            },
            "tier2_cublas": {
                "method": "cublasLt",
                "unique_kernels": 9,
                "total_us": 700.0,
                "captured_us": 690.0,
                **tier,
            },
            "tier3_framework": {
                "method": "operator",
                "unique_kernels": 12,
                "total_us": 200.0,
                "captured_us": 210.0,
                **tier,
            },
        },
        "breakdown": [
            *terms,
            {"term": "full_model", "label": "step as a CUDA graph", "us": 1000.0, "total": True},
            {"term": "host", "label": "host", "us": 400.0},
            {"term": "eager", "label": "step, launched by the host", "us": 1400.0, "total": True},
        ],
        "worst_kernels": [
            {
                "kernel": "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>",
                "replayed_as": "",
                "tier": 3,
                "launches": 24,
                "captured_us": 2.1,
                "replayed_us": 2.4,
                "error_percent": 14.3,
                "error_of_step_us": 7.2,
            }
        ],
        "environment": ENVIRONMENT,
        "inputs": ["00ff"],
    }


def write_all(folder):
    """One file of every kind, beside the bundled results."""
    folder.mkdir(parents=True, exist_ok=True)
    write_runs(
        folder / "runs-1.json",
        *(
            a_run(engine=e, batch=b, slow=s)
            for e, s in (("hf-graph", 1), ("hf-eager", 2.5), ("vllm", 0.8))
            for b in (1, 4, 16)
        ),
        a_run(batch=64, status="failed", reason="out of memory", ttft_ns=(), step_ns=(), e2e_ns=()),
    )
    write_runs(folder / "runs-2.json", a_run(slow=1.001))
    (folder / "sample-validation.json").write_text(json.dumps(validation()))
    (folder / "comparison.json").write_text(json.dumps(comparison()))
    artifact.write(folder / "hgemm.json", artifact.new("chip.kernel_bench/1", kernel_bench(), ENVIRONMENT))
    (folder / "comparison_report.json").write_text(json.dumps(comparison_report()))
    (folder / "operators.jsonl").write_text(measurement_lines(30))
    return folder
