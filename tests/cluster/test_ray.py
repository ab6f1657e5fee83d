"""A real local Ray cluster of two workers, one of them killed in the middle. Not part of `make test`: set
CHIP_CLUSTER=1 in an environment that has Ray. The record of the last run is results/cpu/ray.json."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("ray")

import ray

from chip.simulator.jobs import Pool, spread_out
from chip.simulator.plan import plan
from chip.types import ChipError

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(not os.environ.get("CHIP_CLUSTER"), reason="starts a cluster: set CHIP_CLUSTER=1"),
]
RECORD = Path(__file__).parents[2] / "results" / "cpu" / "ray.json"
ASKED = {
    "workload": "poisson:prompt=300,output=60",
    "rate": 60.0,
    "goals": "ttft_p99=300ms,tpot_p99=30ms",
    "requests": 150,
    "gpus": ["h200", "l40s"],
    "tps": [1, 2],
    "intervals": False,
}


@pytest.fixture(autouse=True)
def _workers_find_this_file(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))


def slow_square(task):
    folder, x = task
    Path(folder, f"{x}.{os.getpid()}").write_text("")
    time.sleep(0.3)
    return x * x


def die_once(task):
    folder, x = task
    mark = Path(folder, "died")
    Path(folder, f"{x}.{os.getpid()}").write_text("")
    time.sleep(0.2)
    if x == 3 and not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return x * 10


def refuse(x):
    raise ChipError(f"not {x}")


def test_two_workers_share_the_work_and_the_order_is_kept(tmp_path):
    told = []
    pool = Pool(2, "local", lambda done, total: told.append((done, total)))
    began = time.monotonic()
    assert spread_out(slow_square, [(str(tmp_path), x) for x in range(8)], pool) == [x * x for x in range(8)]
    took_s = time.monotonic() - began
    assert len({p.suffix for p in tmp_path.iterdir()}) >= 2
    assert told[-1] == (8, 8)
    _record("two workers, eight tasks of 0.3 s", {"seconds_with_start": round(took_s, 2), "tasks": 8})


def test_work_of_a_worker_that_was_killed_is_done_again(tmp_path):
    tasks = [(str(tmp_path), x) for x in range(8)]
    assert spread_out(die_once, tasks, Pool(2, "local")) == [10 * x for x in range(8)]
    dead = (tmp_path / "died").read_text()
    tries = [p.suffix[1:] for p in tmp_path.glob("3.*")]
    assert dead in tries
    assert len(tries) == 2  # by another process
    _record("one of two workers killed in the middle", {"tasks": 8, "lost": 0, "done_again": 1})


def test_a_plan_over_the_cluster_gives_the_bytes_of_one_core():
    one = json.dumps(plan("llama-3.1-8b", **ASKED).json())
    began = time.monotonic()
    cluster = json.dumps(plan("llama-3.1-8b", pool=Pool(2, "local"), **ASKED).json())
    assert cluster == one
    _record("plan of four choices, the same bytes", {"seconds_with_start": round(time.monotonic() - began, 2)})


def test_errors_come_back_as_they_are():
    with pytest.raises(ChipError, match="not 1"):
        spread_out(refuse, [1, 2, 3], Pool(2, "local"))


def _record(what, found):
    held = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    about = {"date": time.strftime("%Y-%m-%d"), "ray": ray.__version__, "cores": os.cpu_count()}
    held[what] = {**about, **found}
    RECORD.write_text(json.dumps(held, indent=1) + "\n")
