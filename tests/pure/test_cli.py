"""The command line, in process: help, `predict`, `estimate`, `list` and `show`."""

import json
import re

import pytest

import chip
from chip import engines, ops
from chip.decoders import library
from chip.hardware import gpus as hardware
from chip.show import cli

# --- help


def test_overview(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert out.startswith("CHIP tells how fast a language model will run on a GPU")
    for name in cli.commands():
        assert f"\n  {name} " in out
    assert run("help")[1] == out
    code, shown, _ = run()
    assert (code, shown) == (2, out)


def test_version(run):
    assert run("--version") == (0, f"chip {chip.__version__}\n", "")
    assert run("-V") == run("--version")


@pytest.mark.parametrize("name", cli.commands())
def test_help_teaches(run, name):
    code, out, err = run(name, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: chip {name}")
    examples = out.split("examples:\n")[1]
    assert f"  chip {name}" in examples or f"| chip {name} -" in examples
    assert "--json" in out


EXAMPLES = [
    line.split("#")[0].split()[1:]
    for name in ("predict", "estimate", "list", "show")
    for line in cli.command(name).EPILOG.splitlines()
    if line.startswith("  chip ") and ">" not in line and "my-" not in line
]


@pytest.mark.parametrize("words", EXAMPLES, ids=" ".join)
def test_every_example_runs(run, words):
    code, out, _ = run(*words)
    assert code == 0
    assert len(out) > 40


# --- predict


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip


def test_predict_json_is_one_document(run, round_gpu):
    code, out, err = run("predict", "qwen3-0.6b", "--gpu", round_gpu, "--batch", 4, "--json")
    assert (code, err) == (0, "")
    a = json.loads(out)
    assert (a["model"], a["gpu"], a["engine"], a["batch"]) == ("qwen3-0.6b", round_gpu, "vllm", 4)
    assert (a["prompt"], a["output"], a["dtype"], a["tp"]) == (1024, 128, "bf16", 1)


def test_one_token_has_no_second_table(run):
    _, out, _ = run("predict", "gpt2", "--gpu", "a100", "--output", 1)
    assert "\nTPOT" not in out
    assert "decode step" not in out


def test_several_gpus_are_named(run):
    _, out, _ = run("predict", "llama-3.1-70b", "--gpu", "h100", "--tp", 4)
    assert out.startswith("llama-3.1-70b on 4 x h100 (tp 4), vllm, bf16: 1 x (1024 in, 128 out)\n")


def test_models_are_found_as_name_file_and_folder(run, tiny):
    answers = [
        json.loads(run("predict", m, "--gpu", "a100", "--prompt", 4, "--output", 2, "--json")[1])
        for m in (tiny, tiny / "config.json")
    ]
    assert answers[0] == answers[1]
    assert answers[0]["model"] == "tiny"
    upper = json.loads(run("predict", "GPT2", "--gpu", "A100", "--json")[1])
    assert upper["ttft_ms"] == json.loads(run("predict", "gpt2", "--gpu", "a100", "--json")[1])["ttft_ms"]


# --- estimate


def test_estimate_text(run, round_gpu):
    code, out, err = run("estimate", "linear", "m=8", "n=4096", "k=4096", "bias=true", "--gpu", round_gpu)
    assert (code, err) == (0, "")
    title, time, *rest, achieves = out.replace(round_gpu, "GPU").splitlines()
    assert title == "linear m=8 n=4096 k=4096 dtype=bf16 bias=true on GPU"
    assert re.fullmatch(r"  time       [\d.]+ us  \([\d.]+ us - [\d.]+ us, 90 %\)", time)
    assert rest == [
        "  bound      memory, from roofline",
        "  work       268 MFLOP, 33.7 MB",
        "  intensity  7.968 FLOP/B; ridge point 100 FLOP/B",
    ]
    assert re.fullmatch(r"  achieves   [\d.]+ TFLOP/s, \d+ GB/s", achieves)


def test_estimate_json(run, round_gpu):
    _, out, _ = run("estimate", "rms_norm", "rows=16", "cols=64", "dtype=fp16", "--gpu", round_gpu, "--json")
    a = json.loads(out)
    moved = 2 * (16 * 64 + 64 + 16 * 64)
    us, (low, high) = a.pop("us"), a.pop("interval")
    assert 1 + moved / 1e6 <= us < 10, "no less than a launch and its bytes"
    assert low <= us <= high
    assert a == {
        "schema": "chip.estimate/1", "op": "rms_norm", "gpu": round_gpu,
        "axes": {"rows": 16, "cols": 64, "dtype": "fp16"},
        "bound": "launch", "source": "roofline", "flops": 4 * 16 * 64, "bytes": moved,
        "intensity": pytest.approx(4 * 16 * 64 / moved, abs=1e-4), "ridge_flop_per_byte": 10,
    }  # fmt: skip


def test_the_smallest_operators_have_a_time(run):
    for words in (["add", "rows=1", "cols=1"], ["all_reduce", "rows=1", "cols=1", "ranks=1"]):
        code, out, err = run("estimate", *words, "--gpu", "a100")
        assert (code, err) == (0, "")
        assert "time" in out


# --- list and show


@pytest.mark.parametrize(
    ("what", "names"),
    [("models", library.names()), ("gpus", hardware.spec_names()), ("ops", ops.names()), ("engines", engines.names())],
)
def test_list(run, what, names):
    code, out, err = run("list", what)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("name ")
    assert [line.split()[0] for line in lines[2 : 2 + len(names)]] == list(names)
    assert max(map(len, lines)) <= 140
    code, out, _ = run("list", what, "--json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(names)


def test_list_has_what_was_promised():
    assert len(library.names()) >= 25
    assert len(hardware.spec_names()) >= 25


def test_list_says_what_each_gpu_rests_on(run):
    rows = {row["name"]: row for row in json.loads(run("list", "gpus", "--json")[1])}
    assert {name: rows[name]["rests_on"] for name in ("h200", "h100", "rtx-4090")} == {
        "h200": "measured",
        "h100": "imported",
        "rtx-4090": "datasheet",
    }
    assert [rows[name]["too_old_for"] for name in ("t4", "v100", "gtx-1080-ti", "mi300x")] == [
        [],
        ["vllm"],
        ["vllm"],
        [],
    ]
    line = next(line for line in run("list", "gpus")[1].splitlines() if line.startswith("gtx-1080-ti"))
    assert line.endswith("datasheet, no vllm")


def test_show_model(run):
    code, out, err = run("show", "mixtral-8x7b")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
mixtral-8x7b (MixtralForCausalLM)
  parameters  46,702,792,704, 12,879,925,248 active
  weights     87.0 GiB in bf16
  KV cache    128 KiB a token in bf16
  hidden      4096, vocabulary 32000, context 32768
  32 layers   attention heads=32 kv_heads=8 head_dim=128 rope_dim=128
              experts   experts=8 top_k=2 intermediate=14336
"""
    )
    a = json.loads(run("show", "mixtral-8x7b", "--json")[1])
    assert (a["parameters"], a["layers"][0]["count"]) == (46_702_792_704, 32)
    assert a["config"]["num_local_experts"] == 8
    assert "KV cache    68.62 KiB" in run("show", "deepseek-v3")[1]  # the latent, as engines cache it


def test_show_gpu(run):
    code, out, err = run("show", "a100")
    assert (code, err) == (0, "")
    assert out.startswith(
        "NVIDIA A100 SXM4 80GB\n  nvidia ampere 8.0, 108 SMs at 1.41 GHz, 80.0 GiB (79.25 usable), L2 40.0 MiB, 400 W\n"
    )
    assert "\nhbm             2.04 TB/s\n" in out
    assert json.loads(run("show", "a100", "--json")[1])["schema"] == "chip.hardware_spec/1"
    assert run("show", "a100-80gb")[1] == out
    assert "estimated from NVIDIA H100" in run("show", "sm_90:80GB")[1]


def test_show_measured_gpu(run, round_gpu):
    code, out, _ = run("show", round_gpu)
    assert code == 0
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert rows["hbm_read"][1:6] == ["2.04", "TB/s", "1", "TB/s", "49%"]
    assert rows["launch_graph"][1:4] == ["-", "1", "us"]


def test_show_op(run):
    code, out, err = run("show", "rms_norm")
    assert (code, err) == (0, "")
    assert (
        out
        == """\
rms_norm
Root-mean-square normalisation over the columns, with weight.

axis   type  default
-----  ----  ----------
rows   int   (required)
cols   int   (required)
dtype  str   bf16
"""
    )
    assert json.loads(run("show", "linear", "--json")[1])["axes"]["bias"] == {"type": "bool", "default": False}


def test_show_engine(run):
    code, out, _ = run("show", "hf-graph")
    assert code == 0
    assert "StaticCache" in out
    assert json.loads(run("show", "hf-graph", "--json")[1])["name"] == "hf-graph"


def test_show_a_folder_and_a_file(run, tiny):
    assert run("show", tiny)[1] == run("show", tiny / "config.json")[1]
    assert run("show", tiny)[1].startswith("tiny (LlamaForCausalLM)\n  parameters  ")
