"""The command line, in process: what it prints, what it exits with, and the one line that bad input is told."""

import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from round_profiles import round_profile, write_profile

import chip
from chip import cli, engines, hardware, ops
from chip.models import library


@pytest.fixture
def run(capsys, monkeypatch):
    """Run a command: (exit code, stdout, stderr)."""
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def call(*words, stdin=None):
        if stdin is not None:
            monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            code = cli.main([str(w) for w in words])
        except SystemExit as e:
            code = e.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def refused(run):
    """Run a command that must fail: the one line it tells."""

    def call(*words):
        code, out, err = run(*words)
        assert code == 2
        assert out == ""
        assert err.count("\n") == 1
        assert err.endswith("\n")
        assert "Traceback" not in err
        return err.rstrip("\n")

    return call


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


# --- JSON Lines


def test_lines_are_answered_in_order_and_errors_in_their_place(run):
    asked = [
        '{"model": "gpt2", "gpu": "a100", "batch": 1}',
        '{"model": "nosuch-model-at-all", "gpu": "a100"}',
        "not json",
        "[1, 2]",
        "",
        '{"model": "gpt2", "gpu": "a100", "bacth": 2}',
        '{"model": ["gpt2"], "gpu": "a100"}',
        '{"model": "gpt2", "gpu": "a100", "batch": 0}',
        '{"model": "gpt2", "gpu": "a100", "batch": 3}',
    ]
    code, out, err = run("predict", "-", stdin="\n".join(asked))
    assert code == 1
    assert err == "chip: 6 lines could not be answered\n"
    answers = [json.loads(line) for line in out.splitlines()]
    assert [(a.get("line"), a.get("batch")) for a in answers] == [
        (None, 1), (2, None), (3, None), (4, None), (6, None), (7, None), (8, None), (None, 3),
    ]  # fmt: skip
    told = [a["error"] for a in answers if "error" in a]
    assert told[0].startswith("no model 'nosuch-model-at-all'; ")
    assert told[1:] == [
        "the line is not JSON",
        "a scenario is a JSON object, got list",
        "unknown key 'bacth'; did you mean 'batch'?",
        "model must be text, got \"['gpt2']\"",
        "batch must be between 1 and 1000000, got 0",
    ]


def test_lines_without_errors(run):
    code, out, err = run("predict", "-", stdin='{"model": "gpt2"}\n{"model": "opt-125m"}\n')
    assert (code, err) == (0, "")
    assert [json.loads(line)["model"] for line in out.splitlines()] == ["gpt2", "opt-125m"]
    assert run("predict", "-", stdin="") == (0, "", "")


def test_options_stand_in_for_what_a_line_leaves_out(run):
    lines = '{"model": "gpt2"}\n{"model": "gpt2", "gpu": "l4", "batch": 2}\n'
    _, out, _ = run("predict", "-", "--gpu", "a100", "--batch", "7", stdin=lines)
    assert [(a["gpu"], a["batch"]) for a in map(json.loads, out.splitlines())] == [("a100", 7), ("l4", 2)]
    _, out, _ = run("estimate", "-", "--gpu", "a100", stdin='{"op": "add", "rows": 1, "cols": 1}\n')
    assert json.loads(out)["gpu"] == "a100"


def test_a_line_answers_as_the_command_does(run):
    _, line, _ = run("predict", "-", stdin='{"model": "gpt2", "gpu": "a100", "engine": "hf-graph", "dtype": "fp16"}\n')
    _, document, _ = run("predict", "gpt2", "--gpu", "a100", "--engine", "hf-graph", "--dtype", "fp16", "--json")
    whole = json.loads(document)
    assert whole.pop("nearest_validated")  # which would cost a sweep more than it says
    assert json.loads(line) == whole


def test_estimate_lines(run):
    asked = [
        '{"op": "linear", "gpu": "a100", "dtype": "bf16", "m": 8, "n": 4096, "k": 4096}',
        '{"op": "linear", "m": 8, "n": 4096}',
        '{"gpu": "a100"}',
        "[]",
        '{"op": "add", "gpu": ["a100"], "rows": 1, "cols": 1}',
    ]
    code, out, err = run("estimate", "-", stdin="\n".join(asked))
    assert code == 1
    assert err == "chip: 4 lines could not be answered\n"
    answers = [json.loads(line) for line in out.splitlines()]
    assert answers[0]["flops"] == 2 * 8 * 4096 * 4096
    assert [a["error"] for a in answers[1:]] == [
        "linear needs axis 'k'; its axes are m, n, k, dtype, weight_dtype, bias",
        "key 'op' is missing",
        "an operator is a JSON object, got list",
        "gpu must be a name such as h200, or a file, got \"['a100']\"",
    ]


