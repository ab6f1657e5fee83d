"""What an output may replace: results of the same kind, never an input, a device, a FIFO or somebody else's file."""

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

from chip.files import artifact, measurements, output, runs
from chip.show import cli
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


@pytest.mark.parametrize("held", ['{"schema": "chip.other/1"}', '{"hidden_size": 8}', "notes", "{", "\0\1"])
def test_another_kind_of_file_is_kept(tmp_path, held):
    path = tmp_path / "it.json"
    path.write_text(held)
    what = "a chip.other file" if "chip" in held else "not a file that chip wrote"
    would = f"{path}: is {what}, and chip.thing would replace it; choose another file, or remove this one"
    if held != "{":  # which a kill may have left of ours
        assert refusal(artifact.write, path, artifact.new(SCHEMA, 1, {})) == would
        assert refusal(artifact.append, path, {}, SCHEMA) == would
    assert "a log of chip's would replace it" in refusal(output.write, path, "x", output.LOG)
    assert path.read_text() == held


def test_an_input_is_never_replaced_by_any_name(tmp_path):
    path = tmp_path / "it.json"
    artifact.write(path, artifact.new(SCHEMA, 1, {}))
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for name in ("it.json", "link", "hard", "../" + tmp_path.name + "/it.json"):
        line = refusal(output.check_all, [(tmp_path / name, SCHEMA)], [path])
        assert "is an input of this command" in line


def test_two_outputs_of_one_name_are_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "it.json")
    for name in ("it.json", "link", "../" + tmp_path.name + "/it.json"):
        both = [(tmp_path / "it.json", SCHEMA), (tmp_path / name, SCHEMA)]
        assert "two outputs of this command would be written there" in refusal(output.check_all, both, [])
    assert "two outputs" in refusal(output.check_all, [(Path("-"), SCHEMA), (Path("/dev/stdout"), SCHEMA)], [])
    output.check_all([(Path("/dev/null"), SCHEMA), (Path("/dev/null"), SCHEMA), (None, SCHEMA)], [])


def test_a_symbolic_link_is_followed_and_stays(tmp_path):
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "far" / "it.json")
    artifact.write(link, artifact.new(SCHEMA, 1, {}))
    assert link.is_symlink()
    assert artifact.read(tmp_path / "far" / "it.json", SCHEMA).data == 1
    artifact.append(tmp_path / "far" / "it.jsonl", {"schema": SCHEMA}, SCHEMA)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "far" / "it.jsonl")
    artifact.append(tmp_path / "link.jsonl", {"n": 2}, SCHEMA)
    assert artifact.read_lines(tmp_path / "far" / "it.jsonl") == [{"schema": SCHEMA}, {"n": 2}]


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
        lambda: artifact.write(fifo, artifact.new(SCHEMA, 1, {})),
        lambda: output.write(fifo, "x", output.ANY),
        lambda: artifact.append(fifo, {}, SCHEMA),
        lambda: output.check(fifo, SCHEMA),
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
    assert "is not a plain file" in refusal(output.write, node, "x", output.ANY)
    assert node.is_char_device()


def test_streams_are_written_through(capsys):
    output.write(Path("-"), "one\n", SCHEMA)
    output.write(Path("/dev/stdout"), "two\n", SCHEMA)
    output.write(Path("/dev/stderr"), "three\n", SCHEMA)
    output.write(Path("/dev/null"), "four\n", SCHEMA)
    assert capsys.readouterr() == ("one\ntwo\n", "three\n")
    assert Path("/dev/null").is_char_device()
    assert "lines are added to a file" in refusal(artifact.append, Path("-"), {}, SCHEMA)


def test_lines_are_not_appended_to_a_file_of_another_kind(tmp_path):
    """A last line without newline is cut by an append: of somebody else's file that would be the whole file."""
    path = tmp_path / "config.json"
    path.write_text('{"hidden_size": 8}')
    assert "and chip.measurement would replace it" in refusal(measurements.start, path, "it", {})
    assert path.read_text() == '{"hidden_size": 8}'
    path.write_text('{"schema":"chip.meas')  # our own header, cut by a kill
    assert measurements.start(path, "it", {}) == []
    assert measurements.read(path)[0]["device"] == "it"


def test_names_that_no_file_can_have(tmp_path):
    assert "no file can have this name" in refusal(output.write, tmp_path / "a\0b", "x", output.ANY)
    assert "cannot be written" in refusal(output.write, tmp_path / ("x" * 300), "x", output.ANY)
    assert "cannot be written" in refusal(artifact.append, tmp_path / ("x" * 300), {}, SCHEMA)
    output.write(tmp_path / ("x" * 255), "x", output.ANY)  # the longest there is


# -- every output of every command -------------------------------------------------------------------------------------
# What takes text and is no output: an option of a new name has to be put here, or be of the type `output.path`
READ = {
    "against", "allow_host", "answer_as", "arch", "axes", "backend", "batch", "cache", "call", "context", "device",
    "dtype", "energy_probe", "engine", "engine_profile", "engine_setting", "engine_version", "ep", "explorer",
    "fail_over", "files", "first", "gpu", "host", "impl", "kernels", "kv_dtype", "kv_link", "leave_one_model_out",
    "measurements", "model", "models", "more", "name", "only", "op", "output", "package", "peers", "points", "pp",
    "price", "profile", "prompt", "prompt_text", "python", "rate", "ray", "replay", "requests", "results", "router",
    "runs", "sampling", "sdpa", "second", "shape", "shell", "skip", "slo", "speculative", "split", "suite", "system",
    "tier", "title", "token", "tp", "trace", "variant", "what", "words", "workload",
}  # fmt: skip


