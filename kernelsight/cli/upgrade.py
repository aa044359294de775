"""`kernelsight upgrade`: what another version of an engine, or another engine, changes for a deployment."""

from __future__ import annotations

from typing import Any

from kernelsight.cli.command_line import asked
from kernelsight.cli.options import deployment_flags, launch_line, open_session
from kernelsight.errors import LimitPassed
from kernelsight.present.output import PAGE_ENDINGS, as_csv, check_ending, write_table
from kernelsight.present.show import HTML, show
from kernelsight.scenario.flags import LOAD_FLAGS
from kernelsight.upgrades.question import read_limits


def run(arguments: Any) -> None:
    """Compare both engines, print the answer, write rows or page; LimitPassed: a change beyond --fail-if."""
    target = check_ending(arguments.output, PAGE_ENDINGS)
    limits = read_limits(arguments.fail_if)
    flags = deployment_flags(arguments)
    flags |= {name: value for name in LOAD_FLAGS if (value := getattr(arguments, name, None)) is not None}
    lines = [launch_line(arguments, flags, name) for name in ("launch", "launch_to")]
    with open_session(arguments) as session:
        found = session.upgrade(**asked(arguments, "upgrade_questions"), **flags)
        if target and target.suffix == ".duckdb":
            found.save(target)
        elif target and target.suffix != HTML:
            write_table(found.table("upgrade_metrics"), target)
    metrics = [{"metric": name, **row} for name, row in found.metrics.items()]
    columns = list(metrics[0])
    show(lambda: found.page(limits), arguments.format, target, lambda: as_csv(metrics, columns), lines[0])
    if failed := found.passed(limits):
        raise LimitPassed(f"{'; '.join(failed)}.")