def test_hostile_lines(run):
    lines = ["[" * 100_000, '{"model": "' + "x" * 2_000_000 + '"}', '{"batch": ' + "9" * 10_000 + "}", '"\\ud800"']
    lines += ['{"model": "gpt2", "gpu": "\\u0000.json"}', '{"model": "' + "y" * 5000 + '"}']
    code, out, _ = run("predict", "-", stdin="\n".join(lines))
    assert code == 1
    told = [json.loads(line)["error"] for line in out.splitlines()]
    assert told[0] == "the line is not JSON"
    assert told[1] == "the line is longer than 1000000 characters"
    assert len(told) == len(lines)
    assert all(len(t) < 400 for t in told)


def start(*words):
    env = {**os.environ, "PYTHONPATH": str(Path(chip.__file__).parents[1]), "PYTHONUNBUFFERED": ""}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-m", "chip", *words], stdin=pipe, stdout=pipe, stderr=pipe, env=env)


@pytest.mark.parametrize("command", ["predict", "estimate"])
def test_each_line_is_answered_before_the_next_is_asked(command):
    """Errors are the shortest lines: they would stay in a buffer the longest."""
    with start(command, "-") as p:
        timer = threading.Timer(30, p.kill)  # a line kept back fails, it does not hang
        timer.start()
        for number in (1, 2):
            p.stdin.write(b"[]\n")
            p.stdin.flush()
            assert json.loads(p.stdout.readline() or "{}").get("line") == number
        out, err = p.communicate(b'{"model": "gpt2", "\xff": 1}\n')  # not UTF-8: an error of its line
        timer.cancel()
        assert "error" in json.loads(out)
        assert (p.returncode, err) == (1, b"chip: 3 lines could not be answered\n")


@pytest.mark.parametrize("words", [["list", "models"], ["--help"], ["predict", "--help"]], ids=" ".join)
def test_a_reader_that_had_enough_is_no_error(words):
    with start(*words) as p:
        p.stdout.close()
        assert p.wait(60) == 0
        assert p.stderr.read() == b""


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
        "h200": "measured here",
        "h100": "measured elsewhere",
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
        "NVIDIA A100 SXM4 80GB\n  nvidia ampere 8.0, 108 SMs at 1.41 GHz, 80.0 GiB, L2 40.0 MiB, 400 W\n"
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
    assert rows["launch_graph"][1:3] == ["1", "us"]


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


# --- GPUs described by hand


def test_show_json_has_the_measured_ceilings(run, tmp_path):
    _, out, _ = run("show", "h200")
    _, document, _ = run("show", "h200", "--json")
    found = json.loads(document)["measured"]
    assert all(key in found for key in ("hbm_read", "matmul_bf16"))
    assert {line.split()[0] for line in out.splitlines() if line} >= set(found)
    for c in found.values():
        assert 0 < c["low"] <= c["value"] <= c["high"]
    (tmp_path / "mine.json").write_text(document)
    assert run("predict", "gpt2", "--gpu", tmp_path / "mine.json")[0] == 0


def test_a_datasheet_edited_by_hand_works(run, tmp_path):
    sheet = json.loads(run("show", "a100", "--json")[1])
    sheet["name"], sheet["title"] = "mine", "My GPU"
    sheet["ceilings"]["hbm"]["value"] *= 2
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(sheet))
    ask = ("--batch", 1, "--prompt", 16, "--output", 2, "--json")
    mine, its = (json.loads(run("predict", "llama-3.1-8b", "--gpu", g, *ask)[1]) for g in (path, "a100"))
    assert 0.4 <= mine["tpot_ms"] / its["tpot_ms"] < 0.8
    assert [n for n in mine["notes"] if n.startswith("mine was never calibrated: ceilings are the datasheet of My GPU")]


