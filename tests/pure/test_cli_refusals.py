"""GPUs described by hand, and the one line that bad input is told."""

import json

import pytest
from round_profiles import round_profile, write_profile
from test_cli import LLAMA

from chip.hardware import gpus as hardware

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
    (note,) = [n for n in mine["notes"] if n.startswith("mine was never calibrated")]
    assert "published on a100, of the same chip" in note


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
    json.dumps({**LLAMA, "architectures": ["UnheardForCausalLM"]}): "architecture 'UnheardForCausalLM' is not known",
    json.dumps({k: v for k, v in LLAMA.items() if k != "hidden_size"}): "field 'hidden_size' is missing",
    json.dumps({**LLAMA, "hidden_size": -8}): "hidden_size must be between 1 and 20000000, got -8",
    json.dumps({**LLAMA, "hidden_size": 0}): "hidden_size must be between 1 and 20000000, got 0",
    json.dumps({**LLAMA, "vocab_size": 10**18}): "vocab_size must be between 1 and 20000000, got 1000000000000000000",
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
    path.write_text(json.dumps({**LLAMA, "architectures": ["UnheardForCausalLM"]}))
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
