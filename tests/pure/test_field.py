"""The silicon sample: rows read as the deployments they were, replayed, judged; and what cannot be true."""

import json

import pytest

from chip.show import cli
from chip.types import ChipError
from chip.validate import field, silicon
from chip.validate.doubts import doubts
from chip.validate.field_document import document
from chip.validate.recipes import recipe
from chip.validate.silicon import Split

COLUMNS = (*silicon.COLUMNS, *(f"{part}_{c}" for part in ("prefill", "decode") for c in ("num_workers", "tp_size",
           "attention_dp_size", "moe_ep_size")))  # fmt: skip
PLAIN = {
    "id": "a", "silicon_data_source": "source_file=2026-04-06.csv; silicon_concurrency=4; measured=2025-10-29T00:00",
    "backend": "vllm", "backend_version": "", "model_path": "meta-llama/Llama-3.1-70B", "system": "h100_sxm",
    "precision": "fp8", "mode": "agg", "isl": "1024", "osl": "1024", "batch_size": "4", "tp_size": "4", "pp_size": "1",
    "attention_dp_size": "1", "moe_tp_size": "4", "moe_ep_size": "1", "silicon_ttft_ms": "90", "silicon_tpot_ms": "12",
}  # fmt: skip

TRTLLM, NVIDIA = {"backend": "trtllm", "tp_size": 1}, {"silicon_data_source": "source_file=/x.csv"}


@pytest.fixture
def sample(tmp_path):
    def write(*rows):
        path = tmp_path / "silicon_sample.csv"
        lines = [",".join(str({**PLAIN, **row}.get(c, "")) for c in COLUMNS) for row in rows]
        path.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
        return path

    return write


@pytest.mark.parametrize(
    ("columns", "split"),
    [
        ({}, Split(4)),
        # InferenceX's labels tp 4, ep 4, as the file multiplies them: of vLLM, of SGLang, with attention on each GPU
        ({"attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 16}, Split(4, 1, 4)),
        ({"backend": "sglang", "tp_size": 16, "moe_tp_size": 4, "moe_ep_size": 4}, Split(4, 1, 4)),
        (TRTLLM | {"attention_dp_size": 16, "moe_tp_size": 4, "moe_ep_size": 4}, Split(1, 1, 4)),
        # NVIDIA's own runs leave out the replicas of the attention
        (NVIDIA | {"tp_size": 2, "attention_dp_size": "", "moe_tp_size": 4}, Split(2, 1, 4)),
    ],
)  # fmt: skip
def test_gpus_are_those_that_ran(sample, columns, split):
    assert silicon.read(sample(columns))[0].split == split


def test_a_row_is_replayed_as_the_traffic_it_was(sample):
    row = silicon.read(sample({}))[0]
    traffic = field.workload(row, recipe(row), row.users)
    assert traffic.users == 4
    assert {min(traffic.prompt) >= 819, max(traffic.prompt) <= 1024, len(traffic) == 40} == {True}
    assert dict(recipe(row).settings)["max_num_batched_tokens"] == 8192
    assert recipe(row).kv_dtype == "fp8"
    (answer,) = field.replay([row])
    assert answer.latency.tpot_low_s < answer.latency.tpot_s < answer.latency.tpot_high_s
    assert answer.latency.tpot_s == pytest.approx(0.012, rel=0.2)


def test_what_cannot_be_true_is_told_and_kept(sample):
    rows = silicon.read(
        sample(
            {"id": "speculative", "silicon_tpot_ms": "0.5"},
            {
                "id": "cached",
                "isl": 8192,
                "osl": 128,
                "silicon_data_source": "silicon_concurrency=64",
                "silicon_tpot_ms": 6,
            },
            {"id": "once", "silicon_tpot_ms": "12"},
            {"id": "again", "silicon_tpot_ms": "24"},
        )
    )
    told = doubts(rows)
    assert "more than one comes of a step" in told["speculative"]
    assert "came from a cache" in told["cached"]
    assert "leave out a setting" in told["again"]
    made = document([field.ReplayedRow(r, None, "not asked") for r in rows], told)
    assert sum(d["rows"] for d in made["doubts"]) == len(told)
    assert len(made["points"]) == 4


def test_the_command_prints_errors_and_refusals(sample, capsys):
    path = sample({}, {"id": "b", "backend": "lmdeploy"}, {"id": "c", "precision": "int4"})
    assert cli.main(["validate", "--suite", "silicon", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["rows"], made["answered"]) == (3, 1)
    assert {r["reason"] for r in made["refused"]} == {
        "engine lmdeploy is not predicted",
        "no checkpoint of llama-3.1-70b in int4 is known",
    }
    assert cli.main(["validate", "--suite", "silicon", str(path)]) == 0
    assert "rows that can be true" in capsys.readouterr().out
    assert cli.main(["validate", "--suite", "silicon", str(path), "--gpu", "b200"]) != 0
    assert "has no row of any engine on b200" in capsys.readouterr().err


def test_another_file_and_another_predictor_are_refused(tmp_path, sample):
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(ChipError, match="column 'id' is missing"):
        silicon.read(other)
    from chip.validate import against

    with pytest.raises(ChipError, match="must be aiconfigurator"):
        against.ask("vidur", silicon.read(sample({})))
