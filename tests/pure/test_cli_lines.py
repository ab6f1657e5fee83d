"""`chip predict -` and `chip estimate -`: a question a line, an answer a line."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import chip


def test_lines_are_answered_in_order_and_errors_in_their_place(run):
    asked = [
        '{"model": "gpt2", "gpu": "a100", "batch": 1}',
        '{"model": "nosuch-model-at-all", "gpu": "a100"}',
        "not json",
        "[1, 2]",
        "",
        '{"model": "gpt2", "gpu": "a100", "bacth": 2}',
        '{"model": ["gpt2"], "gpu": "a100"}',
        '{"model": "gpt2", "gpu": "a100", "batch": 0}',
        '{"model": "gpt2", "gpu": "a100", "batch": 3}',
    ]
    code, out, err = run("predict", "-", stdin="\n".join(asked))
    assert code == 1
    assert err == "chip: 6 lines could not be answered\n"
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(a.get("line"), a.get("batch")) for a in answers] == [
        (None, 1), (2, None), (3, None), (4, None), (6, None), (7, None), (8, None), (None, 3),
    ]  # fmt: skip
    told = [a["error"] for a in answers if "error" in a]
    assert told[0].startswith("no model 'nosuch-model-at-all'; ")
    assert told[1:] == [
        "the line is not JSON",
        "a scenario is a JSON object, got list",
        "unknown key 'bacth'; did you mean 'batch'?",
        "model must be text, got \"['gpt2']\"",
        "batch must be between 1 and 1000000, got 0",
    ]


def test_lines_without_errors(run):
    code, out, err = run("predict", "-", stdin='{"model": "gpt2"}\n{"model": "opt-125m"}\n')
    assert (code, err) == (0, "")
    assert [json.loads(line)["model"] for line in out.splitlines()] == ["gpt2", "opt-125m"]
    assert run("predict", "-", stdin="") == (0, "", "")


def test_options_stand_in_for_what_a_line_leaves_out(run):
    lines = '{"model": "gpt2"}\n{"model": "gpt2", "gpu": "l4", "batch": 2}\n'
    _, out, _ = run("predict", "-", "--gpu", "a100", "--batch", "7", stdin=lines)
    assert [(a["gpu"], a["batch"]) for a in map(json.loads, out.splitlines())] == [("a100", 7), ("l4", 2)]
    _, out, _ = run("estimate", "-", "--gpu", "a100", stdin='{"op": "add", "rows": 1, "cols": 1}\n')
    assert json.loads(out)["gpu"] == "a100"


def test_a_line_answers_as_the_command_does(run):
    _, line, _ = run("predict", "-", stdin='{"model": "gpt2", "gpu": "a100", "engine": "hf-graph", "dtype": "fp16"}\n')
    _, document, _ = run("predict", "gpt2", "--gpu", "a100", "--engine", "hf-graph", "--dtype", "fp16", "--json")
    whole = json.loads(document)
    assert whole.pop("nearest_validated") == []  # which would cost a sweep more than it says
    assert json.loads(line) == whole


def test_estimate_lines(run):
    asked = [
        '{"op": "linear", "gpu": "a100", "dtype": "bf16", "m": 8, "n": 4096, "k": 4096}',
        '{"op": "linear", "m": 8, "n": 4096}',
        '{"gpu": "a100"}',
        "[]",
        '{"op": "add", "gpu": ["a100"], "rows": 1, "cols": 1}',
    ]
    code, out, err = run("estimate", "-", stdin="\n".join(asked))
    assert code == 1
    assert err == "chip: 4 lines could not be answered\n"
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["flops"] == 2 * 8 * 4096 * 4096
    assert [a["error"] for a in answers[1:]] == [
        "linear needs axis 'k'; its axes are m, n, k, dtype, weight_dtype, bias",
        "key 'op' is missing",
        "an operator is a JSON object, got list",
        "gpu must be a name such as h200, or a file, got \"['a100']\"",
    ]


def test_hostile_lines(run):
    lines = ["[" * 100_000, '{"model": "' + "x" * 2_000_000 + '"}', '{"batch": ' + "9" * 10_000 + "}", '"\\ud800"']
    lines += ['{"model": "gpt2", "gpu": "\\u0000.json"}', '{"model": "' + "y" * 5000 + '"}']
    code, out, _ = run("predict", "-", stdin="\n".join(lines))
    assert code == 1
    told = [json.loads(line)["error"] for line in out.splitlines()]
    assert told[0] == "the line is not JSON"
    assert told[1] == "the line is longer than 1000000 characters"
    assert len(told) == len(lines)
    assert all(len(t) < 400 for t in told)


def start(*words, stdin=subprocess.PIPE):
    env = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "chip", *words], stdin=stdin, stdout=pipe, stderr=pipe, env=env)


@pytest.mark.parametrize("command", ["predict", "estimate"])
def test_each_line_is_answered_before_the_next_is_asked(command):
    """Errors are the shortest lines: they would stay in a buffer the longest."""
    with start(command, "-") as p:
        timer = threading.Timer(120, p.kill)  # a line kept back fails, it does not hang
        timer.start()
        for number in (1, 2):
            p.stdin.write(b"[]\n")
            p.stdin.flush()
            assert json.loads(p.stdout.readline() or "{}").get("line") == number
        out, err = p.communicate(b'{"model": "gpt2", "\xff": 1}\n')  # not UTF-8: an error of its line
        timer.cancel()
        assert "error" in json.loads(out)
        assert (p.returncode, err) == (1, b"chip: 3 lines could not be answered\n")


@pytest.mark.parametrize("words", [["list", "models"], ["--help"], ["predict", "--help"]], ids=" ".join)
def test_a_reader_that_had_enough_is_no_error(words):
    with start(*words) as p:
        p.stdout.close()
        assert p.wait(60) == 0
        assert p.stderr.read() == b""


def many(count=600):
    models = ("gpt2", "tinyllama-1.1b", "llama-3.2-1b")
    lines = [json.dumps({"model": models[i % 3], "prompt": 16 + i, "output": 4}) for i in range(count)]
    lines[7], lines[300:300] = "nonsense", ["", '{"model": "nobody"}']
    return "\n".join(lines)


def test_several_processes_write_what_one_writes(tmp_path):
    (tmp_path / "lines").write_text(many())
    found = []
    for jobs in ("1", "3"):
        with open(tmp_path / "lines", "rb") as file, start("predict", "-", "--jobs", jobs, stdin=file) as p:
            found.append((*p.communicate(), p.returncode))
    assert found[0] == found[1]
    out, err, code = found[0]
    assert (code, err) == (1, b"chip: 2 lines could not be answered\n")
    answers = [json.loads(line) for line in out.splitlines()]
    assert [a["line"] for a in answers if "error" in a] == [8, 302]
    assert [a["prompt"] for a in answers if "error" not in a] == [16 + i for i in range(600) if i != 7]


def test_lines_of_a_process_that_died_are_answered_by_another():
    """Each fork dies of the first b it is asked."""
    code = """if True:
        import os
        from chip.show.cli.forks import Forks
        parent = os.getpid()
        def answer(line):
            if line[1] == "b" and os.getpid() != parent:
                os.kill(os.getpid(), 9)
            return f"{line[0]} {line[1]} {os.getpid() == parent}"
        forks = Forks(3, answer, lambda line: line[1])
        for lines in [(i, "abc"[i % 3]) for i in range(300)], [(i, "abc"[i % 3]) for i in range(9)], [(1, "b")]:
            found = [x.split() for x in forks.answers(lines)]
            print([(int(n), x) for n, x, _ in found] == lines, {own for _, x, own in found if x == "b"})
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout.splitlines() == ["True {'True'}"] * 3, out.stderr


def test_a_process_that_is_done_takes_lines_of_another():
    """All lines are alike but for the parent's, which take long."""
    code = """if True:
        import os, time
        from chip.show.cli.forks import Forks
        parent = os.getpid()
        def answer(line):
            if os.getpid() == parent:
                time.sleep(0.02)
            return str(os.getpid() == parent)
        forks = Forks(2, answer, lambda line: line[1])
        print(forks.answers([(i, "a") for i in range(400)]).count("True") < 150)
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout == "True\n", out.stderr


def test_a_fork_ends_whose_answer_nobody_reads():
    """The answer is larger than a pipe holds. Whoever waits for the end of the output waits for the fork, too."""
    code = """if True:
        import os
        from chip.forked import Forked
        Forked(lambda message: b"x" * 1_000_000).ask(b"?")
        print("died", flush=True)
        os._exit(0)
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert out.stdout == "died\n"
