"""Processes that answer for the server: the same answers as its own, and none is lost when one of them dies."""

import json
import subprocess
import sys
import textwrap

GRID = {"model": "qwen2.5-0.5b", "gpu": ["h200", "h100", "l4", "t4", "a100"], "batch": [1, 8, 64], "tp": [1, 2]}
RANKING = {
    "model": "qwen2.5-0.5b", "gpu": ["h200", "h100", "l4", "t4", "a100"], "tp": [1, 2, 4, 8], "batch": "largest",
    "prune": True, "limits": {"tpot_ms": 20}, "dtype": ["auto", "fp8"],
}  # fmt: skip
SETTING = """
    import json, os, signal, sys
    from chip.show.serve import api
    from chip.show.serve.crew import Crew, Gone
    crew = Crew(3, 60.0)
    def asked(path, question):
        found = crew.answer(path, question if isinstance(question, bytes) else json.dumps(question).encode())
        return found.status, json.loads(found.body)
"""


def run(code, *given):
    """In a process without threads: a fork of this one would have locks that nobody opens."""
    script = textwrap.dedent(SETTING) + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", script, *given], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def test_the_answers_are_those_of_one_process():
    questions = [
        ("/api/predict", {"model": "gpt2", "gpu": "h200"}),
        ("/api/sweep", GRID),
        ("/api/sweep", {**GRID, "gpu": "h200", "batch": list(range(1, 20))}),
        ("/api/rank", RANKING),
        ("/api/rank", {**RANKING, "by": "cost", "prices": {"h200": 3.5, "l4": 0.6}}),
        ("/api/rank", {**RANKING, "gpu": "h200"}),
    ]
    code = """
        found = []
        for path, question in json.loads(sys.argv[1]):
            status, answer = asked(path, question)
            found.append([status, answer == json.loads(api.ASKED[path](question)), len(answer.get("rows", []))])
        print(json.dumps(found))
    """
    found = run(code, json.dumps(questions))
    assert [one[:2] for one in found] == [[200, True]] * len(questions)
    assert [rows for _, _, rows in found[:3]] == [0, 30, 38]
    assert min(rows for _, _, rows in found[3:]) > 1


def test_what_is_wrong_is_said_as_by_one_process():
    code = """
        found = [asked(path, question) for path, question in (
            ("/api/predict", b"{"), ("/api/predict", {"model": "nosuch"}), ("/api/sweep", [1]),
            ("/api/rank", {**json.loads(sys.argv[1]), "by": "luck"}),
            ("/api/rank", {**json.loads(sys.argv[1]), "limits": 3}),
            ("/api/sweep", {"model": "gpt2", "gpu": ["h200", "nosuch"], "batch": list(range(1, 20))}),
        )]
        print(json.dumps(found))
    """
    broken, unknown, no_object, by, limits, row = run(code, json.dumps(RANKING))
    assert broken == [400, {"error": "the body is not JSON"}]
    assert [unknown[0], no_object[0], by[0], limits[0]] == [422] * 4
    assert "nosuch" in unknown[1]["error"]
    assert by[1]["error"].startswith("by must be one of")
    assert row[0] == 200
    assert sum("error" in r for r in row[1]["rows"]) == 19


def test_one_that_dies_is_replaced_by_the_others_and_by_the_server():
    code = """
        grid, found = json.loads(sys.argv[1]), []
        for member in crew._members:
            os.kill(member.fork.pid, signal.SIGKILL)
            os.waitpid(member.fork.pid, 0)
            try:
                found.append([len(asked("/api/sweep", grid)[1]["rows"]), asked("/api/predict", {"model": "gpt2"})[0]])
            except Gone:
                found.append("gone")
        print(json.dumps(found))
    """
    assert run(code, json.dumps(GRID)) == [[30, 200], [30, 200], "gone"]


def test_what_takes_too_long_is_stopped_and_the_next_is_answered():
    code = """
        question = {"op": "add", "gpu": "h200", "rows": 1, "cols": 64}
        api.ASKED["/api/estimate"](question)  # so that a fork has read what it needs, however busy the machine is
        crew = Crew(1, 2.0)
        grid = {"model": "deepseek-v3", "gpu": ["h100", "l4"], "prompt": 100_000, "batch": list(range(1, 900))}
        found = [asked("/api/estimate", question), asked("/api/sweep", grid), asked("/api/estimate", question)]
        print(json.dumps([found[0][0], found[1], found[2][0]]))
    """
    before, (status, told), after = run(code)
    assert (status, told["error"]) == (503, "stopped after 2 s; ask for something smaller")
    assert (before, after) == (200, 200)


def test_an_expected_ranking_is_worked_out_while_nobody_asks():
    code = """
        import time
        from chip.forked import Forked
        from chip.show.serve import planning
        ranking, done = json.loads(sys.argv[1]), []
        fork = Forked(lambda message: str(len(done)).encode(), idle=(done.append(i) for i in range(5)))
        for _ in range(3):  # soon after one another
            fork.ask(b"how many?")
            assert fork.told() == b"0"
        while fork.ask(b"how many?") or fork.told() != b"5":
            time.sleep(1.1)
        fails = Forked(lambda message: message, idle=(1 / i for i in range(5)))
        for _ in range(2):
            fails.ask(b"still there?")
            assert fails.told() == b"still there?"
        crew = Crew(2, 60.0, expected=ranking)
        while (found := asked("/api/plan", ranking))[1]["pending"]:
            time.sleep(1.1)
        planning.MOMENT_S = 60.0
        print(json.dumps([found[0], found[1] == json.loads(api.ASKED["/api/plan"](ranking))]))
    """
    plan = {"model": "llama-3.2-1b", "gpu": ["l4", "t4"], "prompt": 512, "output": 32, "requests": 100}
    assert run(code, json.dumps({**plan, "limits": {"ttft_ms": 300, "tpot_ms": 20}})) == [200, True]
