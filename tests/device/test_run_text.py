"""Real weights and real words: a tiny model and tokenizer made here, and everything that can be wrong with a folder."""

import json
import time

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import save_config, save_folder  # noqa: E402

from chip.files import runs  # noqa: E402
from chip.lab.run import text  # noqa: E402
from chip.show import cli  # noqa: E402
from chip.types import ChipError  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_folder(tmp_path_factory.mktemp("tiny") / "my-model")


def bench(folder, *words):
    return cli.main(["bench", str(folder), "--device", "cpu", "--output", "6", "--repeats", "2", *words])


def test_the_chat_template_speaks_for_both(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = text.encode(folder, "who are you", "be brief", False)
    assert tokenizer.decode(ids) == "<|system|> be brief <|user|> who are you <|assistant|>"
    assert tokenizer.decode(text.encode(folder, "who are you", "", False)).startswith("<|user|>")
    assert tokenizer.decode(text.encode(folder, "who are you", "", True)) == "who are you"


@pytest.mark.parametrize("engine", ["hf-eager", "hf-graph"])
def test_real_text_goes_in_and_comes_out(folder, tmp_path, monkeypatch, capsys, engine):
    monkeypatch.chdir(tmp_path)
    words = ("--engine", engine, "--prompt-text", "the cat sat on", "--system", "be brief", "--batch", "1,2")
    assert bench(folder, *words) == 0
    found = runs.read(tmp_path / "artifacts" / "llm.json")[1].runs
    prompt = text.encode(folder, "the cat sat on", "be brief", False)
    assert [(r.scenario.batch, r.scenario.prompt) for r in found] == [(1, len(prompt)), (2, len(prompt))]
    assert {r.weights for r in found} == {"files"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    said = model.generate(torch.tensor([prompt]), max_new_tokens=6, min_new_tokens=6, do_sample=False)[0, len(prompt) :]
    stop = said.tolist().index(2) if 2 in said.tolist() else 6
    assert found[0].text == found[1].text == (tokenizer.decode(said[:stop], skip_special_tokens=True),)
    assert f"said: {found[0].text[0]}" in capsys.readouterr().out


def test_an_answer_ends_where_the_model_ended_it(folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    cat, mat, end = tokenizer.convert_tokens_to_ids(["cat", "mat", "</s>"])
    assert text.decode(folder, [[cat, end, mat], [cat, end, cat], [mat, mat, mat]]) == ("cat", "mat mat mat")


def test_no_chat_template(tmp_path, capsys):
    plain = save_folder(tmp_path / "plain", template="")
    file = ("-o", str(tmp_path / "llm.json"))
    assert bench(plain, "--engine", "hf-eager", "--prompt-text", "hello world", *file) == 2
    said = f"chip bench: {plain}: its tokenizer has no chat template; give the text as it is with --raw-prompt"
    assert capsys.readouterr().err.splitlines()[-1] == said
    assert bench(plain, "--engine", "hf-eager", "--prompt-text", "hello world", "--raw-prompt", *file) == 0


def test_a_template_that_takes_no_system_prompt(tmp_path):
    strict = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}hello"
    folder = save_folder(tmp_path / "strict", template=strict)
    with pytest.raises(ChipError, match=r"refuses this prompt \(TemplateError: no system role\); leave out --system"):
        text.encode(folder, "hello", "be brief", False)


ENDLESS = "{% for i in range(99999) %}" * 4 + "{% endfor %}" * 4 + "hello"


@pytest.mark.parametrize("template", [ENDLESS, "{{ 9 ** (9 ** 9) }}", "{{ ('x' * 10 ** 9) | length }}"])
def test_a_template_that_never_ends_or_fills_the_memory_is_given_up(template, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(text, "TEMPLATE_S", 1)
    monkeypatch.setattr(text, "TEMPLATE_BYTES", 512 << 20)
    folder = save_folder(tmp_path / "hostile", template=template)
    began = time.monotonic()
    assert bench(folder, "--engine", "hf-eager", "--prompt-text", "hello", "-o", str(tmp_path / "llm.json")) == 2
    assert time.monotonic() - began < 60
    most = "takes more than 1 s or 512 MiB for this prompt; use --raw-prompt"
    assert capsys.readouterr().err.splitlines()[-1] == f"chip bench: {folder}: its chat template {most}"


def test_a_config_alone_has_no_words(tmp_path, capsys):
    assert bench(save_config(tmp_path / "tiny.json"), "--engine", "hf-eager", "--prompt-text", "hello") == 2
    assert "--prompt-text needs a folder with weights and tokenizer" in capsys.readouterr().err


def broken(folder, name, change):
    copy = save_folder(folder / name)
    change(copy)
    return copy


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda f: (f / "model.safetensors").write_bytes(b"not tensors"), "cannot be loaded (SafetensorError"),
        (
            lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:5000]),
            "cannot be loaded (SafetensorError",
        ),
        (
            lambda f: (f / "config.json").write_text(
                json.dumps({**json.loads((f / "config.json").read_text()), "num_hidden_layers": 3})
            ),
            "the weights lack model.layers.2.",
        ),
        (lambda f: (f / "config.json").write_text("{}"), "cannot be loaded"),
    ],
)
def test_a_broken_folder_is_one_line_and_a_failed_run(tmp_path, capsys, change, says):
    folder = broken(tmp_path, "broken", change)
    file = tmp_path / "llm.json"
    assert bench(folder, "--engine", "hf-eager", "--prompt", "8", "-o", str(file)) == 1
    (found,) = runs.read(file)[1].runs
    assert found.status == "failed"
    assert says in found.reason
    assert "\n" not in found.reason
    err = capsys.readouterr().err
    assert f"chip bench: broken hf-eager: {found.reason}\n" in err
    assert "Traceback" not in err


