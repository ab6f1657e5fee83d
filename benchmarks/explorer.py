"""How fast the explorer answers a change: `python benchmarks/explorer.py`.

Starts `chip serve` on a free port of loopback; 16 clients, each with one connection, ask as fast as they are answered.
Every question is another scenario. Exits with 1 if the 95th percentile is over 50 ms or an answer is no prediction.
"""

import argparse
import asyncio
import json
import pathlib
import random
import statistics
import subprocess
import sys
import time
from urllib.parse import urlsplit

import environment

P95_SECONDS = 0.05
MODELS = ("llama-3.1-8b", "qwen3-8b", "mixtral-8x7b", "gemma-3-12b")
GPUS = ("h200", "h100", "a100", "l40s")
ENGINES = ("vllm", "hf-eager", "hf-graph")


def questions(count, seed):
    """Each client stays with a model and a GPU for a while, as a person with a slider does."""
    draw = random.Random(seed)
    asked = {}
    for i in range(count):
        if i % 20 == 0:
            asked = {"model": draw.choice(MODELS), "gpu": draw.choice(GPUS), "engine": draw.choice(ENGINES)}
        sizes = {"batch": draw.randint(1, 256), "prompt": draw.randint(1, 32768), "output": draw.randint(1, 4096)}
        yield {**asked, **sizes}


async def client(host, port, count, seed):
    """Seconds of each answer, from the first byte sent to the last received."""
    reader, writer = await asyncio.open_connection(host, port)
    seconds = []
    for question in questions(count, seed):
        body = json.dumps(question).encode()
        head = f"POST /api/predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        start = time.perf_counter()
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await _answer(reader)
        seconds.append(time.perf_counter() - start)
        if b'"ttft_ms"' not in answer:
            raise SystemExit(f"not measured: {question} was answered with {answer[:200]!r}")
    writer.close()
    return seconds


async def _answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.split("content-length:")[1].split("\r\n")[0])
    return await reader.readexactly(length)


async def clients(url, count, each):
    where = urlsplit(url)
    found = await asyncio.gather(*(client(where.hostname, where.port, each, seed) for seed in range(count)))
    return [s for one in found for s in one]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=pathlib.Path("build/explorer.json"))
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--questions", type=int, default=200, help="questions of each client")
    options = parser.parse_args()
    command = [sys.executable, "-m", "chip", "serve", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            url = json.loads(server.stdout.readline())["url"]
            start = time.perf_counter()
            seconds = asyncio.run(clients(url, options.clients, options.questions))
            took = time.perf_counter() - start
        finally:
            server.terminate()
    centiles = statistics.quantiles(seconds, n=100, method="inclusive")
    result = {
        "environment": environment.describe(),
        "clients": options.clients,
        "questions": len(seconds),
        "questions_per_second": len(seconds) / took,
        "seconds": {"p50": centiles[49], "p95": centiles[94], "p99": centiles[98], "max": max(seconds)},
    }
    result["kept"] = result["seconds"]["p95"] <= P95_SECONDS
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    shown = ", ".join(f"{name} {1e3 * s:.1f} ms" for name, s in result["seconds"].items())
    print(
        f"{options.clients} clients, {len(seconds)} questions, {result['questions_per_second']:.0f} a second: {shown}"
    )
    print(f"{'kept  ' if result['kept'] else 'MISSED'} an answer within {P95_SECONDS * 1e3:.0f} ms (p95)")
    return 0 if result["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
