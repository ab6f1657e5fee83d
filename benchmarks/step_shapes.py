"""Measure the operators of models' decode steps as HF's CUDA graphs run them, at the very sizes that they have there.

    python benchmarks/step_shapes.py OUT.jsonl --models phi-4,olmo-3-7b --batches 1,8,32 --profile my-gpu.json
    python benchmarks/step_shapes.py OUT.jsonl --models llama-2-13b --caches 192,576 --only masked_attention --limit 300

Other options go to `chip profile`, which resumes a file that is there.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from itertools import product
from math import inf

from chip import engines, ops
from chip.decoders import library
from chip.decoders.lower import lower
from chip.dtypes import precision
from chip.lab.measure import suites
from chip.lab.measure.limits import is_sustained
from chip.show import cli
from chip.types import Op, Seq, Step

ENGINE, ON = "hf-graph", 9.0  # compute capability
LEFT_OUT = ("sampling", "embedding", "kv_roll")


def operators(model: str, batch: int, cache: int) -> Iterator[Op]:
    """Of one decode step over a cache of so many slots, as far as torch runs them as they are."""
    engine, decoder = engines.get(ENGINE), library.find(model)
    runs = engine.runs_as(ON, decoder)
    program = lower(decoder, Step((Seq(1, cache - 1, batch),)), precision("bf16"))
    for block in engine.rewrite(program, True, decoder.architecture).blocks:
        for call in block.calls:
            op = call.op.like_measured()
            as_it_is = type(op) is ops.get(op.kind) if op else False  # not over a cache that slides
            if op and as_it_is and op.place() and runs.get(op.kind) == "torch" and op.kind not in LEFT_OUT:
                yield op


def main() -> int:
    def numbers(text: str) -> list[int]:
        return [int(n) for n in text.split(",")]

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--models", required=True, type=lambda text: text.split(","))
    p.add_argument("--batches", type=numbers, default=[1, 8, 32])
    p.add_argument("--caches", type=numbers, default=[1064], help="slots of the cache [1064]")
    p.add_argument("--contexts", type=lambda text: text.split(","), default=["cold"])
    p.add_argument("--only", default="", help="one kind of operator")
    p.add_argument("--most-weights", type=float, default=inf, help="elements of a product's weights")
    p.add_argument("--limit", type=int, help="so many, drawn at random")
    args, rest = p.parse_known_args()

    def wanted(op: Op) -> bool:
        weights = getattr(op, "n", 1) * getattr(op, "k", 1)
        return args.only in ("", op.kind) and weights <= args.most_weights and not is_sustained(op)

    steps = product(args.models, args.batches, args.caches)
    found = dict.fromkeys(op for step in steps for op in operators(*step) if wanted(op))
    chosen = random.Random(1).sample([*found], min(len(found), args.limit or len(found)))
    cases = [suites.SuiteCase(op, "torch", context) for op in chosen for context in args.contexts]
    suites.SUITES["between"] = lambda dtype: iter(cases)  # in its place, to be measured as it is
    return cli.main(["profile", "--suite", "between", "-o", args.out, *rest])


if __name__ == "__main__":
    sys.exit(main())
