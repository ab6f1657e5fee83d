"""Prompts and decodes on GPUs of their own: in simulate and in plan."""

import pytest

import chip
from chip.show import cli
from chip.simulator import disaggregated
from chip.simulator.setup import Fleet, setup
from chip.simulator.simulation import system_of, traffic
from chip.types import ChipError

CLOSED = "closed:users=8,prompt=2048,output=64"
SYSTEM = {"gpu": "h200", "draws": 0, "workload": CLOSED, "requests": 48}


def test_decodes_are_not_held_up_by_prompts():
    together = chip.simulate("llama-3.1-8b", replicas=2, **SYSTEM)
    apart = chip.simulate("llama-3.1-8b", split="1p1d", **SYSTEM)
    alone = chip.predict("llama-3.1-8b", gpu="h200", batch=8, prompt=2048, output=64)
    assert apart.completed == together.completed == 48
    assert apart.tpot_s.p50 < together.tpot_s.p50
    assert apart.tpot_s.p50 == pytest.approx(alone.tpot_s, rel=0.1)
    assert apart.json()["gpus"] == 2
    assert (apart.json()["prefill_workers"], apart.json()["decode_workers"]) == (1, 1)


def test_a_request_of_one_token_never_moves():
    found = chip.simulate("llama-3.1-8b", split="2p1d", **{**SYSTEM, "workload": "closed:users=4,prompt=512,output=1"})
    assert found.completed == 48
    assert found.e2e_s.p50 == pytest.approx(found.ttft_s.p50)


def test_a_slower_link_takes_longer():
    fleet = Fleet(system_of("llama-3.1-8b", {"gpu": "h200"}))
    ib, nvlink = (disaggregated.transfer_s(fleet.question, link, 4096) for link in ("ib", "nvlink"))
    token = 2 * 32 * 8 * 128 * 2  # keys and values of 32 layers, 8 heads of 128, 16 bits
    assert ib == pytest.approx(disaggregated.LATENCY_S + 4096 * token / 50e9, rel=1e-6)
    assert nvlink < ib


def test_a_part_of_a_fleet_answers_as_the_whole():
    fleet = disaggregated.with_split(Fleet(system_of("llama-3.1-8b", {"gpu": "h200"}), 2), "1p1d", "ib")
    took = []
    for users, parts in ((8, 1), (4, 2)):
        w = traffic(f"closed:users={users},prompt=1024,output=64", 24 * users, None, 0)
        done = disaggregated.serve_disaggregated(setup(fleet), fleet, w, parts)
        took.append(sum(end - first for end, first in zip(done.last_s, done.first_s)) / len(w))
    assert took[0] == pytest.approx(took[1], rel=0.15)  # other requests


def test_a_plan_finds_the_split():
    planned = chip.plan(
        "llama-3.1-8b", workload="poisson:prompt=4000,output=200", goals="tpot_p90=12ms,ttft_p90=1s", gpus=["h200"],
        splits=["", "1p1d"], intervals=False, requests=60,
    )  # fmt: skip
    assert planned.choices[0].split == "1p1d"
    assert planned.choices[0].gpus_each == 2
    assert "1p1d of 1" in planned.choices[0].title


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--split", "2p"], "must be like 2p1d"),
        (["--split", "0p1d"], "must be like 2p1d"),
        (["--split", "1p1d", "--kv-link", "wifi"], "must be one of ib, nvlink, pcie"),
        (["--split", "1p1d", "--pp", "2"], "is not simulated"),
    ],
)
def test_wrong_splits_are_refused(words, line, capsys):
    assert cli.main(["simulate", "llama-3.1-8b", "--workload", "closed:users=2", *words]) != 0
    assert line in capsys.readouterr().err


def test_an_unknown_link_is_refused_in_python():
    with pytest.raises(ChipError, match="--kv-link"):
        chip.simulate("llama-3.1-8b", kv_link="rope", **SYSTEM)
