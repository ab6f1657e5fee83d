"""Work over processes: the order is kept, a worker that dies loses nothing, and the answer is that of one process."""

import io
import json
import os

import pytest
from pool_work import always_die, die_once, refuse, square

from chip.question import DEFAULTS
from chip.show.cli import main
from chip.simulator import sweep
from chip.simulator.jobs import Pool, pool_of, spread_out
from chip.simulator.simulation import simulate
from chip.types import ChipError


def test_the_order_is_kept_and_progress_is_told():
    told = []
    assert spread_out(square, range(7), Pool(2, tell=lambda done, total: told.append((done, total)))) == [
        x * x for x in range(7)
    ]
    assert told == [(i, 7) for i in range(1, 8)]


def test_work_of_a_dead_worker_is_done_again(tmp_path, capsys):
    tasks = [(str(tmp_path), x) for x in range(6)]
    assert spread_out(die_once, tasks, Pool(2)) == [0, 10, 20, 30, 40, 50]
    assert (tmp_path / "died").exists()
    assert "a worker died" in capsys.readouterr().err


def test_work_that_always_kills_its_worker_is_given_up():
    with pytest.raises(ChipError, match="workers died 3 times"):
        spread_out(always_die, [1, 2], Pool(2))


def test_an_error_of_the_work_is_the_askers():
    with pytest.raises(ChipError, match="not 1"):
        spread_out(refuse, [1, 2], Pool(2))


def test_two_processes_give_the_bytes_of_one():
    asked = {"workload": "poisson:prompt=100,output=20", "requests": 40, "rate": 5, "draws": 4}
    one, two = (json.dumps(simulate("llama-3.1-8b", pool=p, **asked).json()) for p in (None, Pool(2)))
    assert one == two


def test_a_pool_of_nothing_is_refused():
    assert pool_of(0).jobs == os.cpu_count()
    with pytest.raises(ChipError, match="--jobs must be between"):
        pool_of(-1)


def test_ray_that_is_not_installed_says_how_to_get_it(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ChipError, match=r"pip install '\.\[cluster\]'"):
        spread_out(square, [1, 2], Pool(2, "local"))


def test_a_cluster_that_is_not_there_is_one_line(monkeypatch):
    import sys
    from types import SimpleNamespace

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    with pytest.raises(ChipError, match=r"--ray 127.0.0.1:1: no cluster answers there"):
        spread_out(square, [1, 2], Pool(2, "127.0.0.1:1"))


def test_a_sweep_over_processes_gives_the_lines_of_one(monkeypatch):
    monkeypatch.setattr(sweep, "CHUNK", 100)
    lines = [json.dumps({"model": "llama-3.1-8b", "batch": b, "prompt": 64}) for b in range(1, 320)]
    lines[300] = "nonsense"
    lines[5:5] = ["", "  "]
    given = {**DEFAULTS, "gpu": "h200"}
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip()]
    one, two = (list(sweep.answers(numbered, given, Pool(jobs))) for jobs in (1, 2))
    assert one == two
    assert len(one) == 319
    assert json.loads(one[300]) == {"error": "the line is not JSON", "line": 303}
    assert json.loads(one[10])["batch"] == 11


def test_the_command_spreads_a_sweep(monkeypatch, capsys):
    lines = "".join(json.dumps({"model": "llama-3.1-8b", "batch": b}) + "\n" for b in (1, 2, 3))
    found = []
    for more in ([], ["--jobs", "2"]):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        assert main(["predict", "-", "--gpu", "h200", *more]) == 0
        found.append(capsys.readouterr().out)
    assert found[0] == found[1]
    assert found[0].count("\n") == 3
