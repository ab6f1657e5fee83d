"""What `-o` may replace: results of the same kind, never an input, a device, a FIFO or somebody else's file."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from samples import a_run, write_runs

from chip import artifact, cli, measurements, output, runs
from chip.types import ChipError

SCHEMA = "chip.thing/1"


def refusal(call, *args, **options):
    with pytest.raises(ChipError) as told:
        call(*args, **options)
    assert "\n" not in str(told.value)
    return str(told.value)


def test_an_older_result_and_an_empty_file_are_replaced(tmp_path):
    path = tmp_path / "it.json"
    path.write_text("")
    artifact.write(path, artifact.new("chip.thing/1", 1, {}))
    artifact.write(path, artifact.new("chip.thing/2", 2, {}))
    assert artifact.read(path, "chip.thing/2").data == 2


@pytest.mark.parametrize("held", ['{"schema": "chip.other/1"}', '{"hidden_size": 8}', "notes", "\0\1"])
def test_another_kind_of_file_is_kept_unless_forced(tmp_path, held):
    path = tmp_path / "it.json"
    path.write_text(held)
    line = refusal(artifact.write, path, artifact.new(SCHEMA, 1, {}))
    assert "choose another file, or --force" in line
    assert path.read_text() == held
    artifact.write(path, artifact.new(SCHEMA, 1, {}), force=True)
    assert artifact.read(path, SCHEMA).data == 1


def test_an_input_is_never_replaced_by_any_name(tmp_path):
    path = tmp_path / "it.json"
    artifact.write(path, artifact.new(SCHEMA, 1, {}))
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for name in ("it.json", "link", "hard", "../" + tmp_path.name + "/it.json"):
        line = refusal(output.check, tmp_path / name, SCHEMA, [path], force=True)
        assert "is an input of this command" in line


def test_a_symbolic_link_is_followed_and_stays(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "far" / "it.json")
    artifact.write(link, artifact.new(SCHEMA, 1, {}))
    assert link.is_symlink()
    assert artifact.read(tmp_path / "far" / "it.json", SCHEMA).data == 1
    artifact.append(tmp_path / "far" / "it.jsonl", {"n": 1})
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "far" / "it.jsonl")
    artifact.append(tmp_path / "link.jsonl", {"n": 2})
    assert artifact.read_lines(tmp_path / "far" / "it.jsonl") == [{"n": 1}, {"n": 2}]


def test_the_mode_of_a_replaced_file_stays(tmp_path):
    path = tmp_path / "it.json"
    artifact.write(path, artifact.new(SCHEMA, 1, {}))
    path.chmod(0o600)
    artifact.write(path, artifact.new(SCHEMA, 2, {}))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
def test_what_is_no_plain_file_is_left_alone(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for call in (
        lambda: artifact.write(fifo, artifact.new(SCHEMA, 1, {}), force=True),
        lambda: artifact.write_text(fifo, "x"),
        lambda: artifact.append(fifo, {}),
        lambda: output.check(fifo, SCHEMA, force=True),
        lambda: artifact.read_json(fifo),  # and reading one does not wait for a writer
        lambda: artifact.read_lines(fifo),
    ):
        assert "plain file" in refusal(call)
    assert not fifo.is_file()
    assert fifo.exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_survives(tmp_path):
    node = tmp_path / "null"
    try:
        os.mknod(node, 0o600 | 0o020000, os.makedev(1, 3))
    except OSError:
        pytest.skip("this root may not make device nodes")
    assert "is not a plain file" in refusal(artifact.write_text, node, "x")
    assert node.is_char_device()


def test_streams_are_written_through(capsys):
    artifact.write_text(Path("-"), "one\n")
    artifact.write_text(Path("/dev/stdout"), "two\n")
    artifact.write_text(Path("/dev/stderr"), "three\n")
    artifact.write_text(Path("/dev/null"), "four\n")
    assert capsys.readouterr() == ("one\ntwo\n", "three\n")
    assert Path("/dev/null").is_char_device()


def test_lines_are_not_appended_to_a_file_of_another_kind(tmp_path):
    """A last line without newline is cut by an append: of somebody else's file that would be the whole file."""
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 8}')
    assert "is not a chip.measurement file" in refusal(measurements.start, path, "it", {})
    assert path.read_text() == '{"hidden_size": 8}'
    path.write_text('{"schema":"chip.meas')  # our own header, cut by a kill
    assert measurements.start(path, "it", {}) == []
    assert measurements.read(path)[0]["device"] == "it"


