"""`chip validate`: text, JSON, picture, artifact, and one line for what is wrong. The runs are synthetic."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace

import pytest
from test_architecture import without_others
from test_validate import BUSY, DEVICE, said, synthetic

from chip.engines.profile import EngineProfile
from chip.files import artifact, codec, runs
from chip.files.runs import Runs
from chip.show.cli import main
from chip.types import Ceiling, Scenario
from chip.validate import peers
from chip.validate.document import SCHEMA

HOST_BOUND = {"prefill": 1.0, "decode": 0.4}


@pytest.fixture(scope="module")
def made(round_gpu):
    """Two models on three engines: vLLM 10 % slower than predicted, hf-eager's decode three times, and host-bound."""
    found = []
    for model in ("llama-3.2-1b", "qwen2.5-7b"):
        for s in (Scenario(1, 1024, 5), Scenario(8, 1024, 5)):
            found.append(synthetic(round_gpu, model, scenario=s, slower=1.1))
            found.append(synthetic(round_gpu, model, "hf-graph", s))
            eager = synthetic(round_gpu, model, "hf-eager", s, busy=HOST_BOUND, variant="sdpa=flash")
            slow = tuple(tuple(3 * t for t in steps) for steps in eager.step_ns)
            found.append(replace(eager, step_ns=slow, e2e_ns=tuple(t + sum(x) for t, x in zip(eager.ttft_ns, slow))))
    return found


@pytest.fixture
def file(tmp_path, made):
    path = tmp_path / "llm.json"
    runs.write(path, Runs(tuple(made)), {"device": DEVICE})
    return path


def run(capsys, *words):
    code = main(["validate", *map(str, words)])
    out = capsys.readouterr()
    return code, out.out, out.err


def test_text(capsys, file, round_gpu):
    code, out, err = run(capsys, file, "--gpu", round_gpu)
    assert code == 0, err
    assert "against 12 runs of Round GPU (llm.json)" in out
    assert "they rest on round.json" in out
    lines = out.splitlines()
    assert lines[-1] == "every one of the 48 points: --points"
    assert lines.index("against what is asked") < 5, "the summary comes first"
    assert re.search(r"host-bound as measured: 4; the prediction says so of [0-4]", out)
    graph = next(x for x in lines if x.startswith("hf-graph TPOT and TTFT"))
    assert graph.split()[:10] == ["hf-graph", "TPOT", "and", "TTFT", "3", "%,", "7", "%", "yes", "8"]
    assert "NO" in next(x for x in lines if x.startswith("vLLM TPOT, GPU-bound"))
    assert "no points" in next(x for x in lines if x.startswith("hf-eager TPOT, flash, launch latency known"))
    missed = lines[lines.index("missed") + 1 :]
    assert [x.split(":")[0] for x in missed[:2]] == ["vLLM TPOT, GPU-bound", "vLLM TTFT, >= 4096 tokens"]
    assert "GPU-bound; predicted as" in missed[0]
    assert "(roofline)" in missed[0]
    assert "no points" in next(x for x in lines if x.startswith("energy per token"))
    assert not any(x.startswith("all rows:") and not x.removeprefix("all rows:").strip() for x in lines)


def test_points(capsys, file, round_gpu):
    _, out, _ = run(capsys, file, "--gpu", round_gpu, "--points")
    lines = out.splitlines()
    one = next(x for x in lines if x.startswith("vllm ") and "tpot" in x and "qwen2.5-7b" in x and "xb8" in x)
    assert "-9.1 %" in one
    assert lines.index("every point") > lines.index("against what is asked")


def test_launch_latency_beside_the_runs(capsys, made, round_gpu, tmp_path):
    path = tmp_path / "llm.json"
    timed = [replace(r, launch_ns=(9000.0, 9000.0)) if r.engine == "vllm" else r for r in made]
    runs.write(path, Runs(tuple(timed)), {"device": DEVICE})
    _, out, _ = run(capsys, path, "--gpu", round_gpu, "--latency-known")
    unknown, known = out.split("launch latency measured beside each run: ")
    assert known.startswith("4 runs have it\n")
    title = "vLLM TTFT, launch latency known"
    first, second = (next(x for x in text.splitlines() if x.startswith(title)) for text in (unknown, known))
    assert "no points" in first
    assert "no points" not in second
    found = json.loads(run(capsys, path, "--gpu", round_gpu, "--latency-known", "--json")[1])
    assert not any(p["paced"] for p in found["points"])
    assert len(found["latency_known"]["points"]) == 4 * 4
    assert all(p["paced"] for p in found["latency_known"]["points"])
    assert "latency_known" not in json.loads(run(capsys, path, "--gpu", round_gpu, "--json")[1])


