"""Our Triton kernels in Triton's interpreter, which is chosen when kernels are imported: a process of its own.

`python interpreted.py TINY_LLAMA TINY_QWEN` runs all of it and prints {part: "" or its traceback}.
"""

import contextlib
import functools
import io
import json
import os
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"

import torch
from triton.language.core import is_builtin
from triton.runtime import interpreter

from chip import ops
from chip.lab.kernels import catalog, check
from chip.lab.kernels.plans import LaunchPlan as Plan
from chip.lab.kernels.triton import add_rms_norm, layer_norm, rms_norm, rope_store, skinny_gemm, softmax
from chip.lab.kernels.triton import paged_decode_attention as paged
from chip.lab.kernels.triton import prefill_attention as prefill
from chip.lab.run.native.engine import NativeEngine, NativeSettings
from chip.lab.run.native.graphs import PromptGraphs
from chip.lab.run.native.requests import NativeRequest, SamplingParams
from chip.show import cli

PLANS = (
    Plan(2, 1, 2, 4), Plan(1, 4, 2, 1, 128), Plan(1, 4, 2, 2, 512),  # programs that stay; in chunks; in one
    Plan(1, 4, chunk=128, held=True), Plan(1, 4, 2, 2, 64, held=True, registers=64), Plan(1, 4, chunk=512, held=True),
    Plan(1, 4, chunk=64, held=True, evict="", cache=".cg", fetched=2), Plan(2, 1, evict="", cache=".cg"),
)  # fmt: skip

builtins_of = functools.cache(lambda place: [name for name in dir(place) if is_builtin(getattr(place, name, None))])


def patch_builtins(place, builder, scope):
    """As Triton's own, which looks through the whole language at every call of a function: a third of the time."""
    for name in builtins_of(place):
        member = getattr(place, name)
        if is_builtin(member):
            interpreter._patch_attr(place, name, member, builder, scope)


interpreter._patch_builtin = patch_builtins


def every_kernel():
    """`chip kernels check` of all of them."""
    out = io.StringIO()
    words = ["kernels", "check", *catalog.triton_names(), "--device", "cpu", "--count", "1", "--seed", "1", "--json"]
    with contextlib.redirect_stdout(out):
        code = cli.main(words)
    found = json.loads(out.getvalue())["findings"]
    assert not [f for f in found if f["status"] == "failed"], found
    for name in catalog.triton_names():
        assert sum(f["kernel"] == name and f["status"] == "ok" for f in found) >= 5, name
    assert code == 0


def plans_of_row_kernels():
    for module in (layer_norm, rms_norm, softmax, add_rms_norm):
        for rows, cols, dtype in ((3, 256, "fp16"), (2, 205, "bf16")):
            op = ops.build(module.KIND, {"rows": rows, "cols": cols, "dtype": dtype})
            times = 4 if dtype == "bf16" else 2  # the interpreter cuts off instead of rounding
            inputs = module.inputs(op, torch.device("cpu"), torch.Generator().manual_seed(1), 3)
            truth, own = check.together(module.reference(*inputs)), check.together(module.native(*inputs))
            for plan in PLANS:
                for got, want, theirs in zip(check.together(module.run(*inputs, plan=plan)), truth, own):
                    allowed = times * check.distance(theirs, want) + check.rounding(got.dtype) * float(want.abs().max())
                    worst = check.distance(got, want)
                    assert worst <= allowed, (module.KIND, op, plan, worst, allowed)


def rows_far_from_zero_and_rows_with_nan():
    x = torch.randn(2, 300, generator=torch.Generator().manual_seed(2)) + 100  # one element far from all others
    x[:, 0] = 3e4
    weight = torch.ones(300)
    want = layer_norm.reference(x, weight, weight)
    for plan in PLANS[1:7]:
        assert check.distance(layer_norm.run(x, weight, weight, plan=plan), want) < 4e-6 * float(want.abs().max()), plan
    assert softmax.run(x.half(), plan=PLANS[3]).isfinite().all()
    x[0, 7] = float("nan")
    for plan in PLANS:
        for got in (softmax.run(x, plan=plan), layer_norm.run(x.half(), weight.half(), weight.half(), plan=plan)):
            assert got[0].isnan().all(), plan
            assert got[1].isfinite().all(), plan


def near(got, want, own):
    allowed = 2 * check.distance(own, want) + 4 * check.rounding(got.dtype) * float(want.abs().max())
    assert check.distance(got, want) <= allowed, (check.distance(got, want), allowed)


def biases_and_gates_of_skinny_gemm():
    g = torch.Generator().manual_seed(1)
    x, w, b = torch.randn(5, 72, generator=g), torch.randn(46, 72, generator=g), torch.randn(46, generator=g)
    for bias in (None, b):
        for gated in (False, True):
            args = (x, w, bias)
            own = skinny_gemm.native(*args, gated)
            near(skinny_gemm.run(*args, gated=gated), skinny_gemm.reference(*args, gated), own)


