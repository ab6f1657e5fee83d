"""Who gets in: names, tokens, slow clients and many clients, and what all of them may cost."""

import http.client
import json
import resource
import socket
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from chip.show import cli
from chip.show.serve import server
from chip.show.serve.guard import Guard, host_name

SRC = Path(server.__file__).parents[3]
JSON = {"Content-Type": "application/json"}


@contextmanager
def serving(**options):
    with server.Server(("127.0.0.1", 0), 5.0, **options) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield made.server_address[:2]
        finally:
            made.shutdown()


def raw(address, data, timeout=10):
    with closing(socket.create_connection(address, timeout=timeout)) as s:
        s.sendall(data)
        found = b""
        while more := s.recv(65536):
            found += more
        return found


def status(address, head):
    return int(raw(address, head.encode() + b"Connection: close\r\n\r\n").split()[1])


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:{port}", 200), ("localhost", 200), ("LOCALHOST:80", 200), ("[::1]:{port}", 200),
        ("evil.example", 403), ("evil.example:{port}", 403), ("127.0.0.1.evil.example", 403), ("", 403), ("[", 403),
        ("localhost.evil.example", 403), ("10.0.0.1", 403),
    ],
)  # fmt: skip
def test_another_name_is_refused(host, code):
    with serving() as address:
        head = f"GET /api/defaults HTTP/1.1\r\nHost: {host.format(port=address[1])}\r\n"
        assert status(address, head) == code


@pytest.mark.parametrize("twice", ["Host: localhost", "host: evil.example", "Content-Length: 2", "content-length: 30"])
def test_a_header_that_decides_is_given_once(twice):
    """Two lengths are two requests to somebody, two hosts two servers."""
    head = f"POST /api/predict HTTP/1.1\r\nHost: localhost\r\n{twice}\r\nContent-Length: 2\r\n"
    with serving() as address:
        found = raw(address, head.encode() + b"Content-Type: application/json\r\n\r\n{}GET / HTTP/1.1\r\n\r\n")
        name = twice.split(":")[0].title()
        assert found.startswith(b"HTTP/1.1 400 ")
        assert found.endswith(f'{{"error": "{name} is given twice"}}'.encode()), "and the connection ends"


def test_names_of_a_server_that_everyone_reaches():
    guard = Guard("0.0.0.0", ["chip.example"])
    known = ("10.1.2.3:80", "[fe80::1]:80", "chip.example", "Chip.Example:443", socket.gethostname())
    assert all(guard.knows(h) for h in known)
    assert not any(guard.knows(h) for h in ("evil.example", "10.1.2.3.evil.example", "chip.example.evil", "a:b:c:g"))
    assert [host_name(h) for h in ("[::1]:80", "a:80", "a", "::1")] == ["::1", "a", "a", "::1"]


@pytest.mark.parametrize("address", ["http://[", "http://[/", "//[", "/%", "*", "http://[::1/api/predict"])
def test_addresses_that_are_none(address):
    with serving() as where:
        for method in ("GET", "POST", "HEAD", "BREW"):
            code = status(where, f"{method} {address} HTTP/1.1\r\nHost: localhost\r\n")
            assert 400 <= code < 500, (method, code)


def test_a_token_is_asked_for_and_a_browser_gets_it_from_the_address():
    with serving(guard=Guard("127.0.0.1", token="secret-token")) as address:  # noqa: SIM117
        with closing(http.client.HTTPConnection(*address, timeout=10)) as c:

            def ask(path, method="GET", **headers):
                c.request(method, path, headers=headers)
                response = c.getresponse()
                response.read()
                return response

            for path in ("/", "/api/defaults", "/openapi.json", "/style.css", "/?token=wrong-token", "/?token="):
                refused = ask(path)
                assert refused.status == 401
                assert refused.headers["WWW-Authenticate"] == "Bearer"
            assert ask("/api/predict", "POST").status == 401
            assert ask("/", Authorization="Bearer wrong").status == 401
            assert ask("/", Authorization="Basic secret-token").status == 401
            assert ask("/", Authorization="Bearer secret-token").status == 200
            welcome = ask("/?token=secret-token")
            assert (welcome.status, welcome.headers["Location"]) == (303, "/")
            cookie = welcome.headers["Set-Cookie"]
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            assert ask("/", Cookie=cookie.split(";")[0]).status == 200
            assert ask("/", Cookie="chip_token=wrong; x=y").status == 401
            assert ask("/", Cookie="\x00" * 5000).status in (400, 401)


def test_slow_clients_shut_nobody_out():
    """All places held by connections that send a byte now and then: others still get their answers."""
    with serving(most=16) as address:
        slow = [socket.create_connection(address, timeout=10) for _ in range(16)]
        for s in slow:
            s.sendall(b"GET / HT")
        time.sleep(1.2)  # as long as a newcomer must let others begin
        for _ in range(5):
            assert status(address, "GET /api/defaults HTTP/1.1\r\nHost: localhost\r\n") == 200
        for s in slow:
            s.close()


def test_a_request_that_never_ends_is_ended(monkeypatch):
    from chip.show.serve.places import Places

    monkeypatch.setattr(Places.sweep, "__defaults__", (0.3,))
    with serving() as address, closing(socket.create_connection(address, timeout=10)) as s:
        for byte in b"GET / HTTP/1.1":
            try:
                s.sendall(bytes([byte]))
            except OSError:
                return
            time.sleep(0.1)
        assert s.recv(10) == b"", "it was closed although it went on sending"


def test_many_clients_get_answers_or_an_honest_503():
    """80 clients at once: no error of the server's own, hardly any refusal, memory flat."""
    codes: dict[int, int] = {}
    lock = threading.Lock()

    def client(number, address):
        with closing(http.client.HTTPConnection(*address, timeout=30)) as c:
            for i in range(5):
                question = {"model": "gpt2", "batch": 1 + (number * 5 + i) % 64, "prompt": 64}
                body = json.dumps(question if i % 3 else {"config": {"architectures": [f"Made{number}-{i}" * 100]}})
                c.request("POST", "/api/predict", body, JSON)
                response = c.getresponse()
                response.read()
                with lock:
                    codes[response.status] = codes.get(response.status, 0) + 1

    with serving() as address:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        threads = [threading.Thread(target=client, args=(n, address)) for n in range(80)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(60)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert sum(codes.values()) == 400, codes
    assert set(codes) <= {200, 422, 503}, codes
    assert codes.get(503, 0) <= 20, codes
    assert grown_kib < 200_000


@pytest.mark.parametrize(("token", "code"), [("short", 2), ("with space in it", 2), ("x;y=zzzzzzz", 2)])
def test_a_token_that_cannot_be_sent_is_refused(token, code, monkeypatch, capsys):
    monkeypatch.setattr(server.Server, "serve_forever", lambda *_, **__: None)  # not for ever where it is taken
    assert cli.main(["serve", "--port", "0", "--token", token]) == code
    assert "--token must be at least 8 letters, digits" in capsys.readouterr().err