def test_by_capability_and_memory(run):
    for name in ("sm_90:80GB", "sm90:80", "cc9.0:80GiB", "SM_90:80gb"):
        a = json.loads(run("predict", "gpt2", "--gpu", name, "--json")[1])
        assert a["memory"]["capacity_bytes"] == 80 * 2**30
        assert [n for n in a["notes"] if n.startswith(f"{name} was never calibrated") and "h100" in n.lower()]


# --- bad input: one line each


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["predcit"], "chip: no command 'predcit'; did you mean predict?"),
        (["zzz"], "chip: no command 'zzz'; commands: predict, simulate, plan, estimate, list, show"),
        (["predict"], "chip predict: the following arguments are required: MODEL"),
        (["predict", "llama-3.1-8"], "chip predict: no model 'llama-3.1-8'; did you mean llama-3.1-8b"),
        (["predict", "zzzz"], "chip predict: no model 'zzzz'; `chip list models` shows the bundled ones;"),
        (["predict", ""], "chip predict: model must be a bundled name, a config.json, its folder or a hub id"),
        (["predict", "nosuch.json"], "chip predict: nosuch.json: no such file"),
        (
            ["predict", "gpt2", "--gpu", "h20000"],
            "chip predict: no GPU 'h20000'; did you mean h200 or gh200 or h20? Another GPU can",
        ),
        (
            ["predict", "gpt2", "--gpu", "zzzzzz"],
            "chip predict: no GPU 'zzzzzz'; `chip list gpus` shows the known ones.",
        ),
        (["predict", "gpt2", "--gpu", "nosuch.json"], "chip predict: nosuch.json: no such file"),
        (
            ["predict", "gpt2", "--gpu", "sm_11:80GB"],
            "no GPU of compute capability 1.1 to estimate from; known: 10.0, ",
        ),
        (["predict", "gpt2", "--gpu", "sm_90:0GB"], "'sm_90:0GB': memory must be between 1 GB and 1 PB"),
        (["predict", "gpt2", "--engine", "vlm"], "chip predict: no engine 'vlm'; did you mean vllm?"),
        (["predict", "gpt2", "--batch", "0"], "chip predict: batch must be between 1 and 1000000, got 0"),
        (["predict", "gpt2", "--batch", "-1"], "chip predict: batch must be between 1 and 1000000, got -1"),
        (["predict", "gpt2", "--batch", "two"], "chip predict: argument --batch: invalid int value: 'two'"),
        (["predict", "gpt2", "--prompt", "0"], "chip predict: prompt must be between 1 and 100000000, got 0"),
        (["predict", "gpt2", "--output", "0"], "chip predict: output must be between 1 and 100000000, got 0"),
        (["predict", "gpt2", "--output", "9" * 30], "chip predict: output must be between 1 and 100000000, got 999"),
        (["predict", "gpt2", "--dtype", "bf8"], "chip predict: dtype 'bf8' is not known; choose one of bf16, fp16"),
        (
            ["predict", "gpt2", "--gpu", "a100", "--dtype", "fp8", "--engine", "hf-eager"],
            "chip predict: a100 has no fp8 matrix rate; it has",
        ),
        (["predict", "gpt2", "--tp", "7"], "chip predict: --tp 7 does not divide the 12 attention heads of gpt2"),
        (["predict", "gpt2", "--bacth", "8"], "chip predict: no option or argument '--bacth'; did you mean --batch?"),
        (["predict", "gpt2", "--bat", "8"], "chip predict: no option or argument '--bat'; did you mean --batch?"),
        (["predict", "gpt2", "--zzz"], "chip predict: no option or argument '--zzz'; see `chip predict --help`"),
        (["predict", "gpt2", "more"], "chip predict: no option or argument 'more'; see"),
        (["predict", "-", "--trace"], "chip predict: --trace takes one MODEL, not scenarios from stdin"),
        (["estimate", "linaer"], "chip estimate: no operator 'linaer'; did you mean linear?"),
        (["estimate", "linear", "m=8", "n=8"], "chip estimate: linear needs axis 'k'; its axes are m, n, k"),
        (["estimate", "linear", "m"], "chip estimate: axes are given as axis=value, got 'm'"),
        (["estimate", "linear", "m="], "chip estimate: axes are given as axis=value, got 'm='"),
        (["estimate", "linear", "m=1", "m=2"], "chip estimate: axis 'm' is given twice"),
        (["estimate", "linear", "m=x", "n=8", "k=8"], "chip estimate: linear axis 'm' must be a whole number from 1"),
        (["estimate", "linear", "m=8", "n=8", "k=8", "dtype=bf8"], "chip estimate: linear dtype 'bf8' is not known"),
        (
            ["estimate", "linear", "m=8", "n=8", "k=8", "dtype=int4", "--gpu", "a100"],
            "chip estimate: a100 has no int4 matrix rate; it has",
        ),
        (["estimate", "linear", "gpu=h200", "m=8"], "chip estimate: 'gpu' is no axis; give --gpu"),
        (["estimate", "linear", "op=add", "m=8"], "chip estimate: 'op' is no axis; it is the first argument"),
        (["estimate", "-", "m=8"], "chip estimate: with - as OP, operators come from stdin; leave 'm=8' out"),
        (["list"], "chip list: the following arguments are required: what"),
        (["list", "model"], "chip list: argument what: invalid choice: 'model'"),
        (["show", "h2000"], "chip show: nothing is called 'h2000'; did you mean h200"),
        (["show", "zzzzzz"], "chip show: nothing is called 'zzzzzz'; `chip list models|gpus|ops|engines` shows"),
        (["show", "y" * 5000], "chip show: nothing is called 'yyy"),
    ],
    ids=lambda v: " ".join(v)[:60] if isinstance(v, list) else "",
)
def test_bad_input_is_told_in_one_line(refused, words, line):
    assert line in refused(*words)


