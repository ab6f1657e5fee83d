"""Measure shapes that no point has, drawn at random: they judge the points (benchmarks/unseen_operators.py) before any
of them joins.

    python benchmarks/random_shapes.py SEED OUT.jsonl --profile my-gpu.json
    python benchmarks/random_shapes.py SEED OUT.jsonl --each 2 --more alibi_attention=30 --more kv_append=20

Of every kernel and context as many shapes as `--each` says, of an operator named by `--more` that many. Each is a
point whose sizes are multiplied by a factor between 0.6 and 1.7, within the sizes that the group has, and keep the
alignment that they had. Other options go to `chip profile`, which resumes a file that is there.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from dataclasses import replace

from chip import ops
from chip.hardware.points import PointGroup
from chip.lab.measure import point_cases, suites
from chip.lab.measure.limits import is_sustained
from chip.show import cli
from chip.types import Op

TRIES = 20  # for one new shape
FURTHEST = 0.7  # in octaves


def main(args: argparse.Namespace, rest: list[str]) -> int:
    more = dict(args.more)
    draw = random.Random(args.seed)
    drawn = [c for g in point_cases.groups() for c in shapes(g, more.get(g.kind, args.each), draw)]
    draw.shuffle(drawn)  # a run cut short has some of each
    suites.SUITES["between"] = lambda dtype: iter(drawn)  # in its place, to be measured as it is
    return cli.main(["profile", "--suite", "between", "-o", args.out, *rest])


def operator_and_count(text: str) -> tuple[str, int]:
    kind, _, count = text.partition("=")
    if kind not in {g.kind for g in point_cases.groups()} or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no operator with points and a number, as alibi_attention=30 is")
    return kind, int(count)


def shapes(group: PointGroup, count: int, draw: random.Random) -> Iterator[suites.SuiteCase]:
    if point_cases.suite_of(group) == "native":  # timed in another way
        return
    known = {*group.ops}
    for _ in range(TRIES * count):
        op = near(draw.choice(group.ops), group, draw)
        copied = group.context == "layer" and is_sustained(op)
        if op in known or copied or op.like_measured() != op or op.kernel_of(group.implementation) != group.kernel:
            continue
        known.add(op)
        yield suites.SuiteCase(op, group.implementation, group.context)
        count -= 1
        if not count:
            return


def near(op: Op, group: PointGroup, draw: random.Random) -> Op:
    sizes = {name: getattr(op, name) for name in point_cases.SIZES if name in ops.axes(type(op))}
    past = sizes["kv_len"] - sizes["q_len"] if "q_len" in sizes else 0
    for name, size in sizes.items():
        if size > 1:
            had = [getattr(other, name) for other in group.ops]
            step = min(size & -size, point_cases.COARSEST)
            wanted = round(size * 2 ** draw.uniform(-FURTHEST, FURTHEST) / step) * step
            sizes[name] = min(max(had), max(min(had), step, wanted))
    if "q_len" in sizes and (past == 0 or sizes["q_len"] > sizes["kv_len"]):  # a whole prompt stays one
        sizes["q_len"] = max(1, sizes["kv_len"] - past)
    return replace(op, **sizes)  # type: ignore[type-var]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("out")
    parser.add_argument("--each", type=int, default=4)
    parser.add_argument("--more", action="append", default=[], type=operator_and_count, metavar="OPERATOR=COUNT")
    sys.exit(main(*parser.parse_known_args()))
