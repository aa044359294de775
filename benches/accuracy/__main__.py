"""Kernel errors of every split of the evaluation, beside baselines and the difference of repeated measurements.

python benches/accuracy --sweep sweep.parquet [--only cross-generation ...] [--families gemm,moe] [-o FOLDER]: Markdown
tables on stdout; with -o also the reports (JSON), the tables, and with the extra ``report`` three pictures.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import recorded
import tables

from kernelsight.errors import extra_missing
from kernelsight.evaluation.kernels.evaluate import evaluate
from kernelsight.evaluation.kernels.predict import fit_and_predict
from kernelsight.fitting.splits import GENERATIONS, HEADLINE_TRAIN, Split, generation_folds
from kernelsight.kernels.families import FAMILIES
from kernelsight.laboratory.kernels.baselines import shipped_baselines
from kernelsight.laboratory.kernels.remeasurement import remeasurement_floors
from kernelsight.present.output import as_json, note

ALL_GPUS = tuple(gpu for members in GENERATIONS.values() for gpu in members)
FP4_CELLS = ("nvfp4", "w4a8_mxfp4_mxfp8")
BUDGETS = (0.05, 0.1, 0.5)
LAYERS = "target-measured, whole layers"


def splits() -> dict[str, list[Split]]:
    """Return the splits of each section, by section name."""
    with_rtx = (*HEADLINE_TRAIN, "rtx_pro_6000_server")
    return {
        "cross-generation": [
            Split(f"to {gpu}", HEADLINE_TRAIN, (gpu,)) for gpu in ("gb200", "b200_sxm", "rtx_pro_6000_server")
        ],
        "cross-generation, fp4": [Split("fp4 to gb200", with_rtx, ("gb200",))],
        "leave-one-generation-out": generation_folds(ALL_GPUS),
        "leave-one-generation-out, training GPUs": [
            fold._replace(name=f"{fold.name}, of four GPUs") for fold in generation_folds(HEADLINE_TRAIN)
        ],
        "target-measured": [
            Split(f"{budget:.0%} of gb200", HEADLINE_TRAIN, ("gb200",), "target-measured", budget) for budget in BUDGETS
        ],
        LAYERS: [
            Split(f"{budget:.0%} of gb200, layers", HEADLINE_TRAIN, ("gb200",), "target-measured", budget, True)
            for budget in BUDGETS[1:]
        ],
    }


def main() -> None:
    """Evaluate the named sections, print their tables, and record them with ``--record``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", nargs="+", required=True, type=Path)
    parser.add_argument("--only", nargs="+", choices=list(splits()), default=list(splits()))
    parser.add_argument("--families", help="families, separated by commas; unset: all")
    parser.add_argument("-o", "--output", type=Path, help="folder for reports, tables and pictures")
    parser.add_argument("--record", action="store_true", help="record the figures in benches/results/")
    parser.add_argument("--resume", action="store_true", help="reuse the reports in -o FOLDER")
    arguments = parser.parse_args()
    families = arguments.families.split(",") if arguments.families else None
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
    reuse = arguments.output if arguments.resume else None
    printed, sections = [], {}
    for section in arguments.only:
        wanted_families = families or (["moe"] if section == LAYERS else None)
        reports, scored = run(arguments.sweep, splits()[section], wanted_families, arguments.output, reuse)
        sections[section] = reports
        printed.append(f"## {section}\n\n{text(section, reports)}")
        print(printed[-1], flush=True)
        if arguments.output and scored and section in ("cross-generation", "leave-one-generation-out"):
            picture(scored, arguments.output / section)
    if arguments.record and not families:
        for path in recorded.keep(sections):
            note(f"wrote {path}")
    if arguments.output:
        (arguments.output / "tables.md").write_text("\n\n".join(printed) + "\n", encoding="utf-8")


def run(
    sweeps: Sequence[Path],
    splits_of_section: Sequence[Split],
    families: Sequence[str] | None,
    folder: Path | None,
    reuse: Path | None,
) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return the reports of splits by name, and the scored rows of the first split (of folds: of all).

    ``folder``: reports are written there; ``reuse``: a report in it is used instead of a new evaluation.
    """
    reports: dict[str, Any] = {}
    rows_of: dict[str, list[pa.Table]] = {}
    for split in splits_of_section:
        name = f"{split.name.replace(' ', '_')}.json"
        if reuse and (reuse / name).is_file():
            reports[split.name] = json.loads((reuse / name).read_text(encoding="utf-8"))
            continue
        started = time.perf_counter(), time.process_time()
        report, scored = evaluate(
            sweeps, split, fit_and_predict, modelled=FAMILIES, families=families, baselines=shipped_baselines()
        )
        report["remeasurement"] = remeasurement_floors(sweeps, split.test_gpus)
        if split.name.startswith("fp4"):
            report = only_fp4(report)
        report["cpu_s"] = time.process_time() - started[1]
        note(f"{split.name}: {time.perf_counter() - started[0]:.0f} s, {report['cpu_s']:.0f} CPU-s")
        reports[split.name] = report
        if folder:
            (folder / name).write_text(as_json(report) + "\n", encoding="utf-8")
        if split is splits_of_section[0] or split.name.startswith("without"):
            for family, rows in scored.items():
                rows_of.setdefault(family, []).append(rows.replace_schema_metadata(None))
    return reports, {family: pa.concat_tables(rows) for family, rows in rows_of.items()}


def only_fp4(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a report of the FP4 cells only; one generation measured them, so they count as uncovered."""
    cells = [cell for cell in (*report["families"], *report["uncovered"]) if cell["dtype"] in FP4_CELLS]
    return {**report, "families": [], "uncovered": cells}


def text(section: str, reports: Mapping[str, Any]) -> str:
    """Return the tables of a section as Markdown."""
    parts = []
    for shapes, words in tables.SHAPES.items():
        if "fp4" not in section:
            parts.append(
                f"Mean over covered cells, implementation seen, {words} (%):\n\n{tables.summary(reports, shapes)}"
            )
        if section.startswith("leave"):
            parts.append(
                f"By held-out generation, {words}, model (a·roofline + t0), %:\n\n{tables.folds(reports, shapes)}"
            )
            continue
        for name, report in reports.items():
            parts.append(f"{name}, {words} (%, MAPE / median):\n\n{tables.cells(report, shapes)}")
    if section == "cross-generation":
        parts.append(f"Two measurements of one kernel:\n\n{tables.remeasured(reports)}")
        parts += [f"Against baselines, {name}:\n\n{tables.beaten(report)}" for name, report in reports.items()]
    return "\n\n".join(parts)


def picture(scored: Mapping[str, pa.Table], folder: Path) -> None:
    """Draw the scored rows, if the extra ``report`` is installed."""
    try:
        import altair  # noqa: F401
    except ImportError:
        note(f"no pictures: {extra_missing('a picture', 'altair', 'report')}")
        return
    import plots

    folder.mkdir(exist_ok=True)
    for path in plots.draw(scored, folder):
        note(f"wrote {path}")


if __name__ == "__main__":
    main()