CONFIGS = {
    "[1, 2": "is not JSON or is cut short",
    "": "is not JSON or is cut short",
    "[1, 2]": "a model config is a JSON object, got list",
    "{}": "field 'architectures' is missing or empty",
    json.dumps({**LLAMA, "architectures": ["MambaForCausalLM"]}): "architecture 'MambaForCausalLM' is not known",
    json.dumps({k: v for k, v in LLAMA.items() if k != "hidden_size"}): "field 'hidden_size' is missing",
    json.dumps({**LLAMA, "hidden_size": -8}): "hidden_size must be between 1 and 10000000, got -8",
    json.dumps({**LLAMA, "hidden_size": 0}): "hidden_size must be between 1 and 10000000, got 0",
    json.dumps({**LLAMA, "vocab_size": 10**18}): "vocab_size must be between 1 and 10000000, got 1000000000000000000",
    json.dumps({**LLAMA, "num_hidden_layers": "many"}): "num_hidden_layers must be a whole number, got 'many'",
    json.dumps({**LLAMA, "num_key_value_heads": 3}): "num_attention_heads 2 is not a multiple of num_key_value_heads 3",
    json.dumps({**LLAMA, "num_attention_heads": 3, "num_key_value_heads": 3}): "hidden_size 8 is not a multiple of",
}


@pytest.mark.parametrize("text", CONFIGS, ids=CONFIGS.values())
@pytest.mark.parametrize("command", ["predict", "show"])
def test_a_wrong_config_is_told_in_one_line(refused, tmp_path, text, command):
    path = tmp_path / "config.json"
    path.write_text(text)
    line = refused(command, path)
    assert line.startswith(f"chip {command}: {path}: ")
    assert CONFIGS[text] in line


def test_extra_keys_of_a_config_are_fine(run, tmp_path):
    path = tmp_path / "extra.json"
    path.write_text(json.dumps({**LLAMA, "my_note": "?", "rope_theta": 5e5}))
    assert run("predict", path, "--gpu", "a100", "--prompt", 4, "--output", 2)[0] == 0


def test_a_folder_without_a_config(refused, tmp_path):
    assert refused("predict", tmp_path) == f"chip predict: {tmp_path}: the folder holds no config.json"


def test_an_unknown_architecture_names_the_way_out(refused, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**LLAMA, "architectures": ["MambaForCausalLM"]}))
    assert "with torch and transformers installed, --trace takes its operators" in refused("predict", path)


def edited(name, edit):
    sheet = json.loads((hardware.SPECS / f"{name}.json").read_text())
    edit(sheet)
    return json.dumps(sheet)


