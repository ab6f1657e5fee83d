"""`chip generate`, and `chip bench` and `chip capture` with the native engine, as commands."""

import json

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from tiny_models import TEMPLATE, save_folder  # noqa: E402
from tiny_native import by_hf, tiny  # noqa: E402

from chip.files import artifact  # noqa: E402
from chip.lab.run.native.engine import NativeEngine  # noqa: E402
from chip.lab.run.native.generate import TextStream  # noqa: E402
from chip.show import cli  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("tiny"))


def test_a_prompt_is_streamed_through_the_chat_template(folder, capsys):
    words = ["generate", str(folder), "--prompt-text", "hello world", "--system", "be brief", "--max-tokens", "9"]
    assert cli.main([*words, "--ignore-eos", "--device", "cpu"]) == 0
    streamed = capsys.readouterr().out
    assert cli.main([*words, "--ignore-eos", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (answer,) = found["requests"]
    assert answer["text"] == streamed.removesuffix("\n")
    assert len(answer["tokens"]) == 9
    assert found["kernels"] == "torch"
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello world"}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert answer["prompt_tokens"] == len(ids)
    assert "<|assistant|>" in TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert answer["tokens"] == by_hf(model, ids, 9)


def test_many_requests_are_kept_as_they_finish(folder, tmp_path, capsys):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"prompt": "the cat sat"}, {"tokens": [7, 8, 9], "name": "long", "max_tokens": 20},
             {"prompt": "hello", "temperature": 1.0, "seed": 4, "top_k": 5},
             {"tokens": [99], "name": "odd"}]  # fmt: skip
    file.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    words = ["generate", str(folder), "--requests", str(file), "--max-tokens", "6", "--ignore-eos", "--device", "cpu"]
    assert cli.main([*words, "-o", str(out), "--json"]) == 1  # one of them failed
    document = json.loads(capsys.readouterr().out)
    kept = {r["name"]: r for r in artifact.read_lines(out)}
    assert set(kept) == {"request 1", "long", "request 3", "odd"}
    assert list(kept)[-1] == "long"  # the last to finish
    assert kept["odd"]["reason"] == "odd: token 99 is not in the vocabulary of 20"
    assert [len(kept[n]["tokens"]) for n in ("request 1", "long", "request 3")] == [6, 20, 6]
    assert {r["name"] for r in document["requests"]} == set(kept)
    assert cli.main(words) == 1
    told = capsys.readouterr()
    assert "request 1" in told.out
    assert "chip generate: odd: token 99" in told.err


def test_what_had_finished_survives_an_interrupt(folder, tmp_path, capsys, monkeypatch):
    file, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    file.write_text('{"tokens": [7], "max_tokens": 2, "name": "short"}\n{"tokens": [8], "name": "long"}\n')
    step = NativeEngine.step

    def interrupted(self):
        if self.steps == 4:
            raise KeyboardInterrupt
        return step(self)

    monkeypatch.setattr(NativeEngine, "step", interrupted)
    words = ["generate", str(folder), "--requests", str(file), "-o", str(out), "--ignore-eos", "--device", "cpu"]
    assert cli.main([*words, "--json"]) == 130
    told = capsys.readouterr()
    assert [r["name"] for r in artifact.read_lines(out)] == ["short"]
    document = json.loads(told.out)
    assert document["interrupted"]
    assert [(r["name"], r["status"], len(r["tokens"])) for r in document["requests"]] == [
        ("short", "ok", 2), ("long", "unfinished", 4)
    ]  # fmt: skip
    assert told.err == "chip generate: interrupted; 1 of 2 requests had finished\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1: is not JSON"),
        ("[1]", "line 1: a request is a JSON object"),
        ('{"prompt": "a", "max_token": 3}', "line 1: unknown field 'max_token'; known: "),
        ('{"max_tokens": 3}', "line 1: give prompt or tokens"),
        ('{"prompt": 3}', "line 1: prompt must be text"),
        ('{"tokens": []}', "line 1: tokens must be a list of whole numbers"),
        ('{"tokens": [1.5]}', "line 1: tokens must be a list of whole numbers"),
        ('{"prompt": "a", "max_tokens": true}', "line 1: max_tokens must be a whole number"),
        ('{"prompt": "a", "top_p": 2}', "line 1: top_p must be above 0 and at most 1"),
        ("", "holds no request"),
        ('{"prompt": "a", "name": "x"}\n{"prompt": "b", "name": "x"}', "two requests are called 'x'"),
    ],
)
def test_a_bad_file_of_requests_is_one_line(folder, tmp_path, capsys, line, says):
    file = tmp_path / "in.jsonl"
    file.write_text(line)
    assert cli.main(["generate", str(folder), "--requests", str(file), "--device", "cpu"]) == 2
    told = capsys.readouterr()
    assert says in told.err
    assert told.err.count("\n") == 1
    assert not told.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "give --prompt-text or --requests FILE, one of them"),
        (["--prompt-text", "a", "--requests", "x"], "give --prompt-text or --requests FILE, one of them"),
        (["--requests", "none.jsonl"], "none.jsonl: no such file"),
        (["--prompt-text", "a", "--temperature", "-1"], "options: temperature must be between 0 and 100, got -1.0"),
        (["--prompt-text", "a", "-o", "."], ".: is a folder, a file was expected"),
    ],
)
def test_options_that_cannot_be_are_one_line(folder, capsys, words, says):
    assert cli.main(["generate", str(folder), *words, "--device", "cpu"]) == 2
    assert capsys.readouterr().err == f"chip generate: {says}\n"


