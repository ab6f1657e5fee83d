"""Checkpoints of random quantised weights: their tensors are those of the format, and `chip` reads them as such."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chip.decoders import library
from chip.dtypes import precision

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import make_quantised  # noqa: E402

SMALL = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 256, "head_dim": 64, "max_position_embeddings": 256,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}


def config(tmp_path, name="llama-3.1-8b", **changes):
    raw = json.loads((library.CONFIGS / f"{name}.json").read_text())
    file = tmp_path / f"{name}.json"
    file.write_text(json.dumps({**raw, **SMALL, **changes}))
    return str(file)


def made(tmp_path, form, *more, name="llama-3.1-8b", **changes):
    folder = tmp_path / form
    assert make_quantised.main([config(tmp_path, name, **changes), form, str(folder), *more]) == 0
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    found = {}
    for file in set(index["weight_map"].values()):
        with safetensors.safe_open(folder / file, "pt") as held:
            found.update({key: held.get_tensor(key) for key in held.keys()})  # noqa: SIM118
    assert set(found) == set(index["weight_map"])
    assert sum(t.nbytes for t in found.values()) == index["metadata"]["total_size"]
    return folder, found, index["metadata"]["total_size"]


@pytest.mark.parametrize("form", make_quantised.FORMS)
@pytest.mark.parametrize(("name", "changes"), [("llama-3.1-8b", {}), ("qwen3-30b-a3b", EXPERTS), ("qwen2.5-7b", {})])
def test_chip_answers_with_the_bytes_that_were_written(tmp_path, form, name, changes):
    folder, _, total = made(tmp_path, form, name=name, **changes)
    d = library.find(str(folder))
    assert d.dtype == {"w4a16": "int4", "awq": "int4", "w8a8": "w8a8"}.get(form, "fp8")
    assert d.weight_bytes(replace(precision(d.dtype), per_layer=True)) == pytest.approx(total, rel=0.01)


def test_tensors_have_the_shapes_of_the_format(tmp_path):
    q = "model.layers.1.self_attn.k_proj"  # 128 outputs, 256 inputs
    _, found, _ = made(tmp_path, "w4a16")
    assert (found[f"{q}.weight_packed"].shape, found[f"{q}.weight_packed"].dtype) == ((128, 32), torch.int32)
    assert (found[f"{q}.weight_scale"].shape, found[f"{q}.weight_shape"].tolist()) == ((128, 2), [128, 256])
    _, found, _ = made(tmp_path, "awq")
    assert found[f"{q}.qweight"].shape == (256, 16)
    assert (found[f"{q}.qzeros"].shape, found[f"{q}.scales"].shape) == ((2, 16), (2, 128))
    _, found, _ = made(tmp_path, "fp8-block")
    assert (found[f"{q}.weight"].dtype, found[f"{q}.weight_scale_inv"].shape) == (torch.float8_e4m3fn, (1, 2))
    _, found, _ = made(tmp_path, "w8a8")
    assert (found[f"{q}.weight"].dtype, found[f"{q}.weight_scale"].shape) == (torch.int8, (128, 1))
    assert found["lm_head.weight"].dtype == torch.bfloat16
    assert found["model.norm.weight"].eq(1).all()


def test_values_are_random_and_finite(tmp_path):
    _, found, _ = made(tmp_path, "fp8-block")
    weight = found["model.layers.0.mlp.up_proj.weight"].float()
    assert weight.isfinite().all()
    scale = found["model.layers.0.mlp.up_proj.weight_scale_inv"]
    assert (weight.std() * scale.mean()).item() == pytest.approx(0.02, rel=0.05)
    _, packed, _ = made(tmp_path, "w4a16")
    words = packed["model.layers.0.mlp.up_proj.weight_packed"]
    values = torch.stack([(words >> shift) & 15 for shift in range(0, 32, 4)])
    assert values.float().std().item() == pytest.approx(4.6, rel=0.02)


def test_compressed_tensors_itself_builds_the_same(tmp_path):
    """Names, shapes and kinds of the tensors, against those that the library makes of a model."""
    compressed = pytest.importorskip("compressed_tensors")
    import transformers
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    folder, found, _ = made(tmp_path, "w4a16")
    raw = json.loads((folder / "config.json").read_text())
    said = raw.pop("quantization_config")
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**raw), dtype=torch.bfloat16
    )
    wanted = QuantizationConfig(**{**said, "quantization_status": "frozen"})
    apply_quantization_config(model, wanted)
    for name, p in model.named_parameters():
        if name.endswith("scale"):
            p.data.fill_(0.01)
    compressed.ModelCompressor(quantization_config=wanted).compress_model(model)
    theirs = {name: (tuple(t.shape), t.dtype) for name, t in model.state_dict().items()}
    assert {name: (tuple(t.shape), t.dtype) for name, t in found.items()} == theirs


def test_fewer_layers_and_refusals(tmp_path, capsys):
    _, found, _ = made(tmp_path, "w4a16", "--layers", "1")
    assert not any("layers.1." in name for name in found)
    assert make_quantised.main([config(tmp_path), "w4a16", str(tmp_path / "w4a16")]) == 2
    assert "exists; remove it" in capsys.readouterr().err
    assert make_quantised.main([config(tmp_path, intermediate_size=320), "awq", str(tmp_path / "odd")]) == 2
    assert "does not divide the 320 inputs of model.layers.0.mlp.down_proj" in capsys.readouterr().err
    assert not (tmp_path / "odd").exists()
    assert make_quantised.main(["gpt-oss-20b", "awq", str(tmp_path / "oss")]) == 2
    assert "only language models with dense layers or separate experts" in capsys.readouterr().err