def test_weights_can_be_left_aside(folder, tmp_path):
    file = tmp_path / "llm.json"
    assert bench(folder, "--engine", "hf-eager", "--prompt", "8", "--weights", "random", "-o", str(file)) == 0
    assert [r.weights for r in runs.read(file)[1].runs] == ["random"]


def test_weights_that_are_not_there(tmp_path, capsys):
    assert bench(save_config(tmp_path / "tiny.json"), "--engine", "hf-eager", "--weights", "files") == 2
    assert "no *.safetensors beside its config.json" in capsys.readouterr().err


@pytest.fixture
def reachable(monkeypatch):
    """A hub that answers, of which nothing is remembered."""
    from chip.decoders import hub

    monkeypatch.setattr(hub, "answers", lambda endpoint: True)
    hub._download.cache_clear()
    yield
    hub._download.cache_clear()


@pytest.mark.usefixtures("reachable")
def test_a_hub_id_brings_its_weights(folder, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub, "hf_hub_download", lambda repo, name, **_: str(folder / name))
    monkeypatch.setattr(hub, "snapshot_download", lambda repo, allow_patterns: str(folder))
    file = tmp_path / "llm.json"
    assert bench("someone/tiny", "--engine", "hf-eager", "--prompt", "8", "-o", str(file)) == 0
    assert [(r.model, r.weights) for r in runs.read(file)[1].runs] == [("someone/tiny", "files")]


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("what", ["hf_hub_download", "snapshot_download"])
def test_a_hub_that_cannot_be_reached_is_one_line(folder, monkeypatch, capsys, what):
    hub = pytest.importorskip("huggingface_hub")

    def offline(*_, **__):
        raise OSError("cannot reach the hub: HF_HUB_OFFLINE=1 is set")

    monkeypatch.setattr(hub, "hf_hub_download", lambda repo, name, **_: str(folder / name))
    monkeypatch.setattr(hub, what, offline)
    assert bench("someone/tiny", "--engine", "hf-eager") == 2
    err = capsys.readouterr().err
    assert err.startswith("chip bench: someone/tiny: ")
    assert "cannot reach the hub: HF_HUB_OFFLINE=1 is set" in err
    assert err.count("\n") == 1
