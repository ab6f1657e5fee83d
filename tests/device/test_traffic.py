"""Real traffic through the real worker over a stand-in for vLLM: every request is answered, kept, and judged."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("torch")

from chip.files import artifact
from chip.lab.measure.device import open_device
from chip.lab.run import Job, names, traffic
from chip.show.cli import main
from chip.simulator import recorded
from chip.simulator.workload import Workload
from chip.types import ChipError

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("stand_in")
CONFIG = {"architectures": ["LlamaForCausalLM"], "vocab_size": 512}


def job(**changes):
    about = {"model": "tiny", "config": CONFIG, "settings": {"max_model_len": "256"}}
    return Job(**{**about, "timeout_s": 60.0, "energy_s": 0.0, **changes})


def requests(gap_s, count=12):
    w = Workload("made-up")
    for i in range(count):
        w.add(i * gap_s, 10 + 7 * i, 3 + i % 4)
    return w


def test_it_is_no_engine_of_its_own():
    assert "traffic" not in names()


def test_every_request_has_its_times(tmp_path):
    file = tmp_path / "traffic.json"
    w = requests(0.01)
    w.add(0.12, 300, 5)  # longer than the context
    said = []
    found = traffic.measure(
        [job()], [(100.0, w), (0.0, requests(0.0))], 0, file, open_device("cpu"), said.append, "vllm"
    )
    assert [r.status for r in found] == ["ok", "ok"], said
    first = found[0]
    assert first.last_s[-1] == -1
    for i in range(12):
        assert first.arrival_s[i] <= first.first_s[i] <= first.last_s[i]
        assert first.output[i] == w.output[i]
    assert first.steps > 20
    assert first.wall_s >= 0.11
    assert 0 < first.host_s["admit"] < 0.1
    assert first.scheduler["max_num_seqs"] == 16
    assert first.scheduler["max_model_len"] == 256
    assert first.scheduler["enable_prefix_caching"] is False
    assert set(found[1].arrival_s) == {0.0}
    _, held = recorded.read(file)
    assert [r.key for r in held.runs] == [r.key for r in found]
    again = traffic.measure([job()], [(100.0, w)], 0, file, open_device("cpu"), said.append, "vllm")
    assert again[0] == first  # not measured anew


def test_a_worker_that_dies_costs_what_is_left_and_keeps_what_was_done(monkeypatch, tmp_path):
    monkeypatch.setenv("STAND_IN", "killed in a step of 7")
    found = traffic.measure(
        [job()],
        [(0.0, requests(0.0, 4)), (0.0, requests(0.0, 7))],
        0,
        tmp_path / "t.json",
        open_device("cpu"),
        print,
        "vllm",
    )
    assert [r.status for r in found] == ["ok", "failed"]
    assert "killed by SIGKILL" in found[1].reason
    assert [r.status for r in recorded.read(tmp_path / "t.json")[1].runs] == ["ok", "failed"]


def through_a_server(tmp_path, w, **changes):
    file = tmp_path / "served.json"
    said = []
    found = traffic.measure([job(**changes)], [(9.0, w)], 0, file, open_device("cpu"), said.append, "vllm", True)
    return found, recorded.read(file)[1].runs, said


def test_a_server_serves_every_request_and_tells_of_itself(tmp_path):
    w = requests(0.01)
    w.add(0.12, 300, 5)  # longer than the context
    found, kept, said = through_a_server(tmp_path, w)
    assert kept == tuple(found)
    (run,) = found
    assert (run.status, run.server, run.users) == ("ok", True, 0), said
    for i in range(12):
        assert run.arrival_s[i] <= run.sent_s[i] < run.first_s[i] <= run.last_s[i]
        assert run.output[i] == w.output[i] == len(run.gap_us[i]) + 1
        assert sum(run.gap_us[i]) * 1e-6 == pytest.approx(run.last_s[i] - run.first_s[i], abs=1e-4)
    assert run.last_s[12] == -1
    assert run.steps == sum(w.output[:12])
    assert set(run.chunk_tokens) == {()}
    assert run.scheduler["max_model_len"] == 256
    assert any(name.startswith("cpu_s.") for name in run.counters), run.counters
    assert list(run.host_s) == ["schedule"], "what the stand-in's core has of it"
    assert 0.0001 < run.host_s["schedule"] < 0.1
    assert run.title == "tiny vllm server max_model_len=256 made-up 9 requests/s"


def test_users_of_a_closed_loop_and_merged_chunks(monkeypatch, tmp_path):
    monkeypatch.setenv("STAND_IN", "merges")
    w = requests(0.0)
    w.users = 2
    (run,), _, said = through_a_server(tmp_path, w)
    assert (run.status, run.users) == ("ok", 2), said
    assert run.output == tuple(w.output)
    assert run.chunk_tokens[0] == (2, 1)
    assert run.traffic().users == 2
    inside = [sum(a <= at < b for a, b in zip(run.arrival_s, run.last_s)) for at in run.arrival_s]
    assert max(inside) == 2


@pytest.mark.parametrize(
    ("how", "says"),
    [("crash in open", "an illegal memory access"), ("killed in an answer of 6", "a request was not answered|SIGKILL")],
)
def test_a_server_that_dies_is_said(how, says, monkeypatch, tmp_path):
    monkeypatch.setenv("STAND_IN", how)
    (run,), kept, _ = through_a_server(tmp_path, requests(0.0))
    assert run.status == kept[0].status == "failed"
    assert re.search(says, run.reason), run.reason


def test_equal_blocks_are_equal_tokens(tmp_path):
    from chip.lab.run import vllm_worker

    server = vllm_worker.EngineServer()

    class Config:
        def get_vocab_size(self):
            return 512

    class Llm:
        class llm_engine:
            class vllm_config:
                model_config = Config()

    server.llm = Llm
    a, b = server.prompt_of(1, 40, [7, 8], 16), server.prompt_of(2, 50, [7, 9], 16)
    assert a[:16] == b[:16]
    assert a[16:32] != b[16:32]
    assert (len(a), len(b)) == (40, 50)


def test_the_command_refuses_what_makes_no_sense(capsys):
    for words, says in (
        (["--engine", "hf-eager", "--workload", "poisson"], "hf-eager serves no live traffic here; vllm can"),
        (["--engine", "vllm", "--rate", "5"], "give --workload too"),
        (["--engine", "vllm", "--workload", "closed:users=2"], "a closed loop of users runs through --server"),
        (["--engine", "vllm", "--workload", "poisson", "--concurrency", "4"], "--concurrency is of --server"),
        (["--engine", "vllm", "--server"], "give --workload too"),
        (["--engine", "vllm", "--workload", "poisson", "--rate", "x"], "--rate 'x': must be"),
        (["--engine", "vllm", "--workload", "poisson", "--prompt-text", "hi"], "does not go with it"),
    ):
        assert main(["bench", "llama-3.1-8b", *words]) == 2
        assert says in capsys.readouterr().err


def test_a_file_of_traffic_with_an_error_says_where(tmp_path):
    file = tmp_path / "t.json"
    run = recorded.TrafficRun(
        "m", "vllm", "bf16", "w", 1.0, 0, "ok", "", (0.0,), (5,), (2,), (0.5,), (0.4,), device="NVIDIA H200"
    )
    recorded.write(file, recorded.TrafficRuns((run,)), {})
    with pytest.raises(ChipError, match=r"runs\[0\]: request 0 must have arrival_s <= first_s <= last_s"):
        recorded.read(file)


def test_traffic_is_validated_by_its_own_document(tmp_path, capsys):
    file, runs = recorded.read(ROOT / "results" / "h200" / "traffic" / "reference-llama-3.1-8b.json")
    reference, out = tmp_path / "traffic.json", tmp_path / "v.json"
    recorded.write(reference, replace(runs, runs=runs.runs[:1]), file.environment)
    assert main(["validate", str(reference), "--json", "-o", str(out)]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["schema"] == "chip.traffic_validation/1"
    assert {m["metric"] for m in made["metrics"]} >= {"ttft_ms.mean", "tpot_ms.mean", "output_tokens_per_s"}
    assert len(made["points"]) == 7
    assert artifact.read(out, "chip.traffic_validation/1").inputs
    assert main(["validate", str(reference), "--ablate"]) == 2
    assert "is of static batches" in capsys.readouterr().err
