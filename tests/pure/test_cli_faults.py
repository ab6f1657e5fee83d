"""Whatever the input and the terminal: one line, an exit code that means something, never a traceback."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import a_run, write_runs

import chip
from chip import ops
from chip.dtypes import PRECISIONS
from chip.hardware import gpus as hardware
from chip.predictor import operator
from chip.show import cli
from chip.show.cli.streams import printable
from chip.types import ChipError

SRC = Path(chip.__file__).parents[1]
LONG = "x" * 300
ENV = {**os.environ, "PYTHONPATH": str(SRC)}


def chip_does(*words, shell="", env=(), stdin=""):
    """A process of its own; `shell` is what follows on its command line, such as `>&-`."""
    line = " ".join((sys.executable, "-m", "chip", *(f"'{w}'" for w in words), shell))
    return subprocess.run(
        ["bash", "-c", line], input=stdin, capture_output=True, text=True, timeout=60, env={**ENV, **dict(env)}
    )


def told(done, code=2):
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line]
    assert len(lines) == 1, lines
    return lines[0]


def test_every_operator_on_every_gpu_in_every_dtype_is_answered_or_refused():
    """`kv_join` had no answer for a dtype that a GPU cannot multiply, and ended the sweep. One GPU of each set of
    ceilings."""
    refused = 0
    for gpu in {frozenset(hardware.spec(gpu).ceilings): gpu for gpu in hardware.spec_names()}.values():
        for kind in ops.names():
            fields = dataclasses.fields(ops.get(kind))
            axes = {f.name: 8 for f in fields if f.default is dataclasses.MISSING}
            for dtype in (*PRECISIONS, "tf32"):
                try:
                    found = operator.answer({"op": kind, "gpu": gpu, "dtype": dtype, **axes})
                    assert 0 < found["interval"][0] <= found["us"] <= found["interval"][1] < 1e9
                except ChipError:
                    refused += 1
    assert refused


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "gpt2", "--engine", LONG],
        ["predict", "gpt2", "--engine", "a/b"],
        ["predict", "gpt2", "--engine", "a\0b"],
        ["predict", "gpt2", "--gpu", LONG + ".json"],
        ["predict", LONG + ".json"],
        ["predict", "a\0b.json"],
        ["predict", "gpt2", "--engine-profile", LONG],
        ["bench", "gpt2", "--engine", "a/b"],
        ["calibrate", "--engine", LONG],
        ["compare", LONG, "a\0b"],
        ["explain", LONG, LONG],
        ["fit", LONG, "--profile", LONG],
        ["lab", "--plan", "--device", "cpu", "-o", LONG],
        ["replay", LONG, "--device", "cpu"],
        ["report", LONG],
        ["roofline", "--gpu", LONG],
        ["show", "gpt2", ""],
        ["show", LONG + ".json"],
        ["validate", LONG],
        ["validate", "a\0b"],
    ],
    ids=lambda words: " ".join(w[:12].replace("\0", "0") for w in words),
)
def test_names_that_nothing_can_have(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(words)
    except SystemExit as e:
        code = e.code
    err = capsys.readouterr().err
    assert code == 2, err
    assert err.count("\n") == 1
    assert "fault" not in err


def nested(depth):
    return "[" * depth + "]" * depth


@pytest.fixture
def hostile(tmp_path):
    """name -> file: numbers of 400 digits, nesting of 989, and what else a stranger may send."""
    found = {}
    write_runs(tmp_path / "runs.json", a_run())
    held = json.loads((tmp_path / "runs.json").read_text())
    llama = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    texts = {
        "config-huge": json.dumps({**llama, "vocab_size": 10**400}),
        "config-deep": json.dumps(llama)[:-1] + ', "layer_types": ' + nested(989) + "}",
        "config-deep-name": json.dumps(llama)[:-1] + ', "architectures": ' + nested(989) + "}",
        "runs-huge": json.dumps({**held, "data": {"runs": [10**400]}}),
        "runs-huge-sample": (tmp_path / "runs.json").read_text().replace("24000000", "9" * 400, 1),
        "runs-deep": json.dumps(held)[:-1] + ', "more": ' + nested(989) + "}",
        "runs-deep-data": json.dumps({**held, "data": {}})[:-4] + '"data": {"runs": ' + nested(989) + "}}",
        "infinity": json.dumps({**held, "data": float("inf")}),
    }
    for name, text in texts.items():
        found[name] = tmp_path / f"{name}.json"
        found[name].write_text(text)
    return found


@pytest.mark.parametrize("command", ["predict", "show", "validate", "compare", "report", "explain", "roofline"])
def test_hostile_files_are_one_line(command, hostile, tmp_path, capsys):
    for name, path in hostile.items():
        words = {
            "compare": [path, path],
            "explain": [path, path],
            "roofline": ["--gpu", path],
            "report": [path, "-o", tmp_path / "site"],
        }.get(command, [path])
        code = cli.main([command, *map(str, words)])
        out, err = capsys.readouterr()
        if code == 0:  # some commands never look at the part that is hostile
            assert "NaN" not in out
            continue
        assert code == 2, (name, err)
        assert err.count("\n") == 1, (name, err)
        assert "fault" not in err


def test_a_sweep_outlives_any_line(monkeypatch):
    good = '{"model": "gpt2"}'
    lines = [good, nested(5000), '{"model": "gpt2", "batch": 1' + "0" * 400 + "}", '{"model": "gpt2", "batch": NaN}']
    lines += ['{"model": "' + "y" * 1_000_001 + '"}', '{"model": "gpt2", "engine": "a\\u0000b"}', good]
    done = chip_does("predict", "-", stdin="\n".join(lines))
    assert done.returncode == 1
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert ["error" in a for a in answers] == [False, True, True, True, True, True, False]
    assert [a["line"] for a in answers if "error" in a] == [2, 3, 4, 5, 6]
    assert "fault" not in done.stdout


def test_a_fault_in_one_line_is_its_error(monkeypatch, capsys):
    import io

    from chip.predictor import request

    def broken(*_):
        raise KeyError("matmul")

    monkeypatch.setattr(request, "answer_line", broken)
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"model": "gpt2"}\n{"model": "gpt2"}\n'))
    assert cli.main(["predict", "-"]) == 1
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(answers) == 2
    assert all("a fault of chip's own (KeyError: 'matmul')" in a["error"] for a in answers)
    monkeypatch.setattr(request, "answer", broken)
    assert cli.main(["predict", "gpt2"]) == 3
    assert "a fault of chip's own" in capsys.readouterr().err
    monkeypatch.setenv("CHIP_TRACEBACK", "1")
    with pytest.raises(KeyError):
        cli.main(["predict", "gpt2"])


# -- streams ----------------------------------------------------------------------------------------------------------
def test_closed_and_full_streams():
    assert "standard output is closed" in told(chip_does("list", "models", shell=">&-"))
    assert "standard input is closed" in told(chip_does("predict", "-", shell="<&-"))
    assert chip_does("list", "models", shell="2>&-").returncode == 0
    if Path("/dev/full").exists():
        line = told(chip_does("list", "models", shell="> /dev/full"), code=1)
        assert line == "chip: standard output cannot be written (No space left on device)"
        assert told(chip_does("predict", "-", shell="> /dev/full", stdin='{"model": "gpt2"}'), code=1) == line
        for buffered in ("", "1"):
            done = chip_does("predict", "nothing", shell="2> /dev/full", env={"PYTHONUNBUFFERED": buffered})
            assert done.returncode == 2
    assert chip_does("list", "models", shell="| head -1").returncode == 0


def test_names_that_the_terminal_cannot_show(tmp_path):
    for name in ("größe\u20ac", "\udcff"):
        path = tmp_path / name
        path.mkdir()
        config = {"architectures": ["LlamaForCausalLM"], "hidden_size": 64, "num_hidden_layers": 1}
        config |= {"num_attention_heads": 1, "intermediate_size": 64, "vocab_size": 64}
        (path / "config.json").write_text(json.dumps(config))
        words = [sys.executable, "-m", "chip", "predict", str(path)]
        done = subprocess.run(words, capture_output=True, env={**ENV, "PYTHONIOENCODING": "ascii"}, timeout=60)
        assert done.returncode == 0, done.stderr
        assert done.stdout.isascii()
        assert b"Traceback" not in done.stderr


def test_control_characters_never_reach_the_terminal(tmp_path, capsys):
    assert printable("a\x1b[31mb\x07\x9b\u202e\tc\n") == "a\\x1b[31mb\\x07\\x9b\\u202e\tc\n"
    evil = "\x1b]0;owned\x07"
    write_runs(tmp_path / "r.json", a_run(model=evil, flags=(evil,), reason=""))
    for words in (["show", tmp_path / "r.json"], ["compare", tmp_path / "r.json", tmp_path / "r.json"]):
        assert cli.main(list(map(str, words))) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err
        assert "\x07" not in out + err
        assert "\\x1b]0;owned\\x07" in out
    assert cli.main(["predict", evil]) == 2
    assert "\x1b" not in capsys.readouterr().err


# -- what is not there ------------------------------------------------------------------------------------------------
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "numpy"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import contextlib, io, json
from chip.show.cli import main
told = []
for words in {commands!r}:
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        told.append([main(words), said.getvalue()])
print(json.dumps(told))
"""


