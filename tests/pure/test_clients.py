"""Results of benchmarking clients: every format is read as it is, with the client's own meaning of each figure, and a
damaged or foreign file is one line. The samples are a recorded run in all formats (`benchmarks/client_samples.py`)."""

import json
from contextlib import suppress
from pathlib import Path

import pytest

from chip.engines.vllm import server
from chip.files import artifact, codec
from chip.hardware import hosts
from chip.show.cli import main
from chip.simulator import machine, recorded
from chip.simulator.simulation import simulate
from chip.simulator.synthetic import make, parse
from chip.types import Ceiling, ChipError, HostProfile
from chip.validate import client_errors, clients, host_fit
from chip.validate.client_result import users_of, workload_of

SAMPLES = Path(__file__).parents[1] / "data" / "clients"
RECORD = Path(__file__).parents[2] / "results" / "h200" / "traffic" / "server" / "llama-3.1-8b.json.gz"
FILES = {
    "vllm-bench.json": "vllm bench serve",
    "vllm-bench-detailed.json": "vllm bench serve",
    "sglang-bench.jsonl": "sglang.bench_serving",
    "aiperf-records.jsonl": "AIPerf",
    "aiperf.json": "AIPerf",
    "guidellm.json": "guidellm",
    "inferencex.json": "InferenceX",
}


@pytest.fixture(scope="module")
def runs():
    held = recorded.read(RECORD)[1].runs
    return next(r for r in held if r.rate_per_s), next(r for r in held if r.users)


@pytest.mark.parametrize("name", FILES)
def test_each_format_has_the_figures_of_the_run_it_is_of(name, runs):
    rated, users = runs
    for result in clients.read(SAMPLES / name):
        run = users if result.workload.users else rated
        assert result.client == FILES[name]
        assert result.workload.users == run.users
        count = 30 if name == "aiperf-records.jsonl" else len(run.prompt)  # the sample has the first
        several = [i for i in range(count) if run.output[i] > 1]
        ttft = sum(run.first_s[i] - run.came_s[i] for i in range(count)) / count * 1e3
        tpot = sum((run.last_s[i] - run.first_s[i]) / (run.output[i] - 1) for i in several) / len(several) * 1e3
        assert result.figures["mean_ttft_ms"] == pytest.approx(ttft, rel=1e-4)
        assert result.figures["mean_tpot_ms"] == pytest.approx(tpot, rel=1e-3)
        if "mean_e2el_ms" in result.figures:
            assert result.figures["mean_e2el_ms"] > result.figures["mean_ttft_ms"]
        shown = result.workload
        if name != "inferencex.json":
            assert len(shown) == count
        assert sum(shown.prompt) / len(shown) == pytest.approx(sum(run.prompt[:count]) / count, rel=0.02)
        assert sum(shown.output) / len(shown) == pytest.approx(sum(run.output[:count]) / count, rel=0.02)


def test_single_requests_are_replayed_as_they_came(runs):
    rated, _ = runs
    for name, count in (("vllm-bench-detailed.json", len(rated.prompt)), ("aiperf-records.jsonl", 30)):
        (result,) = clients.read(SAMPLES / name)
        came = rated.came_s[:count]
        assert list(result.workload.prompt) == list(rated.prompt[:count])
        assert list(result.workload.arrival_s) == pytest.approx([at - came[0] for at in came], abs=2e-4)
    (summary,) = clients.read(SAMPLES / "vllm-bench.json")
    assert set(summary.workload.prompt) == {round(sum(rated.prompt) / len(rated.prompt))}
    assert any("taken as equal" in note for note in summary.notes)
    assert summary.workload.arrival_s[-1] == pytest.approx(80 / 4, rel=0.01), "the rate that was asked for"


def test_rows_of_several_nodes_are_left_out_and_drafts_are_said(tmp_path):
    (row,) = json.loads((SAMPLES / "inferencex.json").read_text())
    file = tmp_path / "rows.json"
    file.write_text(json.dumps([row, {**row, "is_multinode": True}, {**row, "mtp": "on"}]))
    plain, drafted = clients.read(file)
    assert not any("speculative" in note for note in plain.notes)
    assert any("speculative" in note for note in drafted.notes)
    file.write_text(json.dumps([{**row, "is_multinode": True}]))
    with pytest.raises(ChipError, match="all rows are of several nodes"):
        clients.read(file)


