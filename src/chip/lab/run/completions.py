"""Completions asked of an OpenAI-compatible server over HTTP and streamed back: when every chunk of every one came.

Nothing but the standard library: a connection parses only what tells it where a chunk of the stream begins and ends, so
that the client takes a few microseconds of a token and the server is what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections import deque
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from typing import Any, TypeVar

from chip.engines.sampling import GREEDY, request_fields
from chip.types import ChipError

T = TypeVar("T")
CONNECT_S = 10.0
CLOSED = "the server closed the connection"
PATH = "/v1/completions"
EVENT, DONE, TEXT = b"data: ", b"data: [DONE]", b'"text":"'


@dataclass(slots=True)
class StreamedCompletion:
    """One request and its stream, in seconds from the start. `error` says why the server gave none."""

    arrival_s: float  # planned; of a closed loop when its user was ready
    sent_s: float = -1.0
    chunk_s: list[float] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    error: str = ""


class Connection(asyncio.Protocol):
    """One connection, kept alive: a request at a time."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.open = False
        self._ended: asyncio.Future[None] | None = None
        self._completion: StreamedCompletion | None = None
        self._zero_s = 0.0
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.open = transport, True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._end(CLOSED)

    def ask(self, request: bytes, completion: StreamedCompletion, zero_s: float) -> asyncio.Future[None]:
        self._ended = asyncio.get_running_loop().create_future()
        self._completion, self._zero_s = completion, zero_s
        self._rest, self._status, self._left = b"", 0, -1
        completion.sent_s = time.perf_counter() - zero_s
        self.transport.write(request)
        return self._ended

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter() - self._zero_s
        rest = self._rest + data if self._rest else data
        if not self._status:
            head, end, rest = rest.partition(b"\r\n\r\n")
            if not end:
                self._rest = head
                return
            self._begin(head)
        if self._left >= 0:  # a body of known length: no stream, the server refuses
            if len(rest) >= self._left:
                self._end(f"status {self._status}: {rest[:200].decode(errors='replace')}")
            self._rest = rest
            return
        self._rest = self._chunks(rest, now_s)

    def _begin(self, head: bytes) -> None:
        line, *headers = head.decode("latin-1").split("\r\n")
        self._status = int(line.split(" ")[1])
        named = {k.strip().lower(): v.strip() for k, _, v in (h.partition(":") for h in headers)}
        if "content-length" in named:
            self._left = int(named["content-length"])

    def _chunks(self, data: bytes, now_s: float) -> bytes:
        """Take whole chunks of the transfer encoding; what remains waits for more."""
        at = 0
        while True:
            line_end = data.find(b"\r\n", at)
            if line_end < 0:
                return data[at:]
            size = int(data[at:line_end], 16)
            begin, end = line_end + 2, line_end + 2 + size
            if len(data) < end + 2:
                return data[at:]
            if not size:
                self._end("" if self._status == 200 else f"status {self._status}")
                return b""
            self._event(data[begin:end], now_s)
            at = end + 2

    def _event(self, event: bytes, now_s: float) -> None:
        completion = self._completion
        assert completion is not None
        if self._status != 200 or not event.startswith(EVENT):
            completion.error = completion.error or event[:200].decode(errors="replace")
        elif not event.startswith(DONE):
            completion.chunk_s.append(now_s)
            completion.chunk_tokens.append(tokens_in(event))

    def _end(self, error: str) -> None:
        if self._ended is not None and not self._ended.done():
            assert self._completion is not None
            self._completion.error = self._completion.error or error
            self._ended.set_result(None)


def tokens_in(event: bytes) -> int:
    """Tokens of a chunk by the words of its text: the vocabulary of `vllm_server` has one w in each."""
    begin = event.find(TEXT) + len(TEXT)
    return max(1, event.count(b"w", begin, event.find(b'"', begin)))


def request_of(host: str, model: str, prompt: Sequence[int], output: int, sampling: str = GREEDY) -> bytes:
    """The whole request, ready to be sent, for exactly so many tokens."""
    question = {"model": model, "prompt": list(prompt), "max_tokens": output, **request_fields(sampling)}
    body = json.dumps(question | {"ignore_eos": True, "stream": True}, separators=(",", ":")).encode()
    head = [f"POST {PATH} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, "", ""]).encode() + body


class Client:
    """Requests by the clock, or of users who wait for their answers."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._idle: deque[Connection] = deque()

    async def _one(self, request: bytes, completion: StreamedCompletion, zero_s: float) -> None:
        while self._idle and not self._idle[-1].open:
            self._idle.pop()
        if self._idle:
            connection = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            try:
                reached = loop.create_connection(Connection, self.host, self.port)
                _, connection = await asyncio.wait_for(reached, CONNECT_S)
            except (OSError, TimeoutError) as e:
                completion.error = f"no connection ({type(e).__name__})"
                return
        await connection.ask(request, completion, zero_s)
        if connection.open:
            self._idle.append(connection)

    async def by_the_clock(self, requests: Sequence[bytes], arrival_s: Sequence[float]) -> list[StreamedCompletion]:
        """Each at its time, whatever became of those before."""
        zero_s = time.perf_counter()
        completions, tasks = [], []
        for request, at_s in zip(requests, arrival_s):
            if (ahead_s := at_s - (time.perf_counter() - zero_s)) > 0:
                await asyncio.sleep(ahead_s)
            completions.append(StreamedCompletion(at_s))
            tasks.append(asyncio.create_task(self._one(request, completions[-1], zero_s)))
        await asyncio.gather(*tasks)
        return completions

    async def in_a_loop(self, requests: Sequence[bytes], users: int) -> list[StreamedCompletion]:
        """Each of the users sends the next request when the last one is answered."""
        zero_s = time.perf_counter()
        completions: list[StreamedCompletion] = []
        left = iter(requests)

        async def user() -> None:
            for request in left:
                completions.append(StreamedCompletion(time.perf_counter() - zero_s))
                await self._one(request, completions[-1], zero_s)

        await asyncio.gather(*(user() for _ in range(min(users, len(requests)))))
        return completions

    def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()


def run_coroutine(work: Coroutine[Any, Any, T]) -> T:
    """asyncio.run, also for a caller who is inside an event loop already (a notebook): in a thread of its own then."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def drive(
    host: str, port: int, requests: Sequence[bytes], arrival_s: Sequence[float], users: int, timeout_s: float
) -> list[StreamedCompletion]:
    """All requests, in the order in which they were sent. `users` 0: at their `arrival_s`."""

    async def load() -> list[StreamedCompletion]:
        client = Client(host, port)
        work = client.in_a_loop(requests, users) if users else client.by_the_clock(requests, arrival_s)
        try:
            return await asyncio.wait_for(work, timeout_s)
        finally:
            client.close()

    gc.collect()
    gc.disable()  # a pause of the client would be taken for one of the server
    try:
        return run_coroutine(load())
    except TimeoutError:
        raise ChipError(f"the server did not answer all requests within {timeout_s:.0f} s") from None
    finally:
        gc.enable()


def call(host: str, port: int, path: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
    """One short request, outside of any timing: its status and its text; (0, why) where nobody answers."""
    connection = HTTPConnection(host, port, timeout=timeout_s)
    with contextlib.closing(connection):
        try:
            if body is None:
                connection.request("GET", path)
            else:
                connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        except (OSError, HTTPException) as e:
            return 0, type(e).__name__
