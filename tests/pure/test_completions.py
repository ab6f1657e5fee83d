"""The client of a completions server: when it sends, what it takes for a chunk, and what it makes of errors."""

import asyncio
import json
import threading
import time

import pytest

from chip.lab.run.completions import (
    Connection,
    StreamedCompletion,
    call,
    drive,
    request_of,
    run_coroutine,
    tokens_in,
)
from chip.types import ChipError

TOKEN_S = 0.004


class Server:
    """Streams what is asked of it. The prompt says how: [0] is refused, [1] ends early, [2] hangs, others are answered
    by the clock."""

    def __init__(self):
        self.asked, self.inside, self.most_inside = [], 0, 0
        self.loop = asyncio.new_event_loop()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()
        assert self.ready.wait(10)

    def run(self):
        asyncio.set_event_loop(self.loop)
        made = self.loop.run_until_complete(asyncio.start_server(self.connection, "127.0.0.1", 0))
        self.port = made.sockets[0].getsockname()[1]
        self.ready.set()
        self.loop.run_forever()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.01))

    def stop(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)

    async def connection(self, reader, writer):
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                await self.answer(json.loads(await reader.readexactly(size)), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answer(self, body, writer):
        self.asked.append((time.perf_counter(), body))
        self.inside += 1
        self.most_inside = max(self.most_inside, self.inside)
        try:
            if body["prompt"] == [0]:
                writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 8\r\n\r\ntoo long")
                return
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            for i in range(body["max_tokens"]):
                await asyncio.sleep(TOKEN_S if body["prompt"] != [2] else 60)
                self.chunk(writer, 'data: {"choices":[{"text":" w' + str(i) + '"}]}\n\n')
                if body["prompt"] == [1]:
                    raise ConnectionError
            self.chunk(writer, "data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        finally:
            self.inside -= 1

    def chunk(self, writer, text):
        writer.write(b"%x\r\n%s\r\n" % (len(text), text.encode()))


@pytest.fixture(scope="module")
def server():
    made = Server()
    yield made
    made.stop()


def asked(count, output=3, prompt=(9, 9)):
    return [request_of("127.0.0.1", "m", prompt, output)] * count


def test_requests_go_by_the_clock_whatever_became_of_those_before(server):
    server.asked.clear()
    found = drive("127.0.0.1", server.port, asked(6, 20), [0.02 * i for i in range(6)], 0, 20)
    assert [c.error for c in found] == [""] * 6
    for i, c in enumerate(found):
        assert c.arrival_s == 0.02 * i <= c.sent_s < c.chunk_s[0]
        assert c.chunk_s == sorted(c.chunk_s)
        assert c.chunk_tokens == [1] * 20
    assert found[1].sent_s < found[0].chunk_s[-1], "nobody waits for an answer"
    _, body = server.asked[0]
    assert body == {
        "model": "m", "prompt": [9, 9], "max_tokens": 20, "temperature": 0.0, "ignore_eos": True, "stream": True
    }  # fmt: skip


def test_a_notebook_whose_loop_runs_can_drive_a_server(server):
    async def cell():
        return drive("127.0.0.1", server.port, asked(2), [0.0, 0.0], 0, 20)

    assert [c.error for c in run_coroutine(cell())] == ["", ""]


def test_users_wait_for_their_answers(server):
    server.most_inside = 0
    found = drive("127.0.0.1", server.port, asked(11), [0.0] * 11, 3, 20)
    assert server.most_inside == 3
    assert len(found) == 11
    assert found[3].arrival_s >= min(c.chunk_s[-1] for c in found[:3])


def test_what_the_server_refuses_has_no_chunks_and_its_connection_serves_on(server):
    found = drive("127.0.0.1", server.port, [*asked(1, 3, [0]), *asked(1)], [0.0, 0.05], 0, 20)
    assert found[0].error == "status 400: too long"
    assert not found[0].chunk_s
    assert found[1].chunk_tokens == [1, 1, 1]


def test_a_stream_that_breaks_and_a_server_that_is_not_there_are_said(server):
    assert (
        drive("127.0.0.1", server.port, asked(1, 3, [1]), [0.0], 0, 20)[0].error == "the server closed the connection"
    )
    with pytest.raises(ChipError, match="did not answer all requests within 0 s"):
        drive("127.0.0.1", server.port, asked(1, 3, [2]), [0.0], 0, 0.3)
    assert drive("127.0.0.1", 9, asked(1), [0.0], 0, 20)[0].error.startswith("no connection")
    assert call("127.0.0.1", 9, "/health", 1)[0] == 0


def test_chunks_are_found_however_the_network_cuts_them():
    def event(words):
        data = json.dumps({"choices": [{"text": words}]}, separators=(",", ":"))
        data = f"data: {data}\n\n".encode()
        return b"%x\r\n%s\r\n" % (len(data), data)

    stream = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + event(" w1") + event(" w22 w3 w4") + event("")
    stream += b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

    class Transport:
        def write(self, data):
            pass

    async def cut(size):
        connection, completion = Connection(), StreamedCompletion(0.0)
        connection.connection_made(Transport())
        ended = connection.ask(b"", completion, 0.0)
        for at in range(0, len(stream), size):
            connection.data_received(stream[at : at + size])
        assert ended.done()
        return completion

    for size in (1, 2, 3, 7, 50, len(stream)):
        completion = run_coroutine(cut(size))
        assert (completion.chunk_tokens, completion.error) == ([1, 3, 1], ""), size


def test_the_words_of_a_chunk_are_its_tokens():
    assert tokens_in(b'data: {"id":"wow","choices":[{"index":0,"text":" w7 w8","finish_reason":"window"}]}') == 2
