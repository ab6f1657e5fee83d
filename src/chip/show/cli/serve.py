"""Serve the explorer: a page and a JSON API that answer what `chip predict` and `chip estimate` answer.

It listens on this machine only, unless --host says otherwise. No file of this machine can be read through it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import secrets
import sys
from contextlib import suppress

from chip.show.webpage import PORT
from chip.types import ChipError

HELP = "explore predictions in a browser; the same JSON over HTTP"
EPILOG = """\
  chip serve                                  # then open the address it prints
  chip serve --host 0.0.0.0 --token auto      # for others too: they need the address it prints
  chip serve --port 0 --json                  # any free port; where it listens, as JSON
  curl -s localhost:8471/api/predict -H 'Content-Type: application/json' -d '{"model": "qwen3-8b", "gpu": "l40s"}'
"""
TOKEN = re.compile(r"[A-Za-z0-9_-]+")
LOOPBACK = "127.0.0.1"
SCHEMA = "chip.serve/1"
MOST_WORKERS = 64


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--host", default=LOOPBACK, help="address to listen on; 0.0.0.0 is everyone [%(default)s]")
    add("--port", type=int, default=PORT, help="port to listen on; 0 takes a free one [%(default)s]")
    add("--time-limit", metavar="S", type=float, default=5.0, help="seconds a request may take [%(default)s]")
    token = "clients must send it; auto generates one [$CHIP_TOKEN, else none]"
    add("--token", metavar="TEXT", default=os.environ.get("CHIP_TOKEN", ""), help=token)
    names = "another name that this server goes by, such as that of a proxy; may be repeated"
    add("--allow-host", metavar="NAME", action="append", default=[], help=names)
    workers = "processes that answer; 1 is the server's own alone [one a core, at most 4]"
    add("--workers", metavar="N", type=int, default=0, help=workers)
    parser.add_argument("--json", action="store_true", help="where it listens, as one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    if not 0 <= args.port < 65536:
        raise ChipError(f"--port must be between 0 and 65535, got {args.port}")
    if not 0.01 <= args.time_limit <= 3600:
        raise ChipError(f"--time-limit must be between 0.01 and 3600 seconds, got {args.time_limit:g}")
    if not 0 <= args.workers <= MOST_WORKERS:
        raise ChipError(f"--workers must be between 0 and {MOST_WORKERS}, got {args.workers}")

    from chip import forked
    from chip.show.serve import api, page, ranking
    from chip.show.serve.crew import MEMBERS, Crew
    from chip.show.serve.guard import Guard
    from chip.show.serve.server import Server

    token = _token(args.token)
    try:
        server = Server((args.host, args.port), args.time_limit, Guard(args.host, args.allow_host, token))
    except (OSError, OverflowError) as e:
        why = getattr(e, "strerror", None) or e
        raise ChipError(f"cannot listen on {args.host}:{args.port} ({why}); choose another --port") from None
    api.warm_up()
    page.explorer()
    gc.freeze()  # what is loaded stays: no collection looks at it again
    workers = forked.processes(args.workers) if args.workers else min(MEMBERS, forked.processes(0))
    if workers > 1:
        server.crew = Crew(workers, args.time_limit, server.socket.close, page.first_plan(ranking.opening()))
    opens = f"{server.url}?token={token}" if token else server.url
    where = {"schema": SCHEMA, "url": server.url, "openapi": f"{server.url}openapi.json", "page": opens}
    print(json.dumps(where) if args.json else f"explorer: {opens}", flush=True)
    if args.host not in (LOOPBACK, "localhost", "::1") and not token:
        print(f"note: {args.host} can be reached from outside this machine; --token sets a password", file=sys.stderr)
    print("Ctrl-C ends it", file=sys.stderr)
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()
    return 0


def _token(word: str) -> str:
    from chip.show.serve.guard import LEAST_TOKEN

    if word == "auto":
        return secrets.token_urlsafe(18)
    if word and not (len(word) >= LEAST_TOKEN and TOKEN.fullmatch(word)):
        raise ChipError(f"--token must be at least {LEAST_TOKEN} letters, digits, - or _; auto makes one up")
    return word