NEED_TORCH = (
    ["capture", "gpt2"],
    ["replay", "gpt2"],
    ["bench", "gpt2", "--engine", "hf-eager"],
    ["profile", "add", "n=8"],
    ["calibrate"],
    ["calibrate", "--engine", "hf-eager"],
    ["kernels", "check"],
    ["lab"],
)


def test_without_torch_they_say_what_to_install(tmp_path):
    code = BLOCKED.format(commands=NEED_TORCH)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=ENV, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    for words, (code, said) in zip(NEED_TORCH, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert code == 2, words
        assert said.count("\n") == 1, (words, said)
        assert "torch" in said or "numpy" in said, (words, said)
        assert "pip install" in said, (words, said)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="modes of POSIX")
def test_what_may_not_be_read_or_written(tmp_path, capsys, monkeypatch):
    """As root nothing is forbidden: there a folder that is a file stands in for one that is read-only."""
    monkeypatch.chdir(tmp_path)
    forbidden = tmp_path / "forbidden.json"
    forbidden.write_text("{}")
    forbidden.chmod(0)
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "it.json"
    runs_file = tmp_path / "runs.json"
    write_runs(runs_file, a_run())
    cases = [["validate", runs_file, "-o", inside], ["replay", inside, "--device", "cpu"], ["report", inside]]
    if os.geteuid() != 0:
        cases += [["replay", forbidden, "--device", "cpu"], ["show", forbidden], ["predict", forbidden]]
    for words in cases:
        assert cli.main(list(map(str, words))) == 2, words
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
        assert "fault" not in err