def test_coverage_is_asked_metric_by_metric(capsys, file, round_gpu):
    found = json.loads(run(capsys, file, "--gpu", round_gpu, "--json")[1])["intervals"]["metrics"]
    assert found["ttft"] == {"points": 12, "coverage": 1.0, "met": None}
    assert found["tpot"] == {"points": 12, "coverage": pytest.approx(8 / 12), "met": None}
    assert found["joules_per_token"] == {"points": 0, "coverage": None, "met": None}


def test_json_and_artifact(capsys, file, round_gpu, tmp_path):
    code, out, _ = run(capsys, file, "--gpu", round_gpu, "--json", "-o", tmp_path / "validation.json")
    assert code == 0
    found = json.loads(out)
    assert found["schema"] == SCHEMA
    assert len(found["points"]) == 12 * 4
    one = found["points"][0]
    assert one["error"] == pytest.approx(one["predicted"] / one["measured"] - 1)
    assert one["low"] < one["predicted"] < one["high"]
    assert {p["bound"] for p in found["points"]} == {"gpu", "host"}
    assert [h["error"] for h in found["host_bound"]] == pytest.approx([-2 / 3] * 4, abs=1e-4)
    assert found["intervals"]["points"] == 24
    assert found["intervals"]["coverage"] == pytest.approx(20 / 24)  # all but hf-eager's decode
    held = artifact.read(tmp_path / "validation.json", SCHEMA)
    assert held.data["classes"] == found["classes"]
    assert found["files"][0]["id"] in held.inputs
    assert found["rests_on"][0]["id"] in held.inputs


def test_works_where_nothing_else_is_installed(file, round_gpu):
    without_others((["validate", str(file), "--gpu", round_gpu, "--ablate"], 0, 500))


def test_stages(capsys, file, round_gpu):
    code, out, _ = run(capsys, file, "--gpu", round_gpu, "--ablate")
    assert code == 0
    titles = "datasheet roofline", "measured roofline", "calibrated operators", "measured points", "engine and host"
    assert all(t in out for t in titles)
    rows = out[out.index("what each stage buys") :].splitlines()
    for row in ("hf-graph TPOT and TTFT", "hf-graph ttft", "hf-eager sdpa=flash ttft"):
        assert next(x for x in rows if x.startswith(row)).endswith("0.0 %, 0.0 %")


def test_runs_without_a_target(capsys, tmp_path, round_gpu):
    path = tmp_path / "llm.json"
    runs.write(path, Runs((synthetic(round_gpu, engine="hf-eager"),)), {"device": DEVICE})
    code, out, _ = run(capsys, path, "--gpu", round_gpu, "--ablate")
    assert code == 0
    assert "none of these runs is of a kind that a target is set for" in out
    assert "hf-eager tpot" in out


def test_peers(capsys, file, made, round_gpu, tmp_path):
    answers = tmp_path / "answers.json"
    right = next(r for r in made if r.engine == "vllm" and r.model == "llama-3.2-1b")
    one = said(ttft_ms=right.ttft_s * 1e3, tpot_ms=right.tpot_s * 1e3)
    data = codec.to_json(peers.Answers({"oracle": "1.0"}, (one,)))
    artifact.write(answers, artifact.new(peers.Answers.SCHEMA, data, {}))
    code, out, _ = run(capsys, file, "--gpu", round_gpu, "--peers", answers)
    assert code == 0
    rows = [x for x in out[out.index("other predictors") :].splitlines() if "all rows" in x or x.startswith("vLLM")]
    assert any("0.0 %" in x and "9.1 %" in x for x in rows)
    code, _, err = run(capsys, file, "--gpu", round_gpu, "--engine", "hf-graph", "--peers", answers, "--json")
    assert code == 0
    assert "no peer was asked for any of these runs" in err


