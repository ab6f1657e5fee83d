"""The direction of the arrows: who may import whom, what never needs torch, and how large the data may grow."""

import ast
import json
import os
import subprocess
import sys
import tomllib

import pytest
from folding import each
from source_trees import FILES, SRC, nodes, tree

from chip.show import cli

HEAVY = {"torch", "triton", "pandas", "transformers", "matplotlib", "numpy", "pynvml", "cuda", "vllm", "tqdm"}
# The rooms in the order in which they are read: each may import, at module level, what stands above it
ROOMS = (
    *("types", "dtypes", "stats", "units", "forked", "ops", "files", "hardware", "decoders"),
    *("engines", "question", "predictor", "simulator", "validate", "catalog", "api", "live", "lab", "explain", "show"),
    *("__init__", "__main__"),
)
PURE_LAB = {"replay", "chain"}  # of the lab, what needs no device: it reads what devices wrote
PLACE = {room: place for place, room in enumerate(ROOMS)}


def part(path):
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def top_level(node):
    """Imports that run when the module is imported: not those in functions or under TYPE_CHECKING."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from top_level(child)


@pytest.fixture(scope="module")
def arrows():
    return [(path, name.split(".")) for path in FILES for name in top_level(tree(path))]


def test_arrows_point_down(arrows):
    inside = [(path, names[1:]) for path, names in arrows if names[0] == "chip" and len(names) > 1]
    assert len(inside) > 300
    for path, (room, *rest) in inside:
        assert room.startswith("__") or PLACE[room] <= PLACE[part(path)], f"{path} imports chip.{room}"
        if part(path) == "show":
            assert room != "lab" or rest[0] in PURE_LAB, f"{path} imports chip.lab.{rest[0]} before it must"


def test_measure_never_imports_run():
    within = [path for path in FILES if path.is_relative_to(SRC / "lab" / "measure")]
    assert within
    for path in within:
        for node in nodes(path):
            names = [a.name for a in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            for name in names:
                parts = f"{module}.{name}".lstrip(".").split(".")
                assert parts[:3] not in (["chip", "lab", "run"], ["chip", "show", "cli"]), path


def test_nothing_pure_imports_what_is_heavy(arrows):
    for path, (module, *_) in arrows:
        if module != "chip" and (part(path) != "lab" or path.relative_to(SRC).parts[1] in PURE_LAB):
            assert module not in HEAVY, f"{path} imports {module} at module level"
            assert module in sys.stdlib_module_names, f"{path} imports {module}: the base install has no dependencies"


ENV = {**os.environ, "PYTHONPATH": str(SRC.parent)}
BLOCKED = """
import sys
heavy = {heavy!r}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in heavy:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocked())
import contextlib, io
from chip.show.cli import main
for words, code, least in {commands!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(words) == code, words
    assert len(out.getvalue()) >= least, words
    assert not heavy & {{name.split(".")[0] for name in sys.modules}}, words
"""


def without_others(*commands):
    """Run these (words, exit code, least characters of output) where only the standard library can be imported."""
    code = BLOCKED.format(heavy=HEAVY | {"huggingface_hub", "hypothesis", "pytest"}, commands=commands)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=ENV)
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_works_where_nothing_else_is_installed(tmp_path):
    commands = (
        ["--help"],
        ["predict", "llama-3.1-8b", "--gpu", "h200"],
        ["estimate", "linear", "m=8", "n=4096", "k=4096"],
        ["simulate", "llama-3.1-8b", "--workload", "poisson", "--requests", "20", "--no-intervals"],
        ["list", "models"],
        ["list", "ops"],
        ["show", "h200"],
        ["show", "attention"],
        ["report", str(SRC / "data" / "profiles"), "-o", str(tmp_path)],
        ["lab", "--device", "cpu", "--plan"],
    )
    assert "Traceback" not in without_others(*((words, 0, 50) for words in commands))


def test_a_command_that_needs_torch_says_so_in_one_line(tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architectures": ["UnheardForCausalLM"], "model_type": "mamba"}))
    told = without_others((["predict", str(config), "--trace"], 2, 0))
    assert told == "chip predict: --trace needs torch: pip install '.[measure]' in CHIP's checkout\n"


def test_what_a_hint_asks_to_install_is_there():
    """CHIP is on no index, so that its name says nothing to pip: extras of the checkout do."""
    extras = tomllib.loads((SRC.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = set(cli.OPTIONAL.values())
    for path in FILES:
        assert "chip-inference[" not in path.read_text(encoding="utf-8"), path
        for node in nodes(path):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "install":
                asked |= {a.value for a in node.args if isinstance(a, ast.Constant)}
    assert asked == set(extras) - {"dev"}


@each(cli.commands())
def test_every_command_has_help_examples_and_json(name):
    module = cli.command(name)
    assert module.__doc__
    assert module.HELP
    assert "chip " + name in module.EPILOG
    assert "--json" in cli.parser(name)._option_string_actions


def test_no_module_hides_in_a_name_that_says_nothing():
    stems = {p.stem for p in SRC.rglob("*.py")}
    assert not stems & {"utils", "util", "common", "helpers", "core", "base", "misc"}


def test_bundled_data_stays_small():
    assert sum(p.stat().st_size for p in (SRC / "data").rglob("*") if p.is_file()) < 5e6
