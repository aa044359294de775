"""Options of `kernelsight backtest` that score KernelSight itself: fitted constants, a campaign left out, a peer."""

from __future__ import annotations

import argparse


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the options."""
    verb.add_argument(
        "--constants",
        default="shipped",
        metavar="LEVEL[,LEVEL]",
        help="host time: shipped (catalogue, default), none, or fitted on a fifth of the runs, which is then not "
        "scored: transfer (on all groups of runs but the own), group (on the own, plus a factor on its kernels), all "
        "(on all groups, which the catalogue ships); the first level is reported in full",
    )
    verb.add_argument(
        "--leave-out",
        choices=("campaign",),
        help="also score each campaign with host constants fitted on the others alone: their table in place of that of "
        "--constants",
    )
    verb.add_argument("--against", choices=("aiconfigurator",), help="also score this tool on the same runs")
