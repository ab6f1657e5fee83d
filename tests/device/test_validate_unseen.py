"""`chip validate --leave-one-model-out`, with a real fit: a model whose shapes were measured wrongly is predicted
rightly once they are left out."""

import json

import pytest

pytest.importorskip("numpy")
pytest.importorskip("scipy")

from test_fit import DEVICE, law, linears, measured, write_profile

from chip import ops
from chip.files import measurements, runs
from chip.files.runs import Run, Runs
from chip.show import cli
from chip.types import Scenario

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 4, "hidden_size": 2048,
    "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 8192,
    "max_position_embeddings": 4096, "hidden_act": "silu",
}  # fmt: skip
WIDTHS = ((2048, 2048), (5632, 2048), (2048, 5632), (8192, 2048))  # n, k of its products
WRONG = 3


def test_a_fit_without_the_models_shapes(tmp_path, capsys):
    profile, tables, file = write_profile(tmp_path / "gpu.json"), tmp_path / "tables.jsonl", tmp_path / "llm.json"
    measurements.start(tables, DEVICE, {})
    for op in linears(80):
        measurements.add(tables, measured(op, law(op)))
    for n, k in WIDTHS:
        for m in (1, 2, 4, 8, 16, 64, 256, 1024):
            op = ops.build("linear", {"m": m, "n": n, "k": k})
            measurements.add(tables, measured(op, WRONG * law(op)))
    assert cli.main(["fit", str(tables), "--profile", str(profile)]) == 0
    step = 1_000_000
    run = Run(
        "mine", "hf-eager", "", Scenario(8, 128, 3), "ok", ttft_ns=(step,), step_ns=((step, step),), e2e_ns=(3 * step,)
    )
    runs.write(file, Runs((run,), {"mine": CONFIG}), {"device": DEVICE})
    capsys.readouterr()
    words = ["validate", str(file), "--gpu", str(profile), "--leave-one-model-out", str(tables), "--json"]
    assert cli.main(words) == 0
    out = capsys.readouterr()
    assert "mine: fitted without 32 of 112 measurements" in out.err
    found = json.loads(out.out)
    seen = next(p["predicted"] for p in found["points"] if p["metric"] == "tpot")
    unseen = next(p["predicted"] for p in found["leave_one_model_out"]["points"] if p["metric"] == "tpot")
    assert seen > 1.5 * unseen
    assert found["leave_one_model_out"]["models"] == [{"model": "mine", "measurements_left_out": 32}]