def test_users_in_a_loop_are_told_from_free_arrivals():
    begin = [float(i) for i in range(20)]
    assert users_of(begin, [at + 3.5 for at in begin]) == 4
    assert users_of(begin, [at + (9.5 if i in (8, 9) else 0.4) for i, at in enumerate(begin)]) == 0
    assert users_of([0.0, 0.0, 2.0, 2.1], [2.0, 2.1, 4.0, 4.0]) == 2


def test_one_table_says_what_is_off_and_where(capsys):
    assert main(["validate", str(SAMPLES / "vllm-bench.json"), "--gpu", "h200"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("vllm bench serve, llama-3.1-8b on h200: 3.97 requests/s, 80 requests of 720 + 138 tokens\n")
    for title in ("TTFT mean", "TPOT p99", "ITL median", "output tokens/s"):
        assert title in out
    for part in ("its steps", "prompts of others", "its own prompt", "queue"):
        assert part in out
    assert "taken as equal" in err
    assert main(["validate", str(SAMPLES / "guidellm.json"), "--gpu", "h200", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert [r["users"] for r in made["results"]] == [0, 64]
    for r in made["results"]:
        whole = sum(p["difference_ms"] for p in r["parts"])
        n = sum(o for o in [138]) if not r["users"] else 168
        by = {f["metric"]: f["predicted"] - f["measured"] for f in r["figures"]}
        assert whole == pytest.approx(by["mean_ttft_ms"] + (n - 1) * by["mean_tpot_ms"], rel=0.03), "the parts add up"


def test_what_the_file_does_not_say_is_asked_for(tmp_path, capsys):
    row = json.loads((SAMPLES / "vllm-bench.json").read_text())
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**row, "model_id": "m"}))
    assert main(["validate", str(file), "--gpu", "h200"]) == 2
    assert (
        capsys.readouterr().err == f"chip validate: {file}: was served as 'm', which is no known model; give --model\n"
    )
    assert main(["validate", str(SAMPLES / "vllm-bench.json")]) == 2
    assert "give --gpu" in capsys.readouterr().err
    (result,) = clients.read(file)
    assert client_errors.judge(result, {"model": "llama-3.1-8b", "gpu": "h200"}, 0).model == "llama-3.1-8b"
    for served, model in (
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", "qwen3-30b-a3b"),
        ("/models/gemma-3-4b-it/", "gemma-3-4b"),
    ):
        assert client_errors.model_of(served, result).name == model


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ('{"num_prompts": 1', "is not JSON or is cut short (its first document)"),
        ('{"a": 1}\n{"b": ', "is not JSON or is cut short (line 2)"),
        ("TTFT,TPOT\n1,2\n", "is not JSON or is cut short"),
        ('{"weather": "fine"}', "is no result of AIPerf, chip bench --server, guidellm, InferenceX"),
        ("[]", "is no result of"), ("3", "is no result of"),
    ],
)  # fmt: skip
def test_damaged_and_foreign_files_are_one_line(text, says, tmp_path, capsys):
    file = tmp_path / "result.json"
    file.write_text(text)
    assert main(["validate", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize("name", FILES)
def test_no_missing_or_broken_field_is_a_traceback(name, tmp_path):
    """Every field removed, and replaced by what it cannot be: read, or refused in one line."""
    lines = (SAMPLES / name).read_text().splitlines() if name.endswith("l") else [(SAMPLES / name).read_text()]
    file = tmp_path / name

    def check(row):
        file.write_text("\n".join([json.dumps(row), *lines[1:3]]) if name.endswith("l") else json.dumps(row))
        with suppress(ChipError):
            clients.read(file)

    row = json.loads(lines[0])
    inner = row[0] if isinstance(row, list) else row
    for holder in (inner, *(v for v in inner.values() if isinstance(v, dict))):
        for key in list(holder):
            before = holder.pop(key)
            check(row)
            for wrong in (None, -1, "x", [], {}, [None], True):
                holder[key] = wrong
                check(row)
            holder[key] = before


def test_equal_requests_of_a_closed_loop_are_jittered_as_tools_do():
    w = make(parse("closed:users=8,prompt=500,output=100"), 400, 1, "w")
    assert 450 <= min(w.prompt) < 455
    assert 545 < max(w.prompt) <= 550
    assert any("random-range-ratio" in note for note in w.notes)
    equal = make(parse("closed:users=8,prompt=500,output=100,range=0"), 50, 1, "w")
    assert set(equal.prompt) == {500}
    assert not equal.notes
    drawn = make(parse("poisson:prompt=500,output=100,range=0.5"), 400, 1, "w")
    assert 250 <= min(drawn.prompt) < 280
    assert set(make(parse("poisson:prompt=500,output=100"), 50, 1, "w").prompt) == {500}
    gamma = workload_of("w", [5] * 100, [5] * 100, rate=4.0, burstiness=0.5)
    assert gamma.arrival_s[-1] == pytest.approx(25.0)


def test_a_host_fitted_to_one_run_predicts_the_others(tmp_path, capsys):
    """Leave one out: the run at 4 requests a second is fitted to, those at 12 and 22 are predicted."""
    host = tmp_path / "mine.json"
    asked = ["calibrate", "--from", str(SAMPLES / "vllm-bench-detailed.json"), "--gpu", "h200", "-o", str(host)]
    assert main(asked) == 0
    out, err = capsys.readouterr()
    assert "launches a small kernel in" in out
    assert "steps of decodes take 0.9" in out
    assert f"--host {host}" in err
    others = clients.read(RECORD)[1:3]
    before, after = ([client_errors.judge(r, system, 16) for r in others] for system in ({}, {"host": str(host)}))
    names = ("mean_ttft_ms", "mean_tpot_ms")
    for name in names:
        for was, is_now in zip(before, after):
            assert abs(is_now.figure(name).error) < 0.7 * abs(was.figure(name).error)
    inside = [sum(j.figure(name).inside for j in judged for name in names) for judged in (before, after)]
    assert inside[1] > inside[0], "what was measured lies in more of the intervals"
    assert any("as fitted to this machine" in note for note in after[0].notes)


def test_what_cannot_be_fitted_is_one_line(tmp_path, capsys):
    sample = str(SAMPLES / "vllm-bench.json")
    assert main(["calibrate", "--from", sample, "--engine", "vllm"]) == 2
    assert capsys.readouterr().err == "chip calibrate: --engine does not go with --from\n"
    assert main(["calibrate", "--from", sample, "-o", str(tmp_path / "h.json")]) == 2
    assert "give --gpu" in capsys.readouterr().err
    assert main(["calibrate", "--from", *([str(RECORD)] * 2), "-o", str(tmp_path / "h.json")]) == 2
    assert "up to 6 runs, these files hold 10" in capsys.readouterr().err


def test_a_server_that_was_watched_tells_what_its_loop_takes(tmp_path):
    results = clients.read(RECORD.with_name("llama-3.2-1b.json.gz"))
    terms = host_fit.loop_terms(results)
    of_vllm = server.cost()
    assert terms["server_chunk"].value == pytest.approx(of_vllm.token_s, rel=1e-3), (
        "what the bundled terms were fitted to"
    )
    assert terms["server_request"].value == pytest.approx(of_vllm.request_s, rel=1e-3)
    assert host_fit.loop_terms(results[:4]) == {}, "as many runs as terms tell nothing"
    shares = {name: Ceiling(0.9, 0.85, 0.95, "1", "by hand") for name in (machine.DECODES, machine.PROMPTS)}
    slow = Ceiling(3e-4, 3e-4, 3e-4, "s", "by hand")
    held = {hosts.LATENCY: Ceiling(1e-5, 9e-6, 1.1e-5, "s", "by hand"), **shares, "server_chunk": slow}
    file = tmp_path / "mine.json"
    artifact.write(file, artifact.new(HostProfile.SCHEMA, codec.to_json(HostProfile("mine", "", held)), {}, []))
    found = machine.machine_of(str(file))
    assert (found.factors.decode, found.behind(of_vllm).token_s) == (0.9, 3e-4)
    assert found.behind(of_vllm).request_s == of_vllm.request_s
    asked = {"workload": "closed:users=60,prompt=50,output=100,range=0", "requests": 120, "draws": 0, "server": True}
    tpot_s = simulate("llama-3.2-1b", host=str(file), **asked).tpot_s.mean
    assert tpot_s > 1.5 * simulate("llama-3.2-1b", **asked).tpot_s.mean, "though its chunks merge"
