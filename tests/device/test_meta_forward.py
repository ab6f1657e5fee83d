"""`chip predict --trace`: operators of any architecture from HF's own forward on the meta device."""

import json
import sys
from pathlib import Path

import pytest

from chip.decoders import describe
from chip.decoders.lower import lower
from chip.dtypes import precision
from chip.predictor import request
from chip.predictor.stages import Stage
from chip.show import cli
from chip.types import Seq, Step

pytest.importorskip("torch")
pytest.importorskip("transformers")
from chip.lab.measure import meta_forward

MODELS = Path(__file__).resolve().parents[2] / "src" / "chip" / "data" / "models"
BF16 = precision("bf16")
STEPS = (Seq(24, 0, 2), Seq(1, 24, 2), Seq(5, 24, 1))
SDPA = ["llama-3.1-8b", "qwen2.5-7b", "qwen3-0.6b", "mistral-7b", "gpt2", "opt-125m", "phi-3-mini", "pythia-1.4b"]
SDPA += ["falcon-7b", "stablelm-2-1.6b", "starcoder2-3b"]
EAGER = ["gemma-2-2b", "bloom-560m"]  # their attention is no sdpa call: two batched products, causality not used


def cut(name, folder, **changes):
    """A bundled config of two layers, in a file: (its path, what it holds)."""
    raw = {**json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8")), **changes}
    raw["n_layer" if "n_layer" in raw else "num_hidden_layers"] = 2
    path = folder / name / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(raw))
    return path, raw


def work(calls):
    """FLOPs of matrix products and of attention; the angles of rotary embeddings are an outer product, not a layer."""
    products = attention = 0
    for role, op, n in calls:
        if "rotary" in role:
            continue
        if op.kind in ("attention", "bmm"):
            attention += n * op.cost().flops
        elif op.kind == "linear":
            products += n * op.cost().flops
    return products, attention


def traced(model, seq):
    return work([(c.role, c.op, n) for c, n in meta_forward.calls(model, seq).items()])


def lowered(d, seq):
    program = lower(d, Step((seq,)), BF16)
    return work([(c.role, c.op, b.repeat) for b in program.blocks for c in b.calls])


@pytest.mark.parametrize("name", [*SDPA, *EAGER])
def test_what_is_traced_is_what_is_lowered(name, tmp_path):
    path, raw = cut(name, tmp_path)
    d, model = describe(raw, name, "it.json"), meta_forward.build(path, "bf16")
    assert sum(p.numel() * p.element_size() for p in model.parameters()) == d.weight_bytes(BF16)
    assert meta_forward.kv_bytes_per_token(model) == d.kv_bytes(1, BF16)
    for seq in STEPS:
        products, attention = traced(model, seq)
        expected, causal = lowered(d, seq)
        assert products == expected
        if name in SDPA:
            assert attention == causal
        else:
            program = lower(d, Step((seq,)), BF16)
            dense = sum(
                b.repeat * c.op.counted_flops for b in program.blocks for c in b.calls if c.op.kind == "attention"
            )
            assert attention == dense


def test_a_latent_cache_is_traced_as_it_is_kept(tmp_path):
    path, raw = cut("deepseek-v2-lite", tmp_path)
    d, model = describe(raw, "it", "it.json"), meta_forward.build(path, "bf16")
    assert meta_forward.kv_bytes_per_token(model) == d.kv_bytes(1, BF16)


def test_experts_are_traced_as_products(tmp_path):
    path, raw = cut("mixtral-8x7b", tmp_path)
    d, model = describe(raw, "it", "it.json"), meta_forward.build(path, "bf16")
    step = Seq(512, 0, 4)
    experts = sum(n * c.op.cost().flops for c, n in meta_forward.calls(model, step).items() if "experts" in c.role)
    program = lower(d, Step((step,)), BF16)
    expected = sum(b.repeat * c.op.cost().flops for b in program.blocks for c in b.calls if c.role == "experts")
    assert experts == pytest.approx(expected, rel=0.01)


