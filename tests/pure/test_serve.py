"""`chip serve`: the command line's own answers over HTTP, from names and pasted configs alone, and nothing else."""

import gzip
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from chip.decoders import library
from chip.show import cli
from chip.show.serve import api, server
from chip.show.serve.limit import Overrun, Watchdog
from chip.show.serve.turn import Busy, Turn

SRC = Path(server.__file__).parents[3]
JSON = {"Content-Type": "application/json"}
QUESTION = {"model": "tinyllama-1.1b", "gpu": "a100", "batch": 3, "prompt": 77, "output": 9}


@pytest.fixture(scope="module")
def address():
    with server.Server(("127.0.0.1", 0), 5.0) as made:
        thread = threading.Thread(target=made.serve_forever, daemon=True)
        thread.start()
        yield made.server_address[:2]
        made.shutdown()


@pytest.fixture
def ask(address):
    with closing(http.client.HTTPConnection(*address, timeout=20)) as connection:

        def asked(method, path, body=None, headers=JSON):
            sent = json.dumps(body) if isinstance(body, (dict, list)) else body
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers.get_content_type() == "application/json"
            return response, json.loads(content) if is_json and content else content

        yield asked


def command(capsys, *words):
    assert cli.main([str(w) for w in words]) == 0
    return json.loads(capsys.readouterr().out)


def options(question):
    return [w for k, v in question.items() if k != "model" for w in (f"--{k}", v)]


# -- the same answers -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "question",
    [
        {"model": "llama-3.1-8b"},
        QUESTION,
        {"model": "MIXTRAL-8x7b", "gpu": "sm_90:80GB", "engine": "hf-graph", "dtype": "int4", "tp": 2},
        {"model": "qwen3-8b", "gpu": "rtx-4090", "output": 1},
    ],
)
def test_predict_is_the_command_lines(ask, capsys, question):
    response, found = ask("POST", "/api/predict", question)
    assert response.status == 200, found
    assert found == command(capsys, "predict", question["model"], *options(question), "--json")


def test_estimate_is_the_command_lines(ask, capsys):
    response, found = ask("POST", "/api/estimate", {"op": "linear", "gpu": "h200", "m": 8, "n": 4096, "k": 4096})
    assert response.status == 200
    assert found == command(capsys, "estimate", "linear", "m=8", "n=4096", "k=4096", "--json")


@pytest.mark.parametrize("what", ["models", "gpus", "ops", "engines"])
def test_lists_are_the_command_lines(ask, capsys, what):
    assert ask("GET", f"/api/{what}")[1] == command(capsys, "list", what, "--json")


def test_roofs_are_the_command_lines(ask, capsys):
    wanted = command(capsys, "roofline", "--gpu", "h200", "--json")
    assert wanted.pop("points") == []
    assert ask("GET", "/api/gpus/h200")[1] == wanted


def test_a_pasted_config_is_answered_as_its_file_would_be(ask, capsys, tmp_path):
    config = json.loads((library.CONFIGS / "tinyllama-1.1b.json").read_text())
    config["num_hidden_layers"] = 7
    (tmp_path / "seven.json").write_text(json.dumps(config))
    response, found = ask("POST", "/api/predict", {**QUESTION, "model": "seven", "config": config})
    assert response.status == 200, found
    assert found == command(capsys, "predict", tmp_path / "seven.json", *options(QUESTION), "--json")
    assert ask("POST", "/api/predict", {"config": config})[1]["model"] == api.PASTED


# -- no file of the host ----------------------------------------------------------------------------------------------
@pytest.fixture
def host_files(tmp_path, monkeypatch):
    """A folder of readable models and GPUs, the server's working directory."""
    config = (library.CONFIGS / "tinyllama-1.1b.json").read_text()
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(config)
    sheet = (Path(library.CONFIGS).parent / "hardware" / "a100.json").read_text()
    (tmp_path / "gpu.json").write_text(sheet)
    (tmp_path / "sm_90:80GB").write_text(sheet)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_model_file_is_read(ask, host_files):
    for name in (
        "config.json",
        "./config.json",
        "mine",
        host_files / "config.json",
        "/etc/passwd",
        ".",
        "org/model",
        "",
    ):
        response, found = ask("POST", "/api/predict", {"model": str(name)})
        assert response.status == 422, name
        assert found["error"].startswith(f"no model {str(name)!r}"), "refused by its name, not by what is in it"


