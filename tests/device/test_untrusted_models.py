"""Models from strangers: folders of one name, and code that lies beside a config."""

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import forking  # noqa: E402
from tiny_models import save_config  # noqa: E402
from transformers import dynamic_module_utils  # noqa: E402

from chip.files import output, runs  # noqa: E402
from chip.show import cli  # noqa: E402

BENCH = ("--engine", "hf-eager", "--device", "cpu", "--prompt", "8", "--output", "3", "--repeats", "2", "--no-profile")


@pytest.fixture
def twins(tmp_path):
    """Two models, both in a folder called tiny; the second is twice as deep."""
    found = []
    for parent, layers in (("a", 2), ("b", 4)):
        path = tmp_path / parent / "tiny"
        path.mkdir(parents=True)
        raw = json.loads(Path(save_config(tmp_path / "config.json")).read_text())
        (path / "config.json").write_text(json.dumps({**raw, "num_hidden_layers": layers}))
        found.append(str(path))
    torch.set_num_threads(1)
    return found


def test_models_of_one_name_keep_their_runs_apart(twins, tmp_path, capsys):
    file = tmp_path / "runs.json"
    for model in twins:
        assert cli.main(["bench", model, *BENCH, "-o", str(file), "--json"]) == 0
        assert len(json.loads(capsys.readouterr().out)["runs"]) == 1
    assert cli.main(["bench", *twins, *BENCH, "-o", str(file), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 2
    held = runs.read(file)[1]
    assert [held.configs[r.model]["num_hidden_layers"] for r in held.runs] == [2, 4]
    assert len({r.identity for r in held.runs}) == 2
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    for model, path in zip(twins, (one, two)):
        assert cli.main(["bench", model, *BENCH, "-o", str(path)]) == 0
    capsys.readouterr()
    assert cli.main(["compare", str(one), str(two)]) == 2
    assert "have no finished point of the same model" in capsys.readouterr().err


def test_a_second_bench_on_one_file_is_refused(twins, tmp_path, capsys):
    file = tmp_path / "runs.json"
    with output.locked(file):
        assert cli.main(["bench", twins[0], *BENCH, "-o", str(file)]) == 2
    assert "another process is writing it" in capsys.readouterr().err
    assert not file.exists()


CODE = """
from pathlib import Path
Path({mark!r}).write_text("code of the model ran")
from transformers import LlamaConfig, LlamaForCausalLM
class Mine(LlamaConfig):
    model_type = "mine"
class MineForCausalLM(LlamaForCausalLM):
    config_class = Mine
"""


@pytest.fixture
def hostile(twins, tmp_path):
    """A folder whose config asks for code beside it, and the file that this code would write."""
    folder, mark = Path(twins[0]), tmp_path / "ran"
    raw = json.loads((folder / "config.json").read_text())
    auto = {"AutoConfig": "code.Mine", "AutoModelForCausalLM": "code.MineForCausalLM"}
    (folder / "config.json").write_text(json.dumps({**raw, "model_type": "mine", "auto_map": auto}))
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    return str(folder), mark


COMMANDS = (
    ("predict", "MODEL", "--trace", "--dtype", "fp32"),
    ("predict", "MODEL"),
    ("bench", "MODEL", *BENCH),
    ("capture", "MODEL", "--device", "cpu", "--prompt", "4"),
    ("replay", "MODEL", "--device", "cpu", "--prompt", "4", "--runs", "3", "--tier", "2"),
    ("profile", "--model", "MODEL", "--device", "cpu", "--quick", "--prompt", "4", "--runs", "3", "--context", "hot"),
    ("show", "MODEL"),
)


def test_no_command_runs_code_from_a_model_folder(hostile, tmp_path):
    """Not even where `yes |` answers the question that transformers asks on the terminal."""
    model, mark = hostile

    def run_all():
        os.chdir(tmp_path)
        dynamic_module_utils.HF_MODULES_CACHE = str(tmp_path / "modules")  # where code would be copied to
        for words in COMMANDS:
            cli.main([model if w == "MODEL" else w for w in words])
            assert not mark.exists(), words
        print("all done")

    done = forking.run(run_all, stdin="y\n" * 1000, environment={"HF_HUB_OFFLINE": "1"})
    assert not mark.exists(), done.stdout + done.stderr
    assert done.stdout.endswith("all done\n"), done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "Do you wish to run" not in done.stdout + done.stderr