def test_an_interrupt_before_the_command_began_is_one_line(monkeypatch, capsys):
    """Found by the campaign: Ctrl-C while commands were listed was a traceback."""

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "commands", interrupted)
    assert cli.main(["list", "gpus"]) == 130
    assert capsys.readouterr().err == "chip: interrupted\n"


def test_a_folder_of_anything_is_not_searched_for_hours(tmp_path, monkeypatch, capsys):
    """Found by the campaign: `chip report /`."""
    from chip.show.report import sources

    monkeypatch.setattr(sources, "MOST_ENTRIES", 3)
    for i in range(5):
        (tmp_path / f"{i}.txt").touch()
    assert cli.main(["report", str(tmp_path), "-o", str(tmp_path / "site")]) == 2
    assert "holds over 3 files; name the folders" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["MOST_FILES", "MOST_BYTES"])
def test_a_folder_beside_a_hundred_others_is_not_read_for_a_minute(limit, tmp_path, monkeypatch, capsys):
    """Found by the campaign: `chip report ..` took 36 s."""
    from chip.show.report import sources

    monkeypatch.setattr(sources, limit, 3)
    for i in range(4):
        (tmp_path / f"{i}.json").write_text("{}")
    assert cli.main(["report", str(tmp_path), "-o", str(tmp_path / "site")]) == 2
    assert "name the folders that hold them" in capsys.readouterr().err


def test_looking_for_the_hub_is_quiet_where_connections_are_replaced(monkeypatch):
    """A test that replaces socket.create_connection left a thread to die in it."""
    import socket
    import threading

    from chip.decoders import hub

    died = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    monkeypatch.setattr(socket, "create_connection", lambda *_: None)
    for name in ("HF_HUB_OFFLINE", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    hub.answers.cache_clear()
    try:
        assert hub.answers("https://nowhere.invalid") is False
    finally:
        hub.answers.cache_clear()
    assert not died