def test_no_gpu_file_is_read(ask, host_files):
    for name in ("gpu.json", host_files / "gpu.json", "../gpu.json", "/etc/passwd", "/proc/self/environ", ""):
        response, found = ask("POST", "/api/predict", {"model": "gpt2", "gpu": str(name)})
        assert response.status == 422
        assert found["error"].startswith(f"no GPU {str(name)!r}")
        response, found = ask("POST", "/api/estimate", {"op": "fill", "rows": 1, "cols": 1, "gpu": str(name)})
        assert response.status == 422
        assert found["error"].startswith(f"no GPU {str(name)!r}")
    _, found = ask("POST", "/api/predict", {"model": "gpt2", "gpu": "sm_90:80GB"})
    assert found["memory"]["capacity_bytes"] == 80 * 2**30, "the name, not the file that is called so"


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/static/../api.py", "/server.py",
     "//etc/passwd", "/style.css%00", "/explorer.html", "/api/gpus/..%2fgpu.json", "/api/gpus/%2fetc%2fpasswd"],
)  # fmt: skip
def test_paths_lead_nowhere_else(ask, path):
    response, found = ask("GET", path)
    assert response.status == 404
    assert set(found) == {"error"}


# -- what is refused, in one line -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"{"), (400, b"\xff\xfe"), (400, b"[" * 100_000), (400, b'{"batch": ' + b"9" * 5000 + b"}"), (400, b""),
        (422, b"[]"), (422, b"null"), (422, b"{}"), (422, b'"llama-3.1-8b"'), (422, b'{"model": "gpt2", "bach": 1}'),
        (400, b'{"model": "gpt2", "batch": NaN}'), (400, b'{"model": "gpt2", "batch": 1e400}'),
        (422, b'{"model": "gpt2", "batch": 0}'), (422, b'{"model": ["gpt2"]}'), (422, b'{"model": "gpt2", "gpu": 3}'),
        (422, b'{"model": "\\ud800"}'), (422, b'{"config": 3}'), (422, b'{"config": {}}'),
        (422, b'{"config": {"architectures": ["LlamaForCausalLM"], "hidden_size": -1}}'),
        (422, b'{"model": "gpt2", "engine": "../../etc"}'), (422, b'{"model": "gpt2", "dtype": "fp3"}'),
        (422, b'{"model": "", "config": {}}'),
    ],
)  # fmt: skip
def test_bad_questions(ask, status, body):
    response, found = ask("POST", "/api/predict", body)
    assert response.status == status
    assert set(found) == {"error"}
    assert found["error"]
    assert "\n" not in found["error"]
    assert ask("POST", "/api/predict", QUESTION)[0].status == 200, "the connection goes on"


def test_only_json_is_taken(ask):
    response, found = ask("POST", "/api/predict", json.dumps(QUESTION), {"Content-Type": "text/plain"})
    assert response.status == 415, "a form of a foreign page cannot ask"
    assert "application/json" in found["error"]


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [("GET", "/api/predict", "POST"), ("DELETE", "/api/estimate", "POST"), ("POST", "/", "GET, HEAD"),
     ("BREW", "/api/models", "GET, HEAD"), ("OPTIONS", "/api/gpus/h200", "GET, HEAD")],
)  # fmt: skip
def test_other_methods(ask, method, path, allow):
    response, found = ask(method, path)
    assert (response.status, response.headers["Allow"]) == (405, allow)
    assert path in found["error"]


def raw(address, sent):
    with closing(socket.create_connection(address, timeout=10)) as s:
        s.sendall(sent)
        found = b""
        while part := s.recv(65536):
            found += part
        return found


