"""`kernelsight search choose`: chooses the fastest implementation of a kernel family per shape, with probabilities."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import TABLE_ENDINGS, add_gpus, add_output, open_session
from kernelsight.errors import InvalidInput
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


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    add_inputs(verb)
    verb.add_argument(
        "--tolerance",
        type=float,
        default=0.02,
        metavar="R",
        help="expected loss of latency above which a shape should be measured first (default: 0.02)",
    )
    verb.add_argument("--candidates", metavar="FILE", help="also write every implementation of every shape")
    add_output(verb, "write one row per shape (.parquet, .csv, .json), or the question with its tables (.duckdb)")


def add_inputs(verb: argparse.ArgumentParser) -> None:
    """Add the flags that `search choose` and `search plan` share."""
    verb.add_argument("--gpu", required=True, metavar="G", help="GPU to choose for; measured a little, or never")
    verb.add_argument("--family", required=True, metavar="F", help="kernel family, such as decode_attention, moe, gemm")
    verb.add_argument(
        "--sweep",
        nargs="+",
        required=True,
        metavar="S",
        help="Parquet files written by `calibrate import` or `measure`",
    )
    verb.add_argument("--sources", metavar="A,B", help="GPUs to learn from (default: all others of the sweeps)")
    verb.add_argument(
        "--calls", metavar="FILE", help="Parquet of kernel calls: only their shapes (default: all shapes of the sweeps)"
    )
    add_gpus(verb)


def run(arguments: argparse.Namespace) -> None:
    """Choose, write the choices, and print how often each implementation was chosen, by number format and engine."""
    from kernelsight.present.output import Waiting, as_json, check_ending, print_page, print_rows, write_table

    target, candidates_target = (
        check_ending(arguments.output),
        check_ending(arguments.candidates, TABLE_ENDINGS, "--candidates"),
    )
    if not 0.0 <= arguments.tolerance < math.inf:
        raise InvalidInput(f"--tolerance is {arguments.tolerance:g}; give a fraction of 0 or more, such as 0.02.")
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
        print(as_json({**_totals(choices), "rows": rows}))
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