def test_a_config_alone_takes_tokens_not_text(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny("qwen3-0.6b")))
    assert cli.main(["generate", str(config), "--prompt-text", "hello", "--device", "cpu"]) == 2
    assert "comes without a tokenizer; give the request as tokens" in capsys.readouterr().err
    file = tmp_path / "in.jsonl"
    file.write_text('{"tokens": [5, 6, 7]}\n')
    words = ["generate", str(config), "--requests", str(file), "--max-tokens", "4", "--device", "cpu", "--json"]
    assert cli.main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights"] == "random"
    assert len(found["requests"][0]["tokens"]) == 4


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens, skip_special_tokens):
        return bytes(tokens).decode("utf-8", "replace")


def test_a_character_of_several_tokens_is_told_whole():
    stream = TextStream(Bytes())
    text = "aé€😀."
    pieces = [stream.add(b) for b in text.encode()]
    assert "".join(pieces) + stream.end() == text
    assert "�" not in "".join(pieces)
    cut = TextStream(Bytes())
    for b in "x€".encode()[:-1]:
        cut.add(b)
    assert cut.end() == "�"


def test_bench_runs_it_like_any_engine(tmp_path, capsys):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny("llama-3.1-8b")))
    words = [
        "bench",
        str(config),
        "--engine",
        "native",
        "--points",
        "1x20,3x20",
        "--output",
        "5",
        "--energy-seconds",
        "0",
    ]
    words += ["--device", "cpu", "--repeats", "2", "-o", str(tmp_path / "runs.json"), "--json"]
    assert cli.main([*words, "--engine-setting", "step_tokens=16"]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert [r["batch"] for r in runs] == [1, 3]
    assert all(r["engine"] == "native" and r["status"] == "ok" for r in runs)
    assert cli.main([*words, "--engine-setting", "kernel=torch"]) == 1
    assert "it has kernels, graphs, overlap, page_tokens, step_tokens" in capsys.readouterr().err
    assert cli.main(["bench", str(config), "--engine", "native", "--prompt", "300", "--device", "cpu", "--output", "2",
                     "--energy-seconds", "0", "-o", str(tmp_path / "long.json")]) == 1  # fmt: skip
    assert "the model has 256 positions" in capsys.readouterr().err


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_capture_records_a_step(tmp_path, capsys, phase):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tiny("llama-3.1-8b")))
    words = ["capture", str(config), "--engine", "native", "--phase", phase, "--batch", "2", "--prompt", "12"]
    assert cli.main([*words, "--device", "cpu", "-o", str(tmp_path / "trace.json"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["launches"] > 20
