"""The HTTP server: bounded requests, bounded connections, a time limit, and nothing but answers and the page.

One thread a connection, kept open between requests. An error is one line: `{"error": "..."}` with a 4xx status.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import AF_INET, AF_INET6, socket
from typing import Any, NoReturn
from urllib.parse import SplitResult, unquote, urlsplit

from chip import __version__
from chip.show import garbage
from chip.show.serve import api, page
from chip.show.serve.crew import Crew, Gone
from chip.show.serve.guard import COOKIE, Guard, host_name
from chip.show.serve.limit import Watchdog
from chip.show.serve.openapi import document
from chip.show.serve.places import IDLE_S, MOST, Places
from chip.show.serve.reply import Refused, Reply, failure, parsed, told
from chip.show.serve.turn import Turn
from chip.types import ChipError

LARGEST_BODY = 1 << 20  # bytes; a config.json has some thousand
JSON = "application/json"
HTML = "text/html; charset=utf-8"
PAGE = "/"
LEAST_PACKED, QUICK = 50_000, 4  # bytes that are worth it, and how hard gzip tries
ONCE = ("Host", "Content-Length")
NO_FRAMES = "frame-ancestors 'none'"  # a header can say so, a page cannot
HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; {NO_FRAMES}",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


@lru_cache(maxsize=4)
def packed(content: bytes) -> bytes:
    """As gzip: the page is asked for again and again."""
    return gzip.compress(content, QUICK, mtime=0)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], time_limit_s: float, guard: Guard | None = None, most: int = MOST
    ) -> None:
        self.crew: Crew | None = None  # that questions are handed to, where there is one
        self.watchdog = Watchdog(time_limit_s)
        self.turn = Turn()
        self.guard = guard or Guard(address[0])
        self.places = Places(most)
        self.address_family = AF_INET6 if ":" in address[0] else AF_INET
        super().__init__(address, Handler)

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        name = host.decode() if isinstance(host, bytes | bytearray) else str(host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.places.take(request):
            super().process_request(request, client_address)
        else:
            _turn_away(request, self.places.most)
            self.shutdown_request(request)

    def service_actions(self) -> None:
        self.places.sweep()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.give_back(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news; anything else is, in one line."""
        error = sys.exception()
        if not isinstance(error, (ConnectionError, TimeoutError)):
            print(f"chip serve: connection ended by {type(error).__name__}: {error}", file=sys.stderr)


