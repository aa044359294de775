"""`kernelsight search choose`: chooses the fastest implementation of a kernel family per shape, with probabilities."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import TABLE_ENDINGS, open_session
from kernelsight.number_format import percent

if TYPE_CHECKING:
    import pyarrow as pa


SHOWN = ("dtype", "engine", "implementation", "shapes", "p_fastest", "expected_regret", "measure_first", "regret")
SUMMARY = """
select dtype, engine, implementation, count(*) as shapes, avg(p_fastest) as p_fastest,
       avg(expected_regret) as expected_regret, count(*) filter (decision = 'measure') as measure_first,
       avg(regret) as regret
from choices group by all order by dtype, shapes desc, engine, implementation
"""


def run(arguments: argparse.Namespace) -> None:
    """Choose, write the choices, and print how often each implementation was chosen, by number format and engine."""
    from kernelsight.present.output import answer_json, check_ending, print_page, print_rows, write_table
    from kernelsight.present.progress import Waiting

    target, candidates_target = (
        check_ending(arguments.output),
        check_ending(arguments.candidates, TABLE_ENDINGS, "--candidates"),
    )
    with open_session(arguments) as session:
        session.give("choice_questions", [question(arguments) | {"tolerance": arguments.tolerance}])
        with Waiting("choosing"):
            choices = session.table("choices")
        if candidates_target:
            write_table(session.table("choice_candidates"), candidates_target)
        if target and target.suffix == ".duckdb":
            session.save(target, [*sorted(session.given()), "choice_candidates", "choices"])
        elif target:
            write_table(choices, target)
        rows = [dict(zip(SHOWN, row, strict=True)) for row in session.sql(SUMMARY).fetchall()]
    if arguments.format == "table":
        print_page([_sentence(arguments, choices), ""])
    if arguments.format == "json":
        print(answer_json({**_totals(choices), "rows": rows}))
    else:
        print_rows(rows, list(SHOWN), arguments.format)


def question(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the row of ``choice_questions`` of parsed arguments."""
    sources = [name.strip() for name in (arguments.sources or "").split(",") if name.strip()]
    measured = {"gpu": arguments.gpu, "family": arguments.family, "sweeps": list(arguments.sweep)}
    return {**measured, "sources": sources or None, "calls": arguments.calls}


def _totals(choices: pa.Table) -> dict[str, Any]:
    import pyarrow.compute as pc

    counts = {row["values"]: row["counts"] for row in pc.value_counts(choices["decision"]).to_pylist()}
    return {
        "shapes": choices.num_rows,
        **{name: counts.get(name, 0) for name in ("measured", "trust", "measure")},
        "p_fastest": pc.mean(choices["p_fastest"]).as_py(),
        "expected_regret": pc.mean(choices["expected_regret"]).as_py(),
        "tier": choices["tier"][0].as_py(),
        "evidence": choices["evidence"][0].as_py(),
    }


def _sentence(arguments: argparse.Namespace, choices: pa.Table) -> str:
    totals = _totals(choices)
    return (
        f"{arguments.family} on {arguments.gpu}, {totals['shapes']:,} shapes ({totals['tier']}: {totals['evidence']}): "
        f"the picks are expected to cost {percent(totals['expected_regret'], 1)} over the fastest; "
        f"measure {totals['measure']:,} shapes first."
    )
