"""An operator is a class, or a row of the table of those over rows, in the file of a family: it is listed, estimated,
predicted in a model and counted as what it is, with nothing else touched."""

import ast
import json
import pickle
import sys

import pytest
from source_trees import SRC, nodes
from test_engine_folder import ENGINE

from chip import catalog, engines, ops
from chip.decoders import describe, library
from chip.decoders.lower import lower
from chip.dtypes import Precision
from chip.ops import elementwise
from chip.predictor import operator, request
from chip.types import Seq, Step

FAMILY = '''
from typing import ClassVar

from chip.ops.attention import Attention
from chip.ops.elementwise import define


class MadeUpAttention(Attention):
    """Attention of a test."""

    __slots__ = ()
    kind: ClassVar[str] = "made_up_attention"


MadeUpActivation = define("made_up_activation", "Activation of a test.", FLAT=True, FLOPS=3)
'''
REWRITE = """    def rewrite(self, program, decode, architecture=""):
        from chip.engines.fuse import apply, as_kind
        from chip.ops.made_up_family import MadeUpAttention
        from chip.types import Call

        return apply(program, lambda calls: [
            Call(c.role, as_kind(MadeUpAttention, c.op)) if c.op.kind == "attention" else c for c in calls
        ])

"""
# What predictions may import: what all attention has in common, bases, and what is no kernel of a GPU.
KNOWN = {"AnyAttention", "Collective", "BaseTime", "RowBase"}


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    plain = ENGINE[ENGINE.index("    def rewrite") : ENGINE.index("    def play")]
    (tmp_path / "made_up_family.py").write_text(FAMILY)
    (tmp_path / "made_up").mkdir()
    (tmp_path / "made_up" / "__init__.py").write_text(ENGINE.replace(plain, REWRITE))
    monkeypatch.setattr(ops, "__path__", [*ops.__path__, str(tmp_path)])
    monkeypatch.setattr(engines, "__path__", [*engines.__path__, str(tmp_path)])
    cached = (ops.classes, engines.names, engines.get, request.prepared)
    for each in cached:
        each.cache_clear()
    yield "made_up_attention"
    for each in cached:
        each.cache_clear()
    for name in ("chip.ops.made_up_family", "chip.engines.made_up"):
        sys.modules.pop(name, None)


def test_it_is_listed_and_estimated(made_up):
    assert made_up in ops.names()
    axes = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 128, "q_len": 1, "kv_len": 700}
    found, plain = (operator.answer({"op": kind, **axes}) for kind in (made_up, "attention"))
    assert found["source"] == "roofline", "nobody measured it: a kernel of its kind stands in"
    assert plain["us"] / 3 < found["us"] < plain["us"] * 3


def test_a_model_with_it_is_predicted_with_its_work_and_energy(made_up):
    # not a model of test_engine_folder.py: programs are remembered by model and by the engine's name
    question = {"model": "qwen3-1.7b", "batch": 2, "prompt": 4000, "output": 3}
    found = request.answer({**question, "engine": "made-up"})
    (row,) = (r for r in found["breakdown"]["ttft"] if r["op"] == made_up)
    (plain,) = (
        r for r in request.answer({**question, "engine": "hf-eager"})["breakdown"]["ttft"] if r["op"] == "attention"
    )
    assert row["flops"] == plain["flops"] > 0
    assert ops.multiplies(made_up)
    assert ops.get(made_up).LEDGER == "attention"


def test_a_row_of_the_table_is_an_operator_and_may_be_an_activation(made_up, monkeypatch):
    assert made_up in ops.names()
    op = ops.build("made_up_activation", {"rows": 3, "cols": 5})
    assert pickle.loads(pickle.dumps(op)) == op
    assert op.cost() == (3 * 15, 2 * 15, 2 * 15)
    assert operator.answer({"op": "made_up_activation", "rows": 64, "cols": 4096})["us"] > 0
    monkeypatch.setitem(elementwise.ACTIVATIONS, "mish", type(op))
    config = json.loads(library.locate("gpt-neox-20b")[0].read_text()) | {"hidden_act": "mish"}
    program = lower(
        describe(config, "mish", "config.json"), Step((Seq(7, 0),)), Precision("bf16", "bf16", "bf16", "bf16")
    )
    (width,) = {c.op.cols for b in program.blocks for c in b.calls if type(c.op) is type(op)}
    assert width == config["intermediate_size"]


def test_a_misspelt_column_of_a_row_is_refused():
    with pytest.raises(TypeError, match="no operator over rows has FLOP"):
        elementwise.define("made_up", "Of a test.", FLOP=3)


def test_every_operator_says_what_it_is():
    assert all(catalog.doc_of(kind).endswith(".") for kind in ops.names())


@pytest.mark.parametrize("kind", ["mla_prompt", "grouped_router", "biased_router", "scaled_linear", "packed_experts"])
def test_products_of_every_kind_count_as_such(kind):
    """Their FLOPs draw the power of matrix units. A list kept by hand had left out the first three."""
    assert ops.multiplies(kind)


@pytest.mark.parametrize("kind", ["rms_norm", "kv_append", "embedding", "all_reduce", "engine"])
def test_passes_over_rows_do_not(kind):
    assert not ops.multiplies(kind)


def test_predictions_import_no_single_operator():
    """What an operator does otherwise is in its class: `chip.predict` asks it."""
    found = {
        (path.name, alias.name)
        for path in sorted((SRC / "predictor").glob("*.py"))
        for node in nodes(path)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("chip.ops")
        for alias in node.names
    }
    assert {name for _, name in found} <= KNOWN, found