def _turn_away(connection: socket, most: int) -> None:
    body = json.dumps({"error": f"all {most} connections are taken; try again"})
    head = f"HTTP/1.1 503 Service Unavailable\r\nContent-Type: {JSON}\r\nContent-Length: {len(body)}\r\n"
    with suppress(OSError):  # it may be gone already
        connection.setblocking(False)  # nobody else may wait for it
        connection.sendall(f"{head}Retry-After: 1\r\nConnection: close\r\n\r\n{body}".encode())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = f"chip/{__version__}"
    sys_version = ""
    timeout = IDLE_S
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one packet
    server: Server

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method: refused by the same rules, not with a page of HTML
            return lambda: self._answer(self._other)
        raise AttributeError(name)

    def _answer(self, find: Callable[[bytes], tuple[str, bytes]]) -> None:
        headers: Mapping[str, str] = {}
        try:
            body = self._body()
            self.server.places.busy(self.connection)
            self._admit()
            path = self._url().path  # others need not wait for the hub as well, nor a visitor for others' answers
            handed = self._handed(path, body)
            if handed:
                status, content, headers = handed
                kind = JSON
            else:
                status = 200
                free = path == api.HUB or (path == PAGE and page.is_made())
                limit = nullcontext() if path == PAGE else self.server.watchdog.limit()  # the page is made once
                turn = nullcontext() if free else self.server.turn.within(self.server.watchdog.seconds)
                with turn, limit:
                    kind, content = find(body)
            if kind == HTML:
                headers = {"Content-Security-Policy": f"{page.explorer().policy}; {NO_FRAMES}"}
        except Exception as e:
            kind = JSON
            status, content, headers = failure(e, f"{self.command} {self.path[:200]!r}", self.server.watchdog.seconds)
        self._send(status, kind, content, headers)
        self.wfile.flush()
        self.server.places.idle(self.connection)
        garbage.after_answer()

    def _handed(self, path: str, body: bytes) -> Reply | None:
        """What another process answered; None where this one has to."""
        if self.server.crew is None or self.command != "POST" or path not in api.ASKED or path == api.HUB:
            return None
        self._check_kind()
        try:
            return self.server.crew.answer(path, body)
        except Gone:
            return None

    def _admit(self) -> None:
        """Refuse other names for this server, and who does not have its token."""
        host = self.headers.get("Host")
        guard = self.server.guard
        if not guard.knows(host):
            named = host_name(str(host))[:80]
            raise Refused(403, f"this server is not called {named!r}; `chip serve --allow-host {named}` makes it so")
        url = self._url()
        if guard.invites(url.query):
            cookie = f"{COOKIE}={guard.token}; HttpOnly; SameSite=Strict; Path=/"
            raise Refused(303, "welcome", **{"Location": url.path or "/", "Set-Cookie": cookie})
        if not guard.admits(self.headers.get("Authorization"), self.headers.get("Cookie")):
            why = "a token is needed: send `Authorization: Bearer TOKEN`, or open the address printed at the start"
            raise Refused(401, why, **{"WWW-Authenticate": "Bearer"})

    def _url(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError:  # such as http://[
            raise Refused(400, "the address is not well formed") from None

    def _send(self, status: int, kind: str, content: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        own = dict(HEADERS)
        if len(content) >= LEAST_PACKED and self._takes_gzip():
            content, own["Content-Encoding"], own["Vary"] = packed(content), "gzip", "Accept-Encoding"
        for name, value in {**own, "Content-Type": kind, "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _takes_gzip(self) -> bool:
        headers = getattr(self, "headers", None)  # a request line that is refused has none
        return headers is not None and "gzip" in (headers.get("Accept-Encoding") or "")

    def _body(self) -> bytes:
        """The whole body, read whatever the method, so that the next request on this connection starts at its head."""
        for name in ONCE:
            if len(self.headers.get_all(name, ())) > 1:  # a proxy before us may have heeded the other
                self.close_connection = True
                raise Refused(400, f"{name} is given twice")
        if self.headers.get("Transfer-Encoding"):
            self.close_connection = True
            raise Refused(411, "send the body whole, with its Content-Length")
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or len(length) > 18:
            self.close_connection = True
            raise Refused(400, "Content-Length must be a whole number")
        if int(length) > LARGEST_BODY:
            self.close_connection = True
            raise Refused(413, f"the body has {length} bytes; at most {LARGEST_BODY} are taken")
        return self.rfile.read(int(length))

    def _get(self, _: bytes) -> tuple[str, bytes]:
        path = self._url().path
        if path == PAGE:
            return HTML, page.explorer().text.encode()
        if path == "/openapi.json":
            return JSON, json.dumps(document()).encode()
        if path == api.DEFAULTS:
            return JSON, api.defaults().encode()
        if path in api.LISTED:
            return JSON, api.listing(api.LISTED[path]).encode()
        if path.startswith(api.ROOFS):
            return JSON, self._roofs(unquote(path.removeprefix(api.ROOFS)))
        self._other(b"")

    def _roofs(self, gpu: str) -> bytes:
        try:
            return api.roofs(gpu).encode()
        except ChipError as e:
            raise Refused(404, str(e)) from None

    def _post(self, body: bytes) -> tuple[str, bytes]:
        path = self._url().path
        if path not in api.ASKED:
            self._other(body)
        if path == api.HUB and self.server.guard.open:
            raise Refused(403, "hub ids are answered with --token, or where only this machine can ask")
        self._check_kind()
        return JSON, api.ASKED[path](parsed(body)).encode()

    def _check_kind(self) -> None:
        if self.headers.get_content_type() != JSON:
            raise Refused(415, f"the body must be {JSON}")

    def _other(self, _: bytes) -> NoReturn:
        """Not a path there is, or not with this method."""
        path = self._url().path
        if path in api.ASKED:
            raise Refused(405, f"{path} is asked with POST", Allow="POST")
        if path == PAGE or path in api.LISTED or path.startswith(api.ROOFS) or path in ("/openapi.json", api.DEFAULTS):
            raise Refused(405, f"{path} is asked with GET", Allow="GET, HEAD")
        raise Refused(404, "no such path; /openapi.json lists those there are")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What http.server itself refuses (a broken request line, too many headers), in the form of all errors."""
        self.close_connection = True
        if not hasattr(self, "command") or self.command is None:
            self.command = ""
        self._send(code, JSON, told(message or "bad request"), {})

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: stderr says where the server is and what went wrong."""
