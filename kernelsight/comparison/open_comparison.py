"""Entry point of `compare`: opens a Comparison (requests), StageComparison (statistics) or BaselineComparison."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kernelsight.comparison.baseline_comparison import BaselineComparison
from kernelsight.comparison.comparison import Comparison
from kernelsight.comparison.log_files import LogFiles
from kernelsight.comparison.question import Question
from kernelsight.comparison.stage_comparison import StageComparison
from kernelsight.errors import InvalidInput
from kernelsight.scenario.argument_checks import mapping_of, one_of

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session


def open_comparison(
    session: Session,
    files: LogFiles,
    deployment: Mapping[str, Any] | None,
    flags: Mapping[str, Any],
    *,
    stated: Mapping[str, Any] | None,
    fit: str,
    hold_out: float,
    suspects: str,
) -> Comparison | StageComparison | BaselineComparison:
    """Return the comparison of logs with a deployment or a baseline; arguments are those of ``Session.compare``.

    ``session``: a session of its own, which it keeps. InvalidInput: an argument out of range, a flag that is given
    twice, or logs that cannot be read.
    """
    deployment_flags = mapping_of("deployment", deployment, "{'model': 'qwen3-32b', 'gpu': 'h100_sxm'}")
    repeated = sorted({*flags} & {*deployment_flags})
    if repeated:
        raise InvalidInput(f"{repeated[0]} is an argument, and in deployment too; give it once.")
    load = mapping_of("stated", stated, "{'request_rate': 4.0}") or None
    one_of("fit", fit, ("none", "host", "parts"))
    one_of("suspects", suspects, ("all", "none"))
    if not isinstance(hold_out, int | float) or not 0.0 < hold_out < 1.0:
        raise InvalidInput(f"hold_out is {hold_out!r}; give a share of the time above 0 and below 1.")
    tables = files.tables()
    question = Question(deployment_flags | {**flags}, load, fit, hold_out, suspects)
    if files.baseline is not None:
        return BaselineComparison(session, tables, files.earlier_tables(), question)
    if not tables["production_requests"].num_rows and tables["production_summaries"].num_rows:
        return StageComparison(session, tables, question)
    return Comparison(session, tables, question)
