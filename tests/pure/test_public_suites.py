"""Published measurements: read as published, predicted, grouped; and what cannot be predicted is counted."""

import gzip
import json

import pytest

from chip import cli
from chip.types import ChipError, Scenario
from chip.validate import public, suites
from chip.validate.public import Published
from chip.validate.suites import PublishedRequest, beside

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
        (("silicon", "{file}"), "column 'backend' is missing"),
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
def test_who_decodes_beside_a_request():
    one = PublishedRequest(100, 11, 0.0, 1.0, 3.0)
    assert one.tpot_s == pytest.approx(0.2)
    assert beside(one, [one]) == (1.0, pytest.approx(105.5))
    half = PublishedRequest(200, 10, 0.0, 2.0, 4.0)  # the second half of one's time, the first half of its own
    together, context = beside(one, [one, half])
    assert together == pytest.approx(1.5)
    assert context == pytest.approx((2 * 105.5 + 1 * 202.5) / 3)


def serving(folder, meta, rows):
    folder.mkdir(parents=True)
    (folder / "meta.json").write_text(json.dumps(meta))
    (folder / "requests.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


def request(start, **more):
    return {"input_toks": 100, "output_toks": 11, "queued_ts": start, "first_token_ts": start + 1.0,
            "last_token_ts": start + 3.0} | more  # fmt: skip


def test_requests_are_compared_at_the_batch_they_ran_in(tmp_path):
    kwargs = {"tensor_parallel_size": 2, "data_parallel_size": 1}
    meta = {"model": "Qwen/Qwen3-32B", "vllm_version": "0.19.0", "engine_kwargs": kwargs}
    serving(tmp_path / "RTXPRO6000" / "a", meta, [request(0.0), request(0.0), request(9.0, output_toks=1)])
    spread = {**meta, "engine_kwargs": {"data_parallel_size": 2}}
    serving(tmp_path / "RTXPRO6000" / "b", spread, [request(0.0)])
    found = suites.read("llmservingsim", tmp_path)
    assert [r.scenario for r in found.runs] == [Scenario(2, 106, 2, "bf16", 2)] * 2
    assert found.runs[0].gpu == "rtx-pro-6000-server"
    assert found.left_out[0].reason.endswith("data parallelism is not predicted")


def test_a_line_that_is_no_request_is_named(tmp_path):
    serving(tmp_path / "RTX4090" / "a", {"model": "x", "engine_kwargs": {}}, [{"id": 3}])
    with pytest.raises(ChipError, match="line 1 is no request"):
        suites.read("llmservingsim", tmp_path)


# -- silicon sample
def test_rows_of_the_silicon_sample(tmp_path):
    columns = (
        "backend,backend_version,model_path,system,precision,mode,isl,osl,batch_size,tp_size,pp_size,"
        "attention_dp_size,moe_ep_size,silicon_tpot_ms\n"
    )
    path = tmp_path / "silicon_sample.csv"
    path.write_text(
        columns
        + "vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,,agg,1024,128,8,2,1,,1,18.0\n"
        + "vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,fp4,agg,1024,128,8,2,1,,1,18.0\n"
        + "vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,,agg,1024,128,8,2,1,,4,18.0\n"
        + "sglang,0.5,Qwen/Qwen3-32B,h100_sxm,,agg,1024,128,8,2,1,,1,18.0\n"
    )
    found = suites.read("silicon", path)
    wanted = Published(
        "h100", "vllm", "0.12.0", "qwen3-32b", Scenario(8, 1024, 128, "bf16", 2), "tpot", pytest.approx(0.018)
    )
    assert found.runs == (wanted,)
    assert {o.reason for o in found.left_out} == {
        "precision fp4 is not predicted",
        "pipeline, data or expert parallelism",
        "engine sglang is not predicted",
    }


@pytest.mark.parametrize(("batch", "name"), [(1, "1"), (3, "2 - 4"), (64, "64"), (100, "64 - 128"), (1000, "over 256")])
def test_batches_fall_into_classes(batch, name):
    assert public.batch_class(batch) == name
