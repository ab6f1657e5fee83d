"""The option `--energy-probe` of all commands that measure energy."""

from __future__ import annotations

import argparse
import os

from chip.types import ChipError


def add_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--energy-probe",
        metavar="FILE.py:NAME",
        default="",
        help="a meter of your own: a class with start and stop, also MODULE:NAME [$CHIP_ENERGY_PROBE, else built in]",
    )


def choose(args: argparse.Namespace) -> None:
    """For this process and its workers; an error before anything is measured if there is no such meter."""
    from chip.measure import own_probe

    if args.energy_probe:
        os.environ[own_probe.VARIABLE] = args.energy_probe
    own_probe.probe()
    if args.energy_probe and not getattr(args, "energy_seconds", 1.0):
        raise ChipError("--energy-probe meters nothing without --energy-seconds, such as --energy-seconds 2")
