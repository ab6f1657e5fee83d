"""The processes that replay kernels: what breaks or hangs costs itself and a new one."""

import sys
import textwrap

import pytest

pytest.importorskip("torch")

from chip.files import artifact
from chip.files.traces import Kernel, Operator
from chip.lab.measure.replay import pool
from chip.lab.measure.replay.unit import ReplaySettings
from chip.lab.replay import signatures
from chip.types import ChipError

FRAGILE = textwrap.dedent("""
    import json, os, sys, time
    print(json.dumps({"ready": "fake"}), flush=True)
    for line in sys.stdin:
        found = []
        for unit in json.loads(line)["units"]:
            key = unit["members"][0]["key"]
            if key == "crash":
                os.kill(os.getpid(), 11)
            if key == "hang":
                time.sleep(60)
            found.append([{"key": key, "status": "ok", "samples_ns": [5, 6, 7]}])
            if key == "refuse" or (key == "large" and len(found) > 1):
                found[-1] = "no such kernel"
        print(json.dumps({"units": found}), flush=True)
""")


def unit(key):
    kernel = Kernel("k", "kernel")
    return signatures.Unit(3, None, (signatures.Signature(key, kernel, 3, "native", 1, 5.0, 5),))


def replay_all(units, command, journal, header, limit_s=1.0):
    workers = pool.WorkerPool(command, journal.with_suffix(".log"))
    try:
        return pool.replay_units(units, workers, pool.ReplayJournal(journal, header), ReplaySettings(), limit_s)
    finally:
        workers.stop()


def test_a_crash_or_a_hang_costs_one_kernel_and_the_run_resumes(tmp_path, monkeypatch):
    monkeypatch.setattr(pool, "UNITS_PER_REQUEST", 3)
    start, journal = [sys.executable, "-c", FRAGILE], tmp_path / "replay.jsonl"
    units = [unit(k) for k in ("one", "crash", "two", "hang", "refuse", "three", "four", "large")]
    found = {k.key: k for k in replay_all(units, start, journal, {"source": "x"})}
    assert {k: v.status for k, v in found.items()} == {
        "one": "ok", "crash": "failed", "two": "ok", "hang": "failed", "refuse": "failed", "three": "ok",
        "four": "ok", "large": "ok",  # not in company, but alone
    }  # fmt: skip
    assert found["crash"].reason == "its process ended with signal 11"
    assert found["hang"].reason == "did not end within 1 s and was stopped"
    assert found["refuse"].reason == "no such kernel"
    again = replay_all([*units, unit("five")], start, journal, {"source": "x"})
    assert [k.key for k in again] == [*found, "five"]
    assert len(artifact.read_lines(journal)) == 10  # a header and each unit once
    with pytest.raises(ChipError, match="was begun for another replay"):
        replay_all(units, start, journal, {"source": "y"})


def test_a_worker_started_ahead_is_waited_for_when_it_is_needed(tmp_path):
    workers = pool.WorkerPool([sys.executable, "-c", FRAGILE], tmp_path / "there" / "log")
    begun = workers.start()
    assert workers.wait() is begun
    assert workers.ask({"units": []}, 10.0) == {"units": []}
    workers.stop()
    assert begun.process.poll() is not None
    workers.stop()  # once more does nothing
    assert not workers.log.exists()  # nothing was printed


def test_the_sequence_gets_a_process_that_has_not_profiled(tmp_path):
    workers = pool.WorkerPool([sys.executable, "-c", FRAGILE], tmp_path / "log", spare=True)
    first = workers.wait()
    spare = workers.spare
    assert spare is not None
    assert spare in workers.ready  # nothing starts while something is timed
    workers.fresh()
    assert first.process.poll() is not None
    assert workers.wait() is spare
    workers.fresh()  # there is no other spare: a new one
    assert workers.wait() not in (first, spare)
    workers.stop()


def test_a_worker_that_does_not_start_is_one_clear_line(tmp_path):
    with pytest.raises(ChipError, match="the replay worker did not start: its process ended with code 3"):
        replay_all([unit("a")], [sys.executable, "-c", "exit(3)"], tmp_path / "j", {})


def test_a_worker_that_lost_its_device_is_replaced(tmp_path, monkeypatch):
    """The unit that broke it has its reason; the next one finds a new worker."""
    monkeypatch.setattr(pool, "UNITS_PER_REQUEST", 1)
    fake = tmp_path / "worker.py"
    fake.write_text(
        "import json, sys\n"
        "print(json.dumps({'ready': 'fake'}), flush=True)\n"
        "for line in sys.stdin:\n"
        "    broken = json.loads(line)['units'][0]['tier'] == 2\n"
        "    print(json.dumps({'error': 'the device is lost'} if broken else {'units': [[]]}), flush=True)\n"
        "    if broken: break\n"
    )
    operator = Operator("aten::relu", "", (), (), {})
    kernel = Kernel("k", "kernel", operator=0)
    units = [
        signatures.Unit(tier, operator, (signatures.Signature(f"k{i}", kernel, tier, "native", 1, 1.0, 1),), 0.5)
        for i, tier in enumerate((3, 2, 3, 2))
    ]
    found = replay_all(units, [sys.executable, str(fake)], tmp_path / "journal.jsonl", {}, 20.0)
    assert [r.reason for r in found] == ["the device is lost"] * 2
