"""HTTP requests, whole and damaged, to a live server: any answer but a 5xx other than 503."""

from __future__ import annotations

import json
import socket
import threading
from functools import cache
from random import Random

import configs
import scenarios
from damage import damaged_bytes, damaged_value

from chip.serve import server

NAME = "requests"
LIMIT_S = 5.0
PATHS = (
    "/api/predict",
    "/api/estimate",
    "/api/models",
    "/api/gpus/h200",
    "/",
    "/openapi.json",
    "/api/nothing",
    "http://[",
    "*",
)


@cache
def address() -> tuple[str, int]:
    made = server.Server(("127.0.0.1", 0), 5.0)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    host, port = made.server_address[:2]
    return str(host), int(port)


def case(draw: Random) -> dict[str, str]:
    path = draw.choice(PATHS[:2] if draw.random() < 0.7 else PATHS)
    question = scenarios.operator(draw) if path == "/api/estimate" else scenarios.scenario(draw)
    if draw.random() < 0.2:
        question = {"config": configs.case(draw)["config"], "gpu": "h200"}
    if draw.random() < 0.4:
        question = damaged_value(question, draw)
    body = json.dumps(question).encode()
    method = draw.choice(("POST", "POST", "POST", "GET", "HEAD", "PUT"))
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {draw.choice(('localhost', 'localhost', 'localhost', 'evil.example'))}\r\n"
    )
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    data = head.encode() + body
    if draw.random() < 0.25:
        data = damaged_bytes(data, draw)
    return {"data": data.decode("latin-1")}


def check(case: dict[str, str]) -> str:
    with socket.create_connection(address(), timeout=20) as s:
        s.sendall(case["data"].encode("latin-1"))
        s.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while more := s.recv(1 << 16):
                found += more
        except ConnectionResetError:
            return ""  # it was told something that is no request, and left
    if not found or not found.startswith(b"HTTP/"):
        return ""
    status = int(found.split()[1])
    return "" if status < 500 or status == 503 else f"status {status}: {found[-200:]!r}"
