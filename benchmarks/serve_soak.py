"""Many clients at once against `chip serve`, for as long as asked: which statuses come back, how long answers take, and
whether the server's memory stays flat.

    python benchmarks/serve_soak.py --clients 200 --minutes 60 -o results/cpu/serve_soak.json

Each client keeps one connection and asks, on average, once every `--every` seconds: predictions, operators, grids,
rankings, timelines, traffic, pages, and a few that are wrong. Any 5xx but 503 is a failure, and so are 503s over 1 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import environment

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "campaign"), str(ROOT / "src")]

import record  # noqa: E402
import scenarios  # noqa: E402
from damage import damaged_value  # noqa: E402

SHARES = {
    "predict": 50, "estimate": 12, "wrong": 8, "page": 8, "list": 6, "sweep": 6, "compare": 5, "timeline": 3, "rank": 1,
    "traffic": 1,
}  # fmt: skip
PAGES = ("/", "/style.css", "/explorer.js", "/openapi.json", "/api/models", "/api/gpus", "/api/gpus/h200")
WAIT_S = 60.0  # for an answer: the server gives up sooner
MOST_503 = 0.01


def question(kind: str, draw: Random) -> tuple[str, str, Any]:
    """(method, path, body)."""
    if kind in ("page", "list"):
        return "GET", draw.choice(PAGES[:4] if kind == "page" else PAGES[4:]), None
    asked: Any = scenarios.scenario(draw)
    asked["tp"] = 1
    model = {"model": asked["model"], "gpu": asked["gpu"]}
    if kind == "estimate":
        asked = scenarios.operator(draw)
    elif kind == "sweep":
        asked = {**asked, "batch": [1, 2, 4, 8, 16, 32, 64], "prompt": [128, 512, 2048]}
    elif kind == "compare":
        asked = {"configurations": [asked, {**asked, "batch": 1}]}
    elif kind == "rank":
        asked = {"model": asked["model"], "limits": {"tpot_ms": 50}}
    elif kind == "traffic":
        asked = {**model, "requests": 100, "rates": [1.0]}
    elif kind == "wrong":
        asked = damaged_value(asked, draw)
    return "POST", f"/api/{'predict' if kind == 'wrong' else kind}", asked


class Client:
    def __init__(self, port: int, found: dict[str, Any], draw: Random, every_s: float) -> None:
        self.port, self.found, self.draw, self.every_s = port, found, draw, every_s
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self, until: float) -> None:
        await asyncio.sleep(self.draw.random() * self.every_s)
        while time.monotonic() < until:
            kind = self.draw.choices(list(SHARES), list(SHARES.values()))[0]
            began = time.monotonic()
            try:
                status = await asyncio.wait_for(self.answered(*question(kind, self.draw)), WAIT_S)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as e:
                status = f"none ({type(e).__name__})"
                self.close()
            self.found["statuses"][str(status)] += 1
            self.found["times_s"].append(time.monotonic() - began)
            await asyncio.sleep(self.draw.expovariate(1 / self.every_s))

    async def answered(self, method: str, path: str, body: Any) -> int:
        """Once more where a kept connection turns out to be closed before anything came: it was idle too long."""
        kept = self.streams is not None
        try:
            return await self.ask(method, path, body)
        except (ConnectionError, asyncio.IncompleteReadError) as e:
            self.close()
            if not kept or getattr(e, "partial", b""):
                raise
        return await self.ask(method, path, body)

    async def ask(self, method: str, path: str, body: Any) -> int:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
        reader, writer = self.streams
        data = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        if b"connection: close" in answer:
            self.close()
        return int(answer.split()[1])

    def close(self) -> None:
        if self.streams:
            self.streams[1].close()
        self.streams = None


def memory_mib(process: int) -> float:
    """Of the server and its processes, each by its share of what they have in common."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return sum(proportional_mib(Path(f"/proc/{one}/smaps_rollup").read_text()) for one in (process, *children))


def proportional_mib(text: str) -> float:
    return int(text.split("\nPss:")[1].split()[0]) / 1024


async def soak(args: argparse.Namespace, port: int, process: int, found: dict[str, Any]) -> None:
    began = time.monotonic()
    until = began + 60 * args.minutes
    clients = [Client(port, found, Random(f"{args.seed}:{i}"), args.every) for i in range(args.clients)]
    running = asyncio.gather(*(c.run(until) for c in clients))
    while not running.done():
        elapsed, memory = time.monotonic() - began, memory_mib(process)
        found["memory"].append({"seconds": round(elapsed), "requests": len(found["times_s"]), "mib": round(memory, 1)})
        if args.output:
            write(args, found, elapsed)
        await asyncio.sleep(min(60.0, 60 * args.minutes / 20))
    await running
    for c in clients:
        c.close()


def summary(args: argparse.Namespace, found: dict[str, Any], elapsed: float) -> dict[str, Any]:
    times, statuses = sorted(found["times_s"]), found["statuses"]
    asked = max(1, len(times))
    shown = {f"p{p}_s": round(times[min(asked - 1, asked * p // 100)], 3) if times else None for p in (50, 90, 99)}
    bad = sum(n for s, n in statuses.items() if not s.isdecimal() or (int(s) >= 500 and s != "503"))
    memory = [m["mib"] for m in found["memory"]]
    half = memory[len(memory) // 2 :] or [0.0]
    return {
        "schema": "chip.soak/1", "commit": record.commit(), "environment": environment.describe(),
        "clients": args.clients, "minutes": round(elapsed / 60, 1), "requests": len(times),
        "statuses": dict(sorted(statuses.items())), "failed": bad, "share_503": round(statuses["503"] / asked, 5),
        **shown, "growth_of_second_half_mib": round(half[-1] - half[0], 1), "memory": found["memory"],
    }  # fmt: skip


def write(args: argparse.Namespace, found: dict[str, Any], elapsed: float) -> None:
    Path(args.output).write_text(json.dumps(summary(args, found, elapsed), indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--clients", type=int, default=200, help="[%(default)s]")
    add("--minutes", type=float, default=60.0, help="[%(default)s]")
    add("--every", type=float, default=6.0, help="seconds between two questions of a client, on average [%(default)s]")
    add("--seed", type=int, default=1, help="[%(default)s]")
    add("-o", "--output", default="", help="also write the record as JSON")
    args = parser.parse_args()
    server = subprocess.Popen(
        [sys.executable, "-m", "chip", "serve", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout
        port = int(json.loads(server.stdout.readline())["url"].rstrip("/").rpartition(":")[2])
        found: dict[str, Any] = {"statuses": Counter(), "times_s": [], "memory": []}
        began = time.monotonic()
        asyncio.run(soak(args, port, server.pid, found))
        shown = summary(args, found, time.monotonic() - began)
        if args.output:
            write(args, found, time.monotonic() - began)
    finally:
        server.terminate()
        server.wait()
    print(json.dumps({k: v for k, v in shown.items() if k != "memory"}, indent=1))
    return 1 if shown["failed"] or shown["share_503"] > MOST_503 else 0


if __name__ == "__main__":
    raise SystemExit(main())