def set_in(*path, value):
    def edit(sheet):
        for key in path[:-1]:
            sheet = sheet[key]
        sheet[path[-1]] = value

    return edit


def drop(*path):
    def edit(sheet):
        for key in path[:-1]:
            sheet = sheet[key]
        del sheet[path[-1]]

    return edit


SHEETS = {
    "broken": ("{", "is not JSON or is cut short"),
    "list": ("[]", "a GPU's datasheet is a JSON object"),
    "empty": ("{}", "has no schema; expected chip.hardware_spec/1"),
    "other": ('{"schema": "chip.run/1"}', "is a chip.run file; expected chip.hardware_spec"),
    "newer": (edited("l4", set_in("schema", value="chip.hardware_spec/2")), "is newer than this chip reads"),
    "typo": (edited("l4", set_in("vendr", value="me")), "unknown field 'vendr'; did you mean 'vendor'?"),
    "typo inside": (
        edited("l4", set_in("ceilings", "hbm", "valeu", value=1)),
        "ceilings.hbm: unknown field 'valeu'; did you mean 'value'?",
    ),
    "missing": (edited("l4", drop("memory_bytes")), "field 'memory_bytes' is missing"),
    "no hbm": (edited("l4", drop("ceilings", "hbm")), "ceilings.hbm (memory bandwidth, bytes per second) is missing"),
    "no fp32": (edited("l4", drop("ceilings", "matmul_fp32")), "ceilings.matmul_fp32 (FLOP per second outside"),
    "text": (edited("l4", set_in("ceilings", "hbm", "value", value="fast")), "expected a number, got str 'fast'"),
    "zero": (edited("l4", set_in("ceilings", "hbm", "value", value=0)), "ceilings.hbm.value must be a positive number"),
    "negative": (edited("l4", set_in("memory_bytes", "value", value=-1)), "memory_bytes.value must be a positive"),
    "nan": (edited("l4", set_in("ceilings", "matmul_bf16", "value", value=float("nan"))), "NaN is not a number"),
    "huge": (edited("l4", set_in("power_w", "value", value=10**500)), "a number too long"),
    "link": (
        edited("l4", set_in("links", "pcie", "bytes_per_s", "value", value=0)),
        "links.pcie.bytes_per_s.value must be a positive number, got 0",
    ),
}


@pytest.mark.parametrize("case", SHEETS)
def test_a_wrong_datasheet_is_told_in_one_line(refused, tmp_path, case):
    text, line = SHEETS[case]
    path = tmp_path / "mine.json"
    path.write_text(text)
    told = refused("predict", "gpt2", "--gpu", path)
    assert told.startswith(f"chip predict: {path}")
    assert line in told
    assert len(told) < 300 + len(str(path))


PROFILES = {
    "newer": (lambda p: p.update(schema="chip.hardware_profile/2"), "is newer than this chip reads"),
    "no data": (lambda p: p.pop("data"), "field 'data' is missing"),
    "typo": (lambda p: p["data"].update(unts=3), "data: unknown field 'unts'; did you mean 'units'?"),
    "upside down": (
        lambda p: p["data"]["ceilings"]["hbm_read"].update(low=2e12),
        "data.ceilings.hbm_read must have 0 < low <= value <= high",
    ),
    "no copy": (lambda p: p["data"]["ceilings"].pop("hbm_copy"), "data.ceilings.hbm_copy is missing; run `chip calib"),
    "no memory": (lambda p: p["data"].update(memory_bytes=0), "data.memory_bytes must be a positive number, got 0"),
    "factor": (
        lambda p: p["data"]["factors"].update(
            gemm_memory={"value": 0, "low": 0, "high": 0, "unit": "1", "method": "none"}
        ),
        "data.factors.gemm_memory must have 0 < low <= value <= high",
    ),
}


@pytest.mark.parametrize("case", PROFILES)
def test_a_wrong_profile_is_told_in_one_line(refused, tmp_path, case):
    edit, line = PROFILES[case]
    path = tmp_path / "mine.json"
    write_profile(path, round_profile())
    envelope = json.loads(path.read_text())
    edit(envelope)
    path.write_text(json.dumps(envelope))
    assert line in refused("predict", "gpt2", "--gpu", path)
