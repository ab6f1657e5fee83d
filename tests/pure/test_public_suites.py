"""Published measurements: read as published, predicted, grouped; and what cannot be predicted is counted."""

import gzip
import json

import pytest

from chip.hardware import gpus
from chip.show import cli
from chip.simulator.simulation import simulate
from chip.types import ChipError, Scenario
from chip.validate import public, suites
from chip.validate.public import Published

HEAD = "Hardware,Num of Hardware,Framework,Model,Input Output Length,Batch Size,Latency,Throughput\n"
ROWS = (
    "Nvidia A100 GPU,1,vLLM,meta-llama/Llama-2-7b-hf,128,1,1.65,155\n"
    "Nvidia A100 GPU,1,vLLM,meta-llama/Llama-2-7b-hf,128,1,1.75,146\n"
    "Nvidia H100 GPU,2,vLLM,Qwen/Qwen2-7B,256,16,2.4,3400\n"
    "Nvidia H100 GPU,1,llama.cpp,Qwen/Qwen2-7B,256,16,2.4,3400\n"
    "Habana Gaudi2,1,vLLM,Qwen/Qwen2-7B,256,16,2.4,3400\n"
    "Nvidia GH200 GPU,1,vLLM,facebook/opt-6.7b,2048,1,0.045,89750\n"
)


@pytest.fixture
def argonne(tmp_path):
    path = tmp_path / "All_results.csv"
    path.write_text(HEAD + ROWS)
    return path


def test_argonne_rows_become_runs(argonne):
    found = suites.read("argonne", argonne)
    assert found.runs[0] == Published(
        "a100-40gb", "vllm", "0.6", "llama-2-7b", Scenario(1, 128, 128), "e2e", pytest.approx(1.70)
    )
    assert [(r.gpu, r.model, r.scenario.tp) for r in found.runs[1:]] == [
        ("h100", "qwen2.5-7b", 2),
        ("gh200", "opt-6.7b", 1),
    ]
    assert {(o.rows, o.reason) for o in found.left_out} == {
        (1, "engine llama.cpp is not predicted"),
        (1, "GPU Habana Gaudi2 is not known"),
    }


def test_a_gzipped_file_is_the_same(argonne, tmp_path):
    packed = tmp_path / "all.csv.gz"
    packed.write_bytes(gzip.compress(argonne.read_bytes()))
    assert suites.read("argonne", packed) == suites.read("argonne", argonne)


def test_runs_are_judged_and_impossible_ones_left_out(argonne):
    answer = public.judge(suites.read("argonne", argonne))
    assert [j.run.gpu for j in answer.judged] == ["a100-40gb", "h100"]
    assert "fewer tokens were generated" in answer.left_out[-1].reason
    made = public.document(answer)
    assert [g["gpu"] for g in made["groups"]] == ["a100-40gb", "h100"]
    assert made["groups"][0]["points"] == 1
    assert made["groups"][0]["bias"] == pytest.approx(answer.judged[0].point.error)
    assert json.loads(json.dumps(made)) == made