def test_a_large_body_is_refused_before_it_is_read(address):
    head = b"POST /api/predict HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    found = raw(address, head + b"Content-Length: 104857600\r\n\r\n{")
    assert found.startswith(b"HTTP/1.1 413 ")
    assert found.endswith(b'at most 1048576 are taken"}')
    assert raw(address, head + b"Content-Length: -1\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(address, head + b"Content-Length: " + b"9" * 500 + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(address, head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n").startswith(b"HTTP/1.1 411 ")


def test_what_is_no_http_is_refused_as_json(address):
    for sent in (b"NONSENSE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"):
        found = raw(address, sent)
        assert b"Traceback" not in found
        assert b'{"error": ' in found


def test_a_fault_of_our_own_is_one_line(ask, monkeypatch, capsys):
    def fault(_):
        raise RuntimeError("secret path")

    monkeypatch.setitem(api.ASKED, "/api/predict", fault)
    response, found = ask("POST", "/api/predict", QUESTION)
    assert response.status == 500
    assert "secret" not in found["error"]


# -- limits -----------------------------------------------------------------------------------------------------------
def endless(_):
    while True:
        time.monotonic()


def test_what_takes_too_long_is_stopped(monkeypatch):
    monkeypatch.setitem(api.ASKED, "/api/predict", endless)
    with server.Server(("127.0.0.1", 0), 0.1) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        connection = http.client.HTTPConnection(*made.server_address[:2], timeout=20)
        connection.request("POST", "/api/predict", "{}", JSON)
        response = connection.getresponse()
        assert response.status == 503
        assert json.loads(response.read())["error"] == "stopped after 0.1 s; ask for something smaller"
        connection.request("GET", "/api/defaults")
        assert connection.getresponse().read(), "the same thread answers again"
        connection.close()
        made.shutdown()


def test_watchdog_leaves_later_code_alone():
    watchdog = Watchdog(0.05)
    with pytest.raises(Overrun), watchdog.limit():
        endless(None)
    with watchdog.limit():
        pass
    end = time.monotonic() + 0.2
    while time.monotonic() < end:
        pass


def test_turns_are_had_in_the_order_they_were_asked_for():
    turn, had = Turn(), []

    def wait(number):
        with turn.within(10):
            had.append(number)

    threads = [threading.Thread(target=wait, args=(i,)) for i in range(8)]
    with turn.within(10):
        for i, thread in enumerate(threads):
            thread.start()
            while len(turn._waiting) <= i:
                time.sleep(0.001)
    for thread in threads:
        thread.join(10)
    assert had == list(range(8))
    with turn.within(10), pytest.raises(Busy), turn.within(0.05):
        pass
    with turn.within(0.05):
        pass


def test_connections_are_bounded():
    with server.Server(("127.0.0.1", 0), 5.0, most=2) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        held = [http.client.HTTPConnection(*made.server_address[:2], timeout=10) for _ in range(2)]
        for connection in held:
            connection.request("GET", "/api/defaults")
            assert connection.getresponse().read()
        assert raw(made.server_address[:2], b"").startswith(b"HTTP/1.1 503 ")
        for connection in held:
            connection.close()
        for _ in range(1000):
            found = raw(made.server_address[:2], b"GET /api/defaults HTTP/1.0\r\n\r\n")
            if b" 200 " in found:
                break
            time.sleep(0.02)
        assert b" 200 " in found, "a place that was left is free again"
        made.shutdown()


# -- the page ---------------------------------------------------------------------------------------------------------
def test_the_page_is_served_with_a_policy_that_keeps_it_here(ask):
    response, content = ask("GET", "/")
    assert response.status == 200
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http:" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    head, nothing = ask("HEAD", "/")
    assert head.headers["Content-Length"] == str(len(content))
    assert not nothing


def test_the_page_comes_with_the_answers_it_opens_with(ask):
    _, content = ask("GET", "/")
    held = json.loads(re.search(r'id="data">(.*?)</script>', content.decode())[1])
    assert [path for path, _, _ in held["answers"]] == ["/api/compare", "/api/estimate"]
    for path, question, answer in held["answers"]:
        assert ask("POST", path, question)[1] == answer
    assert held["gpus"] == ask("GET", "/api/gpus")[1]
    assert held["defaults"] == ask("GET", "/api/defaults")[1]


def test_configurations_side_by_side(ask):
    asked = {"model": "llama-3.1-8b", "batch": 4, "configurations": [{"gpu": "h200"}, {"gpu": "a10", "tp": 2}]}
    response, found = ask("POST", "/api/compare", asked)
    assert response.status == 200, found
    first, second = found["predictions"]
    assert second == ask("POST", "/api/predict", {"model": "llama-3.1-8b", "batch": 4, "gpu": "a10", "tp": 2})[1]
    before, after = found["against_first"]
    assert set(before["ratio"].values()) == {1.0}
    assert after["ratio"]["tpot_ms"] == pytest.approx(second["tpot_ms"] / first["tpot_ms"], rel=1e-6)
    assert not after["tie"]["tpot_ms"]
    assert before["tie"]["tpot_ms"], "a configuration is a tie with itself"
    us = [next(r["us"] for r in p["breakdown"]["tpot"] if r["role"] == "down_proj") for p in (first, second)]
    assert after["operators"]["tpot"]["down_proj"] == pytest.approx(us[1] / us[0], rel=1e-6)
    assert after["usable_share"] == pytest.approx(0.92, abs=1e-3)
    assert set(found["roofs"]) == {"h200", "a10"}
    for bad, why in (([], "1 to 6"), ([{}] * 7, "1 to 6"), ([{"batch": 1}], "no 'batch'"), ([{"gpu": "nope"}], "nope")):
        response, refused = ask("POST", "/api/compare", {**asked, "configurations": bad})
        assert response.status == 422
        assert why in refused["error"]


def test_description_names_every_path(ask):
    _, found = ask("GET", "/openapi.json")
    assert found["openapi"].startswith("3.1")
    assert set(found["paths"]) == {*api.ASKED, *api.LISTED, api.DEFAULTS, "/api/gpus/{gpu}"}


# -- the command ------------------------------------------------------------------------------------------------------
def test_command_listens_on_loopback_until_interrupted():
    env = {**os.environ, "PYTHONPATH": str(SRC)}
    words = [sys.executable, "-m", "chip", "serve", "--port", "0", "--json"]
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # what a shell starts in the background ignores it
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, preexec_fn=heard
    ) as process:
        try:
            where = json.loads(process.stdout.readline())
            assert where["url"].startswith("http://127.0.0.1:")
            connection = http.client.HTTPConnection(where["url"].split("/")[2], timeout=20)
            connection.request("POST", "/api/predict", json.dumps(QUESTION), JSON)
            assert connection.getresponse().status == 200
            connection.close()
            process.send_signal(signal.SIGINT)
            _, talk = process.communicate(timeout=20)
        finally:
            process.kill()
    assert process.returncode == 0
    assert talk == "Ctrl-C ends it\n"


def test_other_addresses():
    try:
        with server.Server(("::1", 0), 5.0) as made:
            assert re.fullmatch(r"http://\[::1\]:\d+/", made.url)
    except OSError:
        pytest.skip("no IPv6 here")


def test_command_says_what_it_cannot_do(capsys):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert cli.main(["serve", "--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"chip serve: cannot listen on 127.0.0.1:{port} (")
    assert error.count("\n") == 1
    assert cli.main(["serve", "--port", "70000"]) == 2
    assert cli.main(["serve", "--time-limit", "0"]) == 2
    assert cli.main(["serve", "--host", "no such host"]) == 2
    assert capsys.readouterr().err.count("\n") == 3


def test_what_is_long_is_sent_as_gzip_to_those_who_take_it(ask):
    plain, whole = ask("GET", "/", headers={"Accept-Encoding": "identity"})
    packed, small = ask("GET", "/", headers={"Accept-Encoding": "br, gzip"})
    assert plain.headers["Content-Encoding"] is None
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(small) == whole
    assert len(small) < len(whole) / 3