def kind_of(option):
    """Of one value, where an option takes several with commas."""
    return getattr(option.type, "kind", option.type)


def options(name):
    """(outputs, what takes text beside) of a command."""
    actions = [a for a in cli.parser(name)._actions if a.nargs != 0]
    written = [a for a in actions if a.type is output.path]
    return written, [a for a in actions if a not in written and not a.choices and kind_of(a) not in (int, float)]


def needed(name, text="x"):
    """Words without which a command does not parse, or has no output."""
    out = []
    for a in cli.parser(name)._actions:
        if a.required:
            value = a.choices[0] if a.choices else "1" if kind_of(a) in (int, float) else str(text)
            out += [a.option_strings[-1], value] if a.option_strings else [value]
    return [*out, str(text)] if name == "explain" else out  # with a replay: of a trace alone nothing is written


def word(option, path):
    return [option.option_strings[-1], str(path)] if option.option_strings else [str(path)]


def name_of(option):
    return "it.svg" if "plot" in option.dest else "it.json"


OUTPUTS = [(name, option) for name in cli.commands() for option in options(name)[0]]


def test_every_option_that_takes_text_is_an_output_or_known_to_be_read():
    for name in cli.commands():
        for option in options(name)[1]:
            assert option.dest in READ, f"chip {name} {option.option_strings}: not `output.path`, not in READ"
    assert len(OUTPUTS) >= 24


def test_every_output_is_checked_before_the_work(tmp_path):
    for name, option in OUTPUTS:
        path = tmp_path / name_of(option)
        args = cli.parser(name).parse_args([*needed(name), *word(option, path)])
        files = [file for file, _ in cli.command(name).outputs(args) if file]
        assert path in files, f"chip {name} {option.option_strings[-1]}: not among its `outputs`"


@pytest.mark.parametrize(("name", "option"), OUTPUTS, ids=lambda x: getattr(x, "dest", x))
def test_no_output_replaces_what_is_not_its_own(name, option, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name_of(option)

    def refused(*words, text="x"):
        code, told = run([name, *needed(name, text), *words], capsys)
        assert code == 2, told
        assert told.count("\n") == 1, told
        return told

    path.write_text("mine")
    assert str(path) in refused(*word(option, path))
    assert path.read_text() == "mine"
    os.mkfifo(tmp_path / f"fifo{path.suffix}")
    assert "is not a" in refused(*word(option, tmp_path / f"fifo{path.suffix}"))
    device = "a plot is written as" if path.suffix == ".svg" else "is not a"
    assert device in refused(*word(option, "/dev/full"))
    is_folder = option.metavar in ("FOLDER", "DIR")
    if not is_folder:
        (tmp_path / f"folder{path.suffix}").mkdir()
        assert "is a folder" in refused(*word(option, tmp_path / f"folder{path.suffix}"))
        path.write_text("")  # which it might replace
        read = next((a for a in options(name)[1] if a.option_strings and not a.required), None)
        words = [*word(option, path), *(word(read, path) if read else [])]
        assert "is an input of this command" in refused(*words, text=path)
    for other in options(name)[0]:
        if other.dest != option.dest:
            both = tmp_path / "new.svg"
            assert "two outputs of this command" in refused(*word(option, both), *word(other, both))
            assert not both.exists()


def test_what_a_command_wrote_it_replaces(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    traffic = ["--workload", "poisson:prompt=64,output=8", "--rate", "2", "--requests", "20"]
    for words in (
        ["predict", "gpt2", "--timeline", "step.json"],
        ["predict", "gpt2", "--csv", "rows.csv"],
        ["simulate", "gpt2", *traffic, "--no-intervals", "--requests-out", "all.jsonl", "--timeline", "t.json"],
        ["simulate", "gpt2", *traffic, "--no-intervals", "--plot", "t.svg"],
        ["plan", "gpt2", *traffic, "--no-intervals", "--slo", "tpot_p99=10ms", "--plot", "p.svg"],
    ):
        assert run(words, capsys)[0] == 0
        written = [Path(words[i + 1]) for i, word in enumerate(words) if word in WRITTEN]
        made = [path.stat().st_ino for path in written]
        code, told = run(words, capsys)
        assert code == 0, told
        assert all(path.stat().st_ino != before for path, before in zip(written, made))


WRITTEN = ("--timeline", "--csv", "--requests-out", "--plot")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_picture_is_signed(suffix, tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    from chip.show.report import figure_file

    path = tmp_path / f"it{suffix}"
    Figure().savefig(path)
    before = path.read_bytes()
    assert "and a picture would replace it" in refusal(figure_file.save, path, Figure)
    assert path.read_bytes() == before
    path.unlink()
    for _ in range(2):
        figure_file.save(path, Figure)


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
    assert "is a chip.runs file" in told
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
        "import sys, time; from pathlib import Path; from chip.files import output\n"
        "with output.locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(artifact.__file__).parents[2])}
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
                output.write(path, json.dumps(held + 1), output.ANY)
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
