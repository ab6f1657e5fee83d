"""A machine that others use is told from one that is idle, in the first line of what `chip bench` shows."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from chip.files import runs
from chip.lab.measure import disturbance
from chip.lab.measure.disturbance import Reading
from chip.show.cli import bench_text
from chip.types import DISTURBED, Scenario

IDLE = Reading(0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (Reading(10, 10, 30, 0, 10), ""),
        (Reading(10, 25, 15, 0, 10), ""),  # others had 1.5 of 4 CPUs, and as many were left
        (Reading(10, 39, 1, 0, 10), "other processes used 2.9 of 4 CPUs"),
        (Reading(10, 10, 26, 4, 10), "the hypervisor kept 10% of the CPUs' time"),
    ],
)
def test_others_are_seen(after, says):
    found = disturbance.flags(IDLE, after, (100, 101))
    assert (says in found[0]) if says else not found


def test_repeats_that_differ_are_said():
    assert disturbance.flags(None, None, (100, 101, 140)) == ("disturbed: repeats differ by 40%",)
    assert disturbance.flags(None, None, (100,)) == ()


def looks(monkeypatch, *readings, queue=0):
    left = list(readings)
    monkeypatch.setattr(disturbance, "read", lambda: left.pop(0) if len(left) > 1 else left[0])
    monkeypatch.setattr(disturbance, "runnable", lambda: queue)
    monkeypatch.setattr(disturbance, "LOOK_S", 0.0)


def test_what_keeps_a_machine_busy_is_said_at_once(monkeypatch):
    busy = Reading(10, 39, 1, 4, 10)
    looks(monkeypatch, IDLE, busy, queue=7)
    assert disturbance.busy() == (
        "disturbed: other processes use 2.9 of 4 CPUs; 7 processes want to run on 4 CPUs; "
        "the hypervisor keeps 9% of the CPUs' time"
    )
    looks(monkeypatch, IDLE, Reading(10, 25, 15, 0, 10))
    assert disturbance.busy(host_of_gpu=True) == "", "a CPU is left for the GPU's host"
    looks(monkeypatch, IDLE, busy)
    assert disturbance.busy(host_of_gpu=True)


def test_an_idle_machine_is_waited_for(monkeypatch):
    busy, lines = Reading(10, 39, 1, 0, 10), []
    looks(monkeypatch, IDLE, busy, busy, Reading(20, 39, 41, 0, 10))
    monkeypatch.setattr(disturbance, "WAIT_S", 0.0)
    disturbance.wait(60, False, lines.append)
    assert lines == ["waiting: other processes use 2.9 of 4 CPUs"]
    looks(monkeypatch, IDLE, Reading(10, 39, 1, 0, 10))
    disturbance.wait(-1, False, lines.append)  # no time left
    assert len(lines) == 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux")
def test_a_process_beside_us_is_measured_as_others_time():
    """Real readings: our own work does not count as others', that of a process beside us does."""
    import os
    import time

    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        before = after = disturbance.read()
        assert before is not None
        last = time.monotonic() + 60
        while (after is None or after.busy_s - before.busy_s < 0.5) and time.monotonic() < last:
            time.sleep(0.1)
            after = disturbance.read()
    finally:
        for p in busy:
            p.kill()
            p.wait()
    assert after is not None
    assert any("other processes used" in f for f in disturbance.flags(before, after, ()))


def test_the_first_line_says_so():
    flag = f"{DISTURBED}repeats differ by 40%"
    run = runs.Run(
        "tiny", "hf-eager", "", Scenario(1, 8, 3), "ok",
        ttft_ns=(9, 11), step_ns=((2, 4), (3, 5)), e2e_ns=(15, 19), flags=(flag,),
    )  # fmt: skip
    assert bench_text.render([run]).startswith("DISTURBED: repeats differ by 40% (1 of 1 points)")
    assert "DISTURBED" not in bench_text.render([replace(run, flags=())])
    assert bench_text.document([run], "f")["runs"][0]["disturbed"] == ["repeats differ by 40%"]