def pages_and_splits_of_attention():
    g = torch.Generator().manual_seed(1)
    for page, splits in ((16, (0, 1, 2, 3, 7)), (32, (3,)), (128, (0, 2))):  # a page of one block, of less, of two
        lengths = torch.tensor([1, page, page + 1, 3 * page - 1], dtype=torch.int32)
        keys, values = torch.randn(2, 13, 1, page, 24, generator=g)
        table = 1 + torch.randperm(12, generator=g).int().view(4, 3)
        q = torch.randn(4, 3, 24, generator=g)
        want, own = paged.reference(q, keys, values, table, lengths), paged.native(q, keys, values, table, lengths)
        for split in splits:
            for _ in range(2 if split == 7 else 1):  # counters are back at zero
                near(paged.run(q, keys, values, table, lengths, splits=split), want, own)
        q = torch.randn(9, 3, 24, generator=g)
        chunks = [(0, 2, 5), (2, 7, page + 3)]  # of two sequences, after tokens of theirs
        out = torch.full_like(q, float("nan"))
        tiles = torch.tensor(prefill.tiles_of(chunks), dtype=torch.int32).view(-1, 4)
        prefill.launch(q, keys, values, table[:2], tiles, out)
        for (row, new, past), pages in zip(chunks, table):
            one = torch.tensor([past + new], dtype=torch.int32)
            args = q[None, row : row + new], keys, values, pages[None], one
            near(out[row : row + new], prefill.reference(*args)[0], prefill.native(*args)[0])


def slots_that_rope_store_writes():
    g = torch.Generator().manual_seed(1)
    qkv = torch.randn(5, 8 * 24, generator=g)
    cos, sin = torch.rand(2, 40, 12, generator=g)
    slots, positions = torch.tensor([3, 16, 90, 47, 64]).int(), torch.tensor([0, 39, 5, 5, 7]).int()
    like = torch.randn(6, 2, 16, 24, generator=g)
    keys, values, q = like.clone(), like.clone(), torch.empty(5, 4, 24)
    rope_store.run(qkv, cos, sin, positions, slots, like, out=(q, keys, values))
    want = rope_store.native(qkv, cos, sin, positions, slots, torch.zeros_like(like))
    written = torch.zeros(6, 2, 16, 24, dtype=torch.bool)
    written[slots.long() // 16, :, slots.long() % 16] = True
    assert torch.equal(keys[~written], like[~written])
    assert torch.equal(values[~written], like[~written])
    assert torch.allclose(keys[written], want[1][written], atol=1e-6)
    assert torch.equal(values[written], want[2][written])
    assert torch.allclose(q, want[0], atol=1e-6)


class Again:
    """Stands for CUDA graphs: the step is run anew on the inputs that its graph would read."""

    def capture(self, step, device):
        held = step()
        return SimpleNamespace(replay=lambda: held.copy_(step())), held


def same_tokens(folder, kernels, graphs=None):
    config = {**json.loads((folder / "config.json").read_text()), "num_hidden_layers": 1}  # another is more of the same
    said = []
    for used in ("torch", kernels):
        settings = NativeSettings(used, "fp32", "cpu", max_context=32, max_step_tokens=16, page_tokens=16)
        engine = NativeEngine(config, "x", settings, folder)
        if graphs and used == kernels:
            engine.prompts = PromptGraphs(engine.decoder, engine.allocator.pages_for(32), graphs)
        requests = [NativeRequest(str(n), tuple(range(3, 3 + n)), SamplingParams(2)) for n in (2, 18)]
        for together in [[r] for r in requests] if graphs else [requests]:
            engine.run(together)
        said.append([r.output for r in requests])
        by = {row["launch"]: row["by"] for row in engine.launches.rows()}
        assert used == "torch" or by["decode_attention"] == by["rope_store"] == by["linear_few"] == "triton", by
    assert said[0] == said[1], said
    return engine


def tokens_of_llama(folder):
    engine = same_tokens(folder, "triton", Again())
    assert set(engine.prompts.captured) == {16}  # both prompts end in such a step: 2 tokens, and 2 after 16


def tokens_of_qwen(folder):
    same_tokens(folder, "chip")


ALONE = (
    every_kernel,
    plans_of_row_kernels,
    rows_far_from_zero_and_rows_with_nan,
    biases_and_gates_of_skinny_gemm,
    pages_and_splits_of_attention,
    slots_that_rope_store_writes,
)
OF_A_MODEL = (tokens_of_llama, tokens_of_qwen)


def main(folders):
    found = {}
    for part, *args in [*((part,) for part in ALONE), *zip(OF_A_MODEL, folders, strict=True)]:
        found[part.__name__] = ""
        try:
            part(*args)
        except Exception:
            found[part.__name__] = traceback.format_exc()
    print(json.dumps(found))


if __name__ == "__main__":
    main([Path(word) for word in sys.argv[1:]])
