"""What the native engine cannot serve is refused in one line: configs, weights, requests, settings."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_native import engine_of, tiny  # noqa: E402

from chip.lab.run.native import spec, weights  # noqa: E402
from chip.lab.run.native.requests import NativeRequest, SamplingParams  # noqa: E402
from chip.types import ChipError  # noqa: E402


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, "architecture 'GemmaForCausalLM': native runs LlamaForCausalLM"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}},
            "rope_type 'yarn': native knows default, linear, llama3",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling: field 'factor' is missing"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}}, "low_freq_factor 4 must be"),
        ({"rope_theta": -1.0, "rope_scaling": None}, "rope_theta must be above 0"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_key_value_heads": 3}, "not a multiple"),
        ({"hidden_size": "64"}, "hidden_size must be a whole number"),
        ({"eos_token_id": "end"}, "eos_token_id must be a token"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
    ],
)
def test_a_config_that_cannot_be_served_is_one_line(change, says):
    with pytest.raises(ChipError, match=r"^config\.json: ") as e:
        spec.read({**tiny("llama-3.1-8b"), **change}, "config.json")
    assert says in str(e.value)
    assert "\n" not in str(e.value)


def damaged(saved, tmp_path, harm):
    _, folder, config = saved("llama-3.1-8b")
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    harm(tmp_path)
    return lambda: engine_of(tmp_path, config)


def shards(folder):
    return sorted(folder.glob("*.safetensors"))


def truncate(folder):
    path = shards(folder)[1]
    path.write_bytes(path.read_bytes()[:-100])


def rewrite(folder, change):
    from safetensors.torch import load_file, save_file

    path = shards(folder)[0]
    held = load_file(path)
    name = next(n for n in sorted(held) if n.endswith("weight"))
    held[name] = change(held[name])
    save_file({n: t for n, t in held.items() if t is not None}, path)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: shards(f)[1].unlink(), "the shard is missing though model.safetensors.index.json names it"),
        (truncate, "is no whole safetensors file"),
        (lambda f: shards(f)[0].write_bytes(b"junk"), "is no whole safetensors file"),
        (lambda f: (f / weights.INDEX).write_text('{"weight_map": 3}'), "weight_map must name the shard"),
        (lambda f: (f / weights.INDEX).write_text('{"weight_map": {"a": "../x"}}'), "weight_map must name the shard"),
        (lambda f: (f / weights.INDEX).write_text("{"), "is not JSON or is cut short"),
        (lambda f: rewrite(f, lambda t: None), "the weights lack model."),
        (lambda f: rewrite(f, lambda t: t[:-1].contiguous()), "but config.json makes it"),
        (lambda f: rewrite(f, lambda t: t.to(torch.int8)), "native reads bf16, fp16 and fp32"),
        (lambda f: [p.unlink() for p in f.glob("*.safetensors*")], "holds no *.safetensors"),
    ],
)
def test_weights_that_are_not_whole_are_one_line(saved, tmp_path, harm, says):
    load = damaged(saved, tmp_path, harm)
    with pytest.raises(ChipError) as e:
        load()
    assert says in str(e.value)
    assert str(tmp_path) in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("request_", "settings", "says"),
    [
        (
            NativeRequest("a", (1,) * 100, SamplingParams(100)),
            {},
            "a: prompt 100 + output 100 tokens exceed the context of 128",
        ),
        (
            NativeRequest("a", (1,) * 60, SamplingParams(40)),
            {"kv_tokens": 64},
            "a: 100 tokens exceed the KV cache of 64",
        ),
        (NativeRequest("a", ()), {}, "a: the prompt is empty"),
        (NativeRequest("a", (300,)), {}, "a: token 300 is not in the vocabulary of 256"),
        (NativeRequest("a", (1,), SamplingParams(0)), {}, "max_tokens must be at least 1"),
        (NativeRequest("a", (1,), SamplingParams(temperature=-1)), {}, "temperature must be between 0 and 100"),
        (NativeRequest("a", (1,), SamplingParams(top_p=0)), {}, "top_p must be above 0"),
    ],
)
def test_a_request_that_cannot_be_served_is_one_line(saved, request_, settings, says):
    _, folder, config = saved("llama-3.1-8b")
    with pytest.raises(ChipError) as e:
        engine_of(folder, config, **settings).add(request_)
    assert says in str(e.value)


def test_settings_and_formats_that_cannot_be_served(saved):
    _, folder, config = saved("llama-3.1-8b")
    with pytest.raises(ChipError, match="--dtype fp8: native computes bf16, fp16, fp32"):
        engine_of(folder, config, dtype="fp8")
    with pytest.raises(ChipError, match="quantization_config"):
        engine_of(folder, {**config, "quantization_config": {"quant_method": "fp8"}})
    with pytest.raises(ChipError, match="page_tokens must be at least 1"):
        engine_of(folder, config, page_tokens=0)
