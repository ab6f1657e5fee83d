"""HTTP requests, whole and damaged, to a live server: any answer but a 5xx other than 503.

Whole requests share a connection that is kept open, as browsers and clients do; damaged ones get one of their own.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import Counter
from functools import cache
from random import Random
from typing import Any

import configs
import scenarios
from damage import damaged_bytes, damaged_value

from chip.show.serve import api, server

NAME = "requests"
LIMIT_S = 5.0
GROUP = 400
COUNTED: Counter[str] = Counter()
ASKED = ("/api/predict", "/api/estimate")
PATHS = (*ASKED, "/api/models", "/api/gpus/h200", "/", "/openapi.json", "/api/nothing", "http://[", "*")
HOSTS = ("localhost", "localhost", "localhost", "evil.example")


@cache
def address() -> tuple[str, int]:
    api.warm_up()  # as `chip serve` does
    made = server.Server(("127.0.0.1", 0), 5.0)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    host, port = made.server_address[:2]
    return str(host), int(port)


def case(draw: Random, group: Random) -> dict[str, Any]:
    path = draw.choice(ASKED if draw.random() < 0.7 else PATHS)
    question = scenarios.operator(draw) if path == "/api/estimate" else scenarios.scenario(draw, group)
    if draw.random() < 0.2:
        question = {"config": configs.case(draw)["config"], "gpu": "h200"}
    if draw.random() < 0.4:
        question = damaged_value(question, draw)
    body = json.dumps(question).encode()
    method = draw.choice(("POST", "POST", "POST", "GET", "HEAD", "PUT"))
    damaged = draw.random() < 0.25
    head = f"{method} {path} HTTP/1.1\r\nHost: {draw.choice(HOSTS)}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    data = head.encode() + (b"Connection: close\r\n\r\n" if damaged else b"\r\n") + body
    if damaged:
        data = damaged_bytes(data, draw)
    return {"damaged": damaged, "method": method, "data": data.decode("latin-1")}


def check(case: dict[str, Any]) -> str:
    data = case["data"].encode("latin-1")
    status, found = _alone(data) if case["damaged"] else kept.ask(data, case["method"] != "HEAD")
    COUNTED[f"answered {status}"] += 1
    return "" if status < 500 or status == 503 else f"status {status}: {found[-200:]!r}"


def _alone(data: bytes) -> tuple[int, bytes]:
    """On a connection of its own: (status, all of it); 0 where it was told something that is no request, and left."""
    with socket.create_connection(address(), timeout=20) as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while more := s.recv(1 << 16):
                found += more
        except ConnectionResetError:
            return 0, b""
    return (int(found.split()[1]), found) if found.startswith(b"HTTP/") else (0, found)


class Kept:
    """One connection for many requests; a new one where the server closed it, as it may after any answer."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None

    def ask(self, data: bytes, with_body: bool) -> tuple[int, bytes]:
        """An answer that does not come whole is a failure of the server: it raises."""
        if self.socket is None:
            self.socket = socket.create_connection(address(), timeout=20)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.sendall(data)
            head, body = self._head()
            fields = head.lower().split(b"\r\n")
            length = next(int(f[15:]) for f in fields if f.startswith(b"content-length:"))
            while with_body and len(body) < length:
                body += self._more()
        except BaseException:
            self.close()
            raise
        if b"connection: close" in fields:
            self.close()
        return int(head.split()[1]), body

    def _head(self) -> tuple[bytes, bytes]:
        found = b""
        while b"\r\n\r\n" not in found:
            found += self._more()
        head, _, body = found.partition(b"\r\n\r\n")
        return head, body

    def _more(self) -> bytes:
        assert self.socket
        if not (more := self.socket.recv(1 << 16)):
            raise ConnectionError("the server closed a connection before its answer was whole")
        return more

    def close(self) -> None:
        if self.socket:
            self.socket.close()
        self.socket = None


kept = Kept()
