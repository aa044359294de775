"""``kernelsight calibrate evaluate``: fit on some GPUs, score on others, next to baselines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.fitting.splits import HEADLINE_TRAIN, SITES_OF_A_GOAL, Split

BASELINES = ("roofline", "roofline_waves", "affine_roofline", "nearest_gpu")
COLUMNS = ("scope", "family", "dtype", "shapes", "n", "mape", "median_ape", "p90_ape", "time_weighted_ape")
COLUMNS += ("bias", "coverage_90", "width_90", *(f"{name}_mape" for name in BASELINES))


def run(arguments: argparse.Namespace) -> None:
    """Evaluate, and print the report as JSON or its scores as a table or CSV."""
    from kernelsight.fitting.baselines import systems_folder
    from kernelsight.fitting.evaluate import evaluate
    from kernelsight.fitting.predict import fit_and_predict
    from kernelsight.kernels.families import FORMS
    from kernelsight.report.output import check_ending, note

    split, target = split_of(arguments), check_ending(arguments.output, (".json", ".csv", ".parquet"))
    sweeps = [Path(name) for name in arguments.sweep]
    systems = systems_folder()
    families = _names(arguments.families) if arguments.families else None
    result, _ = evaluate(
        sweeps, split, fit_and_predict, modelled=FORMS, families=families, final=arguments.final, systems=systems
    )
    if systems is None:
        note("aiconfigurator-core is not installed: baselines use the peak rates of the table gpus.")
    if split.budget:
        note(f"families with fewer than {SITES_OF_A_GOAL} sites are reported, but not part of this tier's goals.")
    show(result, arguments.format, target)


def split_of(arguments: Any) -> Split:
    """Return the split selected by the flags; InvalidInput: budget and tier contradict each other."""
    budget, tier = arguments.budget, arguments.tier
    if budget is not None and not 0.0 < budget < 1.0:
        raise InvalidInput(f"--budget is {budget:g}; give a share of the sites between 0 and 1, such as 0.05.")
    if tier == "cross-generation" and budget:
        raise InvalidInput("--budget cannot be used with --tier cross-generation, which has no test-GPU measurements.")
    if tier == "target-measured" and not budget:
        budget = 0.05
    train = _names(arguments.train_gpus or "") or HEADLINE_TRAIN
    test = _names(arguments.test_gpus)
    if not test:
        raise InvalidInput("--test-gpus is empty; name at least one GPU of the sweep.")
    return Split("asked", train, test, "target-measured" if budget else "cross-generation", budget or 0.0)


def _names(words: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in words.split(",") if word.strip()))


def show(result: Mapping[str, Any], form: str, target: Path | None) -> None:
    """Print the report, and write it to a file: .json in full, .csv and .parquet only the scores."""
    import pyarrow as pa

    from kernelsight.report.output import as_json, note, print_rows, write_table

    rows = score_rows(result)
    if form == "json":
        print(as_json(result))
    else:
        print_rows(rows, list(COLUMNS), form)
        for rejected in result["rejected"]:
            note(f"rejected {rejected['n']:,}: {rejected['reason']}")
    if target and target.suffix == ".json":
        draft = target.with_name(f".{target.name}.draft")
        draft.write_text(as_json(result) + "\n", encoding="utf-8")
        draft.replace(target)
    elif target:
        write_table(pa.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows]), target)


def score_rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row per scope, cell and set of shapes: its metrics, and the MAPE of each baseline.

    Scope: overall, pooled, unseen_implementation; covered (all rows of a cell), seen and unseen (its two parts),
    uncovered.
    """
    rows = _pair_rows("overall", result["overall"], result["overall_baselines"])
    for scope in ("pooled", "unseen_implementation"):
        rows += _pair_rows(scope, result[scope])
    for cell in result["families"]:
        named = {"family": cell["family"], "dtype": cell["dtype"]}
        for scope, part in (("covered", cell), ("seen", cell["seen"]), ("unseen", cell["unseen"])):
            if part["grid"]["n"]:
                rows += [named | row for row in _pair_rows(scope, part, part["baselines"])]
    for cell in result["uncovered"]:
        named = {"family": cell["family"], "dtype": cell["dtype"]}
        rows += [named | row for row in _pair_rows("uncovered", cell, cell["baselines"])]
    return rows


def _pair_rows(scope: str, pair: Mapping[str, Any], baselines: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    return [
        {
            "scope": scope,
            "shapes": shapes,
            **pair[shapes],
            **{f"{name}_mape": one[shapes]["mape"] for name, one in (baselines or {}).items()},
        }
        for shapes in ("grid", "serving")
    ]