def test_picture(capsys, file, round_gpu, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "scatter.svg"
    code, _, err = run(capsys, file, "--gpu", round_gpu, "--plot", path)
    assert code == 0, err
    text = path.read_text()
    words = "predicted", "measured", "vllm", "hf-eager sdpa=flash", "GPU-bound", "host-bound", "time per output token"
    assert all(w in text for w in words)
    code, _, _ = run(capsys, file, "--gpu", round_gpu, "--plot", tmp_path / "scatter.png")
    assert (tmp_path / "scatter.png").read_bytes().startswith(b"\x89PNG")


def test_matplotlib_missing_is_one_line(capsys, monkeypatch, file, round_gpu, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run(capsys, file, "--gpu", round_gpu, "--plot", tmp_path / "x.png")
    assert code == 2
    assert err.strip().endswith("drawing needs matplotlib: pip install '.[plot]' in CHIP's checkout")


def test_bad_input_is_one_line(capsys, file, made, round_gpu, tmp_path):
    other_gpu = tmp_path / "h200.json"
    runs.write(other_gpu, Runs((replace(made[0], device="NVIDIA H200"),)), {"device": "NVIDIA H200"})
    failed = tmp_path / "failed.json"
    nothing = {"ttft_ns": (), "step_ns": (), "e2e_ns": (), "busy": BUSY}
    runs.write(failed, Runs((replace(made[0], status="failed", reason="oom", **nothing),)), {"device": DEVICE})
    for words, expected in [
        ([], "give files of runs"),
        ([tmp_path / "none.json"], "no such file"),
        ([round_gpu], "is a chip.hardware_profile file; expected chip.runs"),
        ([file], "no GPU is known for runs of Round GPU; give --gpu PROFILE.json"),
        ([file, "--gpu", "h200"], "is NVIDIA H200, the runs are of Round GPU"),
        ([file, other_gpu, "--gpu", round_gpu], "several devices"),
        ([file, "--gpu", round_gpu, "--engine", "sglang"], "no run to judge"),
        ([failed, "--gpu", round_gpu], "no run to judge: none is ok"),
        ([file, "--gpu", round_gpu, "--peers", file], "expected chip.peer_answers"),
        ([file, "--gpu", round_gpu, "--plot", tmp_path / "x.gif"], "written as .png, .svg or .pdf"),
        ([file, "--gpu", round_gpu, "--allow-leaked"], "no option or argument '--allow-leaked'"),
    ]:
        try:
            code, _, err = run(capsys, *words)
        except SystemExit as e:  # argparse's own
            code, err = e.code, capsys.readouterr().err
        assert code == 2, (words, err)
        assert expected in err, (words, err)
        assert len(err.strip().splitlines()) == 1, err


def terms_of(path, engine, host_step_s):
    term = Ceiling(host_step_s, host_step_s, host_step_s, "s", "made up for tests")
    made = EngineProfile(engine, "1", DEVICE, "a CPU", ("a calibration model",), {"host_step_s": term})
    artifact.write(path, artifact.new(EngineProfile.SCHEMA, codec.to_json(made), {}, ["of-a-calibration-model"]))
    return path


def test_terms_of_the_runs_own_host(capsys, file, round_gpu, tmp_path):
    slow = terms_of(tmp_path / "slow.json", "vllm", 1.0)  # a second for each step
    code, out, err = run(capsys, file, "--gpu", round_gpu, "--engine", "vllm", "--engine-profile", slow, "--json")
    assert code == 0, err
    found = json.loads(out)
    assert any(u["file"].endswith("slow.json") for u in found["rests_on"])
    assert all(p["predicted"] > 0.9 for p in found["points"] if p["metric"] == "tpot")
    other = terms_of(tmp_path / "other.json", "hf-graph", 1.0)
    code, out, err = run(capsys, file, "--gpu", round_gpu, "--engine", "vllm", "--engine-profile", other)
    assert code == 2
    assert "other.json is of hf-graph, of which there is no run to judge" in err
    assert err.count("\n") == 1


def test_terms_of_several_hosts_lie_in_a_folder(capsys, file, round_gpu, tmp_path):
    folder = tmp_path / "terms"
    folder.mkdir()
    two = tmp_path / "two"
    two.mkdir()
    for name in ("first", "second"):
        shutil.copyfile(file, two / f"{name}.json")
    asked = (str(two), "--gpu", round_gpu, "--engine", "vllm", "--engine-profile", str(folder))
    code, _, err = run(capsys, *asked)
    assert code == 2
    assert "the folder has no NAME.terms.json for any file of runs NAME.json" in err
    terms_of(folder / "second.terms.json", "vllm", 1.0)
    terms_of(folder / "nobody.terms.json", "vllm", 7.0)
    code, out, err = run(capsys, *asked, "--json")
    assert code == 0, err
    steps = sorted(p["predicted"] for p in json.loads(out)["points"] if p["metric"] == "tpot")
    assert steps[len(steps) // 2 - 1] < 0.5  # of the first file: the GPU's own terms
    assert 0.9 < steps[len(steps) // 2] <= steps[-1] < 2


def test_runs_left_out_for_one_reason_are_told_once(capsys, made, round_gpu, tmp_path):
    failed = [replace(r, status="failed", reason="out of memory", ttft_ns=(), step_ns=(), e2e_ns=()) for r in made[:3]]
    runs.write(tmp_path / "some.json", Runs((*failed, *made[3:])), {"device": DEVICE})
    code, _, err = run(capsys, tmp_path / "some.json", "--gpu", round_gpu)
    assert code == 0, err
    told = [line for line in err.splitlines() if line.startswith("left out")]
    assert told == ["left out: llama-3.2-1b vllm pp1024+tg5xb1 and 2 more: failed (out of memory)"]