def test_names_that_no_file_can_have(tmp_path):
    assert "no file can have this name" in refusal(artifact.write_text, tmp_path / "a\0b", "x")
    assert "cannot be written" in refusal(artifact.write_text, tmp_path / ("x" * 300), "x")
    assert "cannot be written" in refusal(artifact.append, tmp_path / ("x" * 300), {})
    artifact.write_text(tmp_path / ("x" * 255), "x")  # the longest there is


# -- commands ---------------------------------------------------------------------------------------------------------
def run(words, capsys):
    code = cli.main(list(map(str, words)))
    told = capsys.readouterr().err
    assert "Traceback" not in told
    return code, told


@pytest.fixture
def held(tmp_path):
    path = tmp_path / "runs.json"
    write_runs(path, a_run())
    return path


def test_validate_keeps_its_input(held, tmp_path, capsys):
    before = held.read_bytes()
    code, told = run(["validate", held, "-o", held], capsys)
    assert code == 2
    assert "is an input of this command" in told
    code, told = run(["validate", held, "-o", held, "--force"], capsys)
    assert code == 2
    assert held.read_bytes() == before
    code, told = run(["validate", held, "-o", tmp_path], capsys)
    assert code == 2
    assert "is a folder" in told


@pytest.mark.parametrize(
    "words",
    [
        ["capture", "{config}", "--device", "cpu", "-o", "{config}"],
        ["calibrate", "--device", "cpu", "-o", "{runs}"],
        ["calibrate", "--device", "cpu", "-o", "{config}"],
        ["replay", "{config}", "--device", "cpu", "-o", "{config}"],
        ["profile", "add", "n=8", "--device", "cpu", "-o", "{config}"],
        ["bench", "{config}", "--engine", "hf-eager", "--device", "cpu", "-o", "{config}"],
        ["report", "{runs}", "-o", "{page}"],
    ],
    ids=lambda words: words[0],
)
def test_no_command_replaces_an_input_or_a_stranger(words, held, tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "config.json"
    config.write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("mine")
    before = {p: p.read_bytes() for p in (config, held, page / "index.html")}
    code, told = run([w.format(config=config, runs=held, page=page) for w in words], capsys)
    assert code == 2, told
    assert {p: p.read_bytes() for p in before} == before


# -- two writers ------------------------------------------------------------------------------------------------------
def test_a_second_writer_is_refused_and_a_kill_frees_the_file(tmp_path):
    path = tmp_path / "it.json"
    code = (
        "import sys, time; from pathlib import Path; from chip import output\n"
        "with output.locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(artifact.__file__).parents[1])}
    other = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, env=environment)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    try:
        line = refusal(lambda: output.locked(path).__enter__())
        assert line == f"{path}: another process is writing it; wait for it, or choose another -o"
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait()
    with output.locked(path):
        pass
    assert list(tmp_path.iterdir()) == [], "no lock is left behind"


def _count(path, times):
    """Read, add one, write: loses counts unless one writer holds the file at a time."""
    done = 0
    while done < times:
        try:
            with output.locked(path):
                held = json.loads(path.read_text()) if path.exists() else 0
                time.sleep(0.001)
                artifact.write_text(path, json.dumps(held + 1))
                done += 1
        except ChipError:
            time.sleep(0.001)


def test_writers_that_wait_their_turn_lose_nothing(tmp_path):
    path = tmp_path / "count"
    workers = [multiprocessing.get_context("fork").Process(target=_count, args=(path, 25)) for _ in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join(60)
    assert json.loads(path.read_text()) == 100


def test_resume_takes_an_empty_file(tmp_path):
    path = tmp_path / "runs.json"
    path.write_text("")
    assert runs.resume(path, {}).runs == ()