def test_the_command_prints_groups_and_json(argonne, tmp_path, capsys):
    assert cli.main(["validate", "--suite", "argonne", str(argonne), "--gpu", "h100"]) == 0
    out, err = capsys.readouterr()
    assert "1 published runs" in out
    assert "BSD-3-Clause" in out
    assert "left out: 1 rows: engine llama.cpp is not predicted" in err
    written = tmp_path / "out.json"
    assert cli.main(["validate", "--suite", "argonne", str(argonne), "--json", "-o", str(written)]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == public.SCHEMA
    assert json.loads(written.read_text())["schema"] == public.SCHEMA


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("argone", "{file}"), "no suite 'argone'; choose one of argonne"),
        (("argonne", "none.csv"), "no such file or folder; fetch it from https://github.com/argonne-lcf"),
        (("argonne", "{file}", "{file}"), "takes one file or folder, got 2"),
        (("argonne", "{file}", "--gpu", "t4"), "argonne has no run of t4"),
        (("llmservingsim", "{folder}"), "holds no requests.jsonl"),
    ],
)
def test_bad_input_is_one_line(argonne, tmp_path, capsys, words, message):
    (tmp_path / "empty").mkdir()
    given = [w.format(file=argonne, folder=tmp_path / "empty") for w in words]
    assert cli.main(["validate", "--suite", *given]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_row_with_a_bad_number_is_named(tmp_path):
    path = tmp_path / "bad.csv"
    path.write_text(HEAD + "Nvidia A100 GPU,1,vLLM,meta-llama/Llama-2-7b-hf,128,1,none,155\n")
    with pytest.raises(ChipError, match="line 2: Latency must be a positive number, got 'none'"):
        suites.read("argonne", path)


# -- live traffic
def serving(folder, meta, rows):
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def request(start, **more):
    """The wall clock is 5000 s ahead of the engine's."""
    return {"input_toks": 100, "output_toks": 11, "arrival_time": 5000 + start, "queued_ts": start + 0.01,
            "first_token_ts": start + 1.0, "last_token_ts": start + 3.0} | more  # fmt: skip


META = {"model": "Qwen/Qwen3-32B", "vllm_version": "0.19.0"}


def test_published_traffic_is_read_with_its_clock_and_settings(tmp_path):
    kwargs = {"tensor_parallel_size": 2, "max_num_seqs": 128, "max_model_len": None, "seed": 42}
    rows = [request(9.0), request(7.0), request(8.0, queued_ts=8.5)]  # the last one waited for a step to end
    kv = {"num_gpu_blocks": 3000}
    serving(tmp_path / "RTXPRO6000" / "a" / "vllm", {**META, "engine_kwargs": kwargs, "kv_cache": kv}, rows)
    (run,) = suites.read_traffic(tmp_path).runs
    assert (run.model, run.tp, run.ep, run.engine_version) == ("qwen3-32b", 2, 1, "0.19.0")
    assert run.scheduler == {"max_num_seqs": 128, "num_gpu_blocks": 3000}
    assert run.arrival_s == (0.0, 1.0, 2.0), "in the order they were planned"
    assert run.first_s == pytest.approx((0.99, 1.99, 2.99)), "queued 10 ms late at the least: the clocks' difference"
    assert gpus.match_device(run.device) == "rtx-pro-6000-server"


def test_replicas_that_share_experts_are_expert_parallel(tmp_path):
    kwargs = {"tensor_parallel_size": 1, "data_parallel_size": 2, "enable_expert_parallel": True}
    meta = {"model": "Qwen/Qwen3-30B-A3B-Instruct-2507", "engine_kwargs": kwargs}
    serving(tmp_path / "RTXPRO6000" / "a", meta, [request(0.0)])
    (run,) = suites.read_traffic(tmp_path).runs
    assert (run.tp, run.ep) == (1, 2)
    del kwargs["enable_expert_parallel"]
    serving(tmp_path / "RTXPRO6000" / "b", meta, [request(0.0)])
    with pytest.raises(ChipError, match="without shared experts is not replayed"):
        suites.read_traffic(tmp_path)


def test_published_traffic_is_replayed_by_the_simulator(tmp_path, capsys):
    """What the simulator itself says, written down as published: errors are none."""
    rows = [request(i / 4, input_toks=300 + i, output_toks=40) for i in range(20)]
    kwargs = {"max_num_seqs": 128, "max_num_batched_tokens": 2048}
    meta = {"model": "meta-llama/Llama-3.1-8B", "vllm_version": "0.19.0", "engine_kwargs": kwargs}
    serving(tmp_path / "x" / "RTX4090" / "a", meta, rows)
    (run,) = suites.read_traffic(tmp_path / "x").runs
    done = simulate(
        "llama-3.1-8b", gpu="rtx-4090", workload=run.traffic(), engine_settings=run.scheduler, draws=0
    ).served
    for i, row in enumerate(rows):
        row |= {"queued_ts": row["arrival_time"], "first_token_ts": 5000 + done.first_s[i]}
        row |= {"last_token_ts": 5000 + done.last_s[i]}
    serving(tmp_path / "y" / "RTX4090" / "a", meta, rows)
    serving(tmp_path / "y" / "RTX4090" / "b", {**meta, "model": "nobody/knows"}, [request(0.0)])
    assert cli.main(["validate", "--suite", "llmservingsim", str(tmp_path / "y"), "--json"]) == 0
    out, err = capsys.readouterr()
    made = json.loads(out)
    assert len(made["points"]) == 7
    for p in made["points"]:
        assert p["error"] == pytest.approx(0.0, abs=1e-6)
        assert p["inside"]
    tpot = next(p for p in made["points"] if p["metric"] == "tpot_ms.mean")
    assert tpot["by_request"]["p90"] == pytest.approx(0.0, abs=1e-6)
    assert (tpot["gpu"], tpot["rate_per_s"]) == ("rtx-4090", 4.0)
    assert "left out: 1 rows: model nobody/knows is not known" in err
    assert cli.main(["validate", "--suite", "llmservingsim", str(tmp_path / "y")]) == 0
    assert "1 published runs of https://github.com/casys-kaist/LLMServingSim" in capsys.readouterr().out


def test_a_line_that_is_no_request_is_named(tmp_path):
    serving(tmp_path / "RTX4090" / "a", {**META, "engine_kwargs": {}}, [{"id": 3}])
    with pytest.raises(ChipError, match="line 1 is no request"):
        suites.read_traffic(tmp_path)


@pytest.mark.parametrize(("batch", "name"), [(1, "1"), (3, "2 - 4"), (64, "64"), (100, "64 - 128"), (1000, "over 256")])
def test_batches_fall_into_classes(batch, name):
    assert public.batch_class(batch) == name
