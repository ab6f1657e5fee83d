"""`chip validate --suite silicon`: published live traffic, replayed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from chip.show.cli.field_text import render
from chip.types import ChipError


def run(args: argparse.Namespace) -> int:
    from chip.files import artifact
    from chip.hardware.tables import aiconfigurator
    from chip.show.cli.streams import progress
    from chip.simulator.jobs import pool_of
    from chip.validate import against, field, silicon
    from chip.validate.doubts import doubts
    from chip.validate.field_document import document

    if len(args.runs) > 1:
        raise ChipError(f"--suite silicon takes one file or folder, got {len(args.runs)}")
    path = Path(args.runs[0]) if args.runs else silicon.packed(aiconfigurator.find())
    everything = silicon.read(path)
    rows = [r for r in everything if args.gpu in ("", r.gpu) and args.engine in ("", r.engine)]
    if not rows:
        systems = ", ".join(sorted({r.gpu for r in everything}))
        raise ChipError(
            f"{path} has no row of {args.engine or 'any engine'} on {args.gpu or 'any GPU'}; it has {systems}"
        )
    pool = pool_of(args.jobs, "", progress("deployments"))
    theirs = against.ask(args.against, rows) if args.against else None
    made = document(field.replay(rows, pool), doubts(rows), theirs)
    print(json.dumps(made, indent=1) if args.json else render(made))
    if args.output:
        data = {k: v for k, v in made.items() if k != "schema"}
        artifact.write(args.output, artifact.new(made["schema"], data, {}, ()))
        print(f"wrote {args.output}", file=sys.stderr)
    return 0
