"""`kernelsight calibrate evaluate --test-versions`: scores a fitted kernel model on newer engine versions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def evaluate_versions(arguments: argparse.Namespace) -> tuple[dict[str, Any], list[dict[str, Any]], Sequence[str]]:
    """Score a fitted kernel model on newer engine versions: report, rows and columns.

    InvalidInput: options that do not go together, or no measured GPU has rows of those versions.
    """
    from kernelsight.cli.calibrate.evaluate import names_of, points_of
    from kernelsight.errors import InvalidInput
    from kernelsight.fitting.sweep_files import check_sweeps
    from kernelsight.kernels.pack import default_pack, read_pack
    from kernelsight.laboratory.kernels.versions import COLUMNS, NEW, new_versions, scored_versions, version_scores
    from kernelsight.present.output import note

    if not arguments.test_versions or not arguments.train:
        raise InvalidInput("--test-versions and --train belong together: versions to score, and sweeps without them.")
    split_arguments = (arguments.tier, arguments.budget, arguments.train_gpus, arguments.final, arguments.whole_layers)
    if any(split_arguments) or points_of(arguments):
        raise InvalidInput(
            "--test-versions scores a fitted model; "
            "leave out --tier, --budget, --points, --whole-layers, --train-gpus and --final."
        )
    if str(arguments.output or "").endswith(".duckdb"):
        raise InvalidInput("--test-versions writes a report (.json) or its scores (.csv, .parquet), and no .duckdb.")
    sweeps, older = ([Path(name) for name in names] for names in (arguments.sweep, arguments.train))
    check_sweeps([*sweeps, *older])
    pack = read_pack(Path(arguments.pack)) if arguments.pack else default_pack()
    chosen = names_of("" if arguments.test_versions == NEW else arguments.test_versions)
    scored = list(
        scored_versions(
            *(older, sweeps, pack),
            versions_chosen=chosen,
            gpus=names_of(arguments.test_gpus),
            families=names_of(arguments.families),
        )
    )
    if not scored:
        raise InvalidInput("no measured GPU has rows of those versions; give other --test-gpus or --families.")
    used = [":".join(pair) for pair in new_versions(older, sweeps, chosen)]
    if arguments.format != "json":
        note(f"engine_version_used: {', '.join(used)}")
    rows = version_scores(scored)
    return {"engine_version_used": used, "rows": rows}, rows, COLUMNS