def predict(capsys, *words):
    code = cli.main(["predict", *(str(w) for w in words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def host_s(answer, phase="tpot"):
    """Milliseconds of the engine's rows."""
    return sum(row["us"] for row in answer["breakdown"][phase] if row["op"] == "engine") / 1e3


def test_traced_and_lowered_predictions_agree(tmp_path, capsys):
    """Traced, elementwise operators are many small ones; the products, which take most of the time, are the same."""
    path, _ = cut("llama-3.1-8b", tmp_path)
    ask = (path, "--gpu", "a100", "--engine", "hf-eager", "--batch", 4, "--prompt", 512, "--output", 8, "--json")
    a, b = (json.loads(predict(capsys, *ask, *more)[1]) for more in ([], ["--trace"]))
    assert set(a) == set(b)
    names = ("model", "gpu", "engine", "batch", "prompt", "output", "dtype", "kv_dtype", "tp")
    question = {**{k: a[k] for k in names}, "model": str(path)}
    bare = request.answer(question, stage=Stage.CALIBRATED)  # without points and host
    assert host_s(bare) == 0 < host_s(a)
    for metric, phase in (("ttft_ms", "ttft"), ("tpot_ms", "tpot")):
        assert b[metric] - host_s(b, phase) == pytest.approx(bare[metric], rel=0.2)
        assert b[metric] == pytest.approx(a[metric], rel=0.5)  # HF's many small kernels are launched one by one
    of_vllm = json.loads(predict(capsys, *("vllm" if w == "hf-eager" else w for w in ask), "--trace")[1])
    assert of_vllm["tpot_ms"] < 0.7 * b["tpot_ms"]  # one graph, where eager decode waits for the host
    for key in ("weights_bytes", "kv_bytes", "kv_bytes_per_token"):
        assert a["memory"][key] == b["memory"][key]
    assert "operators traced from HF's LlamaForCausalLM: hf-eager's own fusions are not applied" in b["notes"]
    code, out, _ = predict(capsys, *ask[:-1], "--trace")
    assert code == 0
    assert "memory a GPU" in out


UNKNOWN = {
    "GPTNeoForCausalLM": {
        "model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "num_heads": 4,
        "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 256,
    },
    "CodeGenForCausalLM": {"model_type": "codegen", "n_embd": 64, "n_layer": 2, "n_head": 4, "rotary_dim": 16},
    "MambaForCausalLM": {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2},
}  # fmt: skip


@pytest.mark.parametrize("architecture", UNKNOWN)
def test_an_architecture_not_served_is_refused_or_traced(architecture, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"architectures": [architecture], "vocab_size": 128, "bos_token_id": 0, "eos_token_id": 0}
                   | UNKNOWN[architecture])
    )  # fmt: skip
    ask = (path, "--gpu", "a100", "--engine", "hf-eager", "--batch", 2, "--prompt", 32, "--output", 4)
    code, out, err = predict(capsys, *ask)
    assert (code, out) == (2, "")
    assert "is not known" in err
    assert "--trace" in err
    code, out, err = predict(capsys, *ask, "--trace", "--json")
    assert code == 0
    a = json.loads(out)
    assert 0 < a["tpot_ms"] < a["ttft_ms"]
    rows = a["breakdown"]["ttft"]
    assert sum(r["us"] for r in rows) == pytest.approx(1e3 * a["ttft_ms"], rel=1e-3)
    assert {"linear", "embedding"} <= {r["op"] for r in rows}
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--tp", "2"], "--trace follows one GPU's forward pass; leave --tp, --pp and --ep at 1"),
        (["--dtype", "int4"], "a100 has no int4 matrix rate"),
        (["--dtype", "int8"], "--trace follows what torch runs and takes --dtype bf16, fp16, fp32, not int8"),
    ],
)
def test_what_cannot_be_traced_is_told(more, line, tmp_path, capsys):
    path, _ = cut("gpt2", tmp_path)
    code, out, err = predict(capsys, path, "--gpu", "a100", "--trace", *more)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert line in err


def test_a_config_transformers_cannot_build(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"architectures": ["NoSuchForCausalLM"], "model_type": "no_such_type"}))
    code, out, err = predict(capsys, path, "--gpu", "a100", "--trace")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{path}: transformers cannot build it" in err


@pytest.mark.parametrize("gone", ["torch", "transformers"])
def test_without_torch_one_line(gone, tmp_path, capsys, monkeypatch):
    path, _ = cut("gpt2", tmp_path)
    monkeypatch.setitem(sys.modules, gone, None)
    code, out, err = predict(capsys, path, "--gpu", "a100", "--trace")
    assert (code, out) == (2, "")
    assert err == f"chip predict: --trace needs {gone}: pip install '.[measure]' in CHIP's checkout\n"
