"""Evaluation of a kernel model on GPUs it was not fitted on: test rows with predictions and baselines, and the report.

The model is a function ``fit_and_predict(train, test, tier)``: from training and test rows by family to
(latency_us, p05_us, p95_us) of the test rows by family. It is called with one family at a time to limit memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight import laboratory
from kernelsight.errors import InvalidInput, unknown
from kernelsight.evaluation.kernels.kernel_scores import BASELINES
from kernelsight.files.bounded_files import decoded
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.own import own_json
from kernelsight.files.parquet_files import read_schema
from kernelsight.fitting.cells import is_covered, is_seen, is_serving, measured_by
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.metrics import mean_of, score
from kernelsight.fitting.splits import Split, in_budget, shape_columns
from kernelsight.fitting.sweep_files import check_sweeps, measured_families, measured_gpus, no_sweep
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.kernels.families import MEASURED

Prediction = tuple[np.ndarray, np.ndarray, np.ndarray]
Model = Callable[[Mapping[str, pa.Table], Mapping[str, pa.Table], str], Mapping[str, Prediction]]
# from a family, its training and its test rows to columns of baselines, us; NaN without an answer
Baselines = Callable[[str, pa.Table, pa.Table], dict[str, np.ndarray]]
ScoreRows = Callable[
    [Sequence[Path], Split, Sequence[str], Baselines | None], tuple[dict[str, pa.Table], dict[str, Any]]
]
# measurements of one call per graph replay include a few microseconds that served graphs do not; negligible above this
LONG_US = 20.0
BASELINE_COLUMNS = {name: f"{name}_us" for name in BASELINES}
# predictions with an interval: of the kernel that the sweep names, and of the one assumed for an unmeasured GPU
NAMED = ("predicted_us", "p05_us", "p95_us")
UNMEASURED = ("unmeasured_us", "unmeasured_p05_us", "unmeasured_p95_us")
# columns of a test row that scores need
SCORED = (
    *(
        "family",
        "dtype",
        "gpu",
        "engine",
        "engine_version",
        "implementation",
        "covered",
        "seen",
        "same_kernel",
        "serving",
    ),
    *("flops", "bytes", "latency_us", *NAMED, *UNMEASURED),
)
# key of a Parquet file's metadata that holds the rows an import rejected: JSON array of {gpu, reason, n}
REJECTED_KEY = b"kernelsight.rejected"


def check_gpus(split: Split, measured: set[str], final: bool) -> None:
    """Check the GPUs of a split; ``measured``: GPUs of the sweeps, ``final``: held-out GPUs are allowed.

    InvalidInput: a held-out GPU, or one that is both trained and tested on. UnknownName: a GPU without sweeps.
    """
    for gpu in (*split.train_gpus, *split.test_gpus):
        if gpu in SEALED and not final:
            raise InvalidInput(f"{gpu} is held out for the final evaluation; add --final to score it.")
        if gpu not in measured:
            role = "test" if gpu in split.test_gpus else "train"
            raise unknown(
                "GPU",
                gpu,
                measured,
                f"It is one of --{role}-gpus {','.join(getattr(split, f'{role}_gpus'))}, and the sweep has rows of "
                f"{', '.join(sorted(measured))} alone: an evaluation fits on some GPUs of it and scores others.",
            )
    if in_both := sorted(set(split.train_gpus) & set(split.test_gpus)):
        raise InvalidInput(
            f"{in_both[0]} is both a training and a test GPU; train on a share of its sites with --budget."
        )


def scored_rows(
    sweeps: Sequence[Path], split: Split, model: Model, families: Sequence[str], baselines: Baselines | None
) -> Iterator[tuple[str, pa.Table]]:
    """Yield (family, test rows with predictions): the columns SCORED, and the fields of the family's shape.

    ``baselines``: makes further columns; None: none.
    """
    for family in families:
        train = training_rows(sweeps, family, split.train_gpus, extra="and not_fitted is null")
        test = training_rows(sweeps, family, split.test_gpus)
        fitted = train
        if split.budget:
            in_fit = in_budget(family, test, split.budget, split.whole_layers)
            fitted = pa.concat_tables([train, test.filter(pa.array(in_fit))])
            test = test.filter(pa.array(~in_fit))
        if not test.num_rows:
            continue
        fitted = to_learn(family, fitted)
        unmeasured_test = None
        if fitted.num_rows and not split.budget and laboratory.is_here():
            unmeasured = laboratory.part("kernels.unmeasured", "a GPU as if it were unmeasured")
            unmeasured_test = unmeasured.as_unmeasured(family, sweeps, train, test)
        predicted = _predictions(family, fitted, test, unmeasured_test, model, split.tier)
        yield family, labelled(family, train, fitted, test, predicted, baselines)


def _predictions(
    family: str, fitted: pa.Table, test: pa.Table, unmeasured_test: pa.Table | None, model: Model, tier: str
) -> dict[str, np.ndarray]:
    """Return the columns NAMED and UNMEASURED, us, shape [test rows] each; NaN without a fit.

    ``fitted``: rows to fit on; ``unmeasured_test``: the test rows with the kernels assumed for an unmeasured GPU.
    """
    columns = {name: np.full(test.num_rows, np.nan) for name in (*NAMED, *UNMEASURED)}
    if not fitted.num_rows:
        return columns
    differs = np.zeros(test.num_rows, dtype=bool)
    for name in ("implementation", "math") if unmeasured_test is not None else ():
        differs |= np.asarray(pc.not_equal(*(pc.fill_null(table[name], "") for table in (test, unmeasured_test))))
    rows = pa.concat_tables([test, unmeasured_test.filter(pa.array(differs))]) if unmeasured_test is not None else test
    for number, percentile_us in enumerate(model({family: fitted}, {family: rows}, tier)[family]):
        values_of_test = columns[NAMED[number]] = np.asarray(percentile_us, dtype=float)[: test.num_rows]
        if unmeasured_test is not None:
            columns[UNMEASURED[number]][~differs] = values_of_test[~differs]
            columns[UNMEASURED[number]][differs] = np.asarray(percentile_us, dtype=float)[test.num_rows :]
    return columns


def labelled(
    family: str,
    train: pa.Table,
    fitted: pa.Table,
    test: pa.Table,
    predicted: Mapping[str, np.ndarray],
    baselines: Baselines | None,
) -> pa.Table:
    """Return one family's test rows with labels (covered, seen, serving, ...), predictions and baselines.

    ``train``: rows of the training GPUs; ``fitted``: all rows that were fitted on; ``predicted``: columns by name.
    """
    gpus = measured_by(train)
    seen, same_kernel = is_seen(family, fitted, test)
    covered = {dtype: is_covered(dtype_gpus) for dtype, dtype_gpus in gpus.items()}
    columns = {
        "family": pa.repeat(family, test.num_rows).dictionary_encode(),
        "covered": np.array([covered.get(dtype, False) for dtype in test["dtype"].to_pylist()], dtype=bool),
        "seen": seen,
        "same_kernel": same_kernel,
        "serving": is_serving(family, test),
        **predicted,
    }
    others = baselines(family, train, test) if baselines else {}
    names = dict.fromkeys((*SCORED, *others, *shape_columns(family)))
    columns |= others
    labelled = {name: columns[name] if name in columns else test[name] for name in names}
    return pa.table(labelled).replace_schema_metadata({"train_gpus": json.dumps(gpus)})


def report(scored: Mapping[str, pa.Table], rejected: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the report of an evaluation: scores overall, by family, by GPU and by cell (family, dtype).

    ``families`` holds every row of a covered cell, split into ``seen`` and ``unseen`` implementations. ``pooled``: over
    the rows behind ``overall``; ``above_20_us``: over kernels much longer than the gap of a graph replay;
    ``model_there``: the model on rows that a baseline has an answer for; ``nothing_of_target``: with the kernels that
    the training GPUs make likely instead of those that the target's sweep names. ``more``: further keys of the report.
    """
    cells = [_cell(family, dtype, rows) for family, table in scored.items() for dtype, rows in _by(table, "dtype")]
    covered = [cell for cell in cells if cell["covered"]]
    seen_rows = {family: table.filter(pc.and_(table["covered"], table["seen"])) for family, table in scored.items()}
    gpus = sorted({gpu for table in scored.values() for gpu in table["gpu"].unique().to_pylist()})
    return {
        "overall": _mean_pair([cell["seen"] for cell in covered]),
        "overall_baselines": {
            name: _mean_pair([cell["seen"]["baselines"][name] for cell in covered])
            for name in (covered[0]["baselines"] if covered else BASELINES)
        },
        "pooled": pair_of(list(seen_rows.values())),
        "covered": _mean_pair(covered),
        "nothing_of_target": {
            "overall": _mean_pair([cell["seen"]["nothing_of_target"] for cell in covered]),
            "pooled": pair_of(list(seen_rows.values()), UNMEASURED),
            "covered": _mean_pair([cell["nothing_of_target"] for cell in covered]),
        },
        "unseen_implementation": _mean_pair([cell["unseen"] for cell in covered]),
        "by_family": [
            {
                "family": family,
                **_mean_pair([cell["seen"] for cell in covered if cell["family"] == family]),
                "pooled": pair_of([seen_rows[family]]),
            }
            for family in scored
            if seen_rows[family].num_rows
        ],
        "by_gpu": [
            {"gpu": gpu, **mean_over_cells(_of(seen_rows, gpu)), "pooled": pair_of(_of(seen_rows, gpu))}
            for gpu in (gpus if len(gpus) > 1 else ())
        ],
        "families": [_without(cell, "covered") for cell in covered],
        "uncovered": [_without(cell, "covered") for cell in cells if not cell["covered"]],
        "rejected": list(rejected),
        **more,
    }


def rejected_rows(sweeps: Sequence[Path], gpus: Sequence[str], left_out: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return counts of rejected rows by reason: noted by imports in the sweeps' files, and ``left_out`` of scoring."""
    counts: dict[str, int] = {}
    for path in sweeps:
        note = (read_schema(path, partial(no_sweep, path)).metadata or {}).get(REJECTED_KEY, b"[]")
        for row in _noted_rows(path, note):
            if row["gpu"] in gpus:
                counts[row["reason"]] = counts.get(row["reason"], 0) + int(row["n"])
    return [{"reason": reason, "n": n} for reason, n in {**counts, **left_out}.items()]


def _noted_rows(path: Path, note: bytes) -> list[dict[str, Any]]:
    """Return the rejected rows that an import noted in a sweep; InvalidInput: a malformed note."""

    def refuse(problem: str) -> InvalidInput:
        return no_sweep(path, f"has a note of rejected rows that {problem}")

    rows = parse_json(decoded(note, refuse), refuse)
    fields = {"gpu", "reason", "n"}
    if not isinstance(rows, list) or not all(isinstance(row, dict) and fields <= row.keys() for row in rows):
        raise refuse("is no list of objects with gpu, reason and n")
    return rows


def evaluate(
    sweeps: Sequence[Path],
    split: Split,
    model: Model | None,
    *,
    modelled: Container[str] = MEASURED,
    families: Sequence[str] | None = None,
    final: bool = False,
    baselines: Baselines | None = None,
    score_rows: ScoreRows | None = None,
) -> tuple[dict[str, Any], dict[str, pa.Table]]:
    """Return the report of a model that is fitted without the test GPUs, or with a budget of their sites; and its rows.

    ``modelled``: families that the model can predict; rows of others are counted under ``rejected``; ``families``: to
    score, None: all; ``baselines``: see ``scored_rows``; ``score_rows``: makes the rows of all families where they are
    not one model a family; its second value adds keys to the report. InvalidInput, UnknownName: GPUs or families that
    the sweeps do not hold, or that are held out.
    """
    check_sweeps(sweeps)
    check_gpus(split, measured_gpus(sweeps), final)
    counts = measured_families(sweeps, split.test_gpus)
    for family in families or ():
        if family not in counts:
            raise unknown(
                "kernel family", family, counts, f"The sweep holds no such row of {', '.join(split.test_gpus)}."
            )
    scorable = [family for family in counts if family in MEASURED and family in modelled]
    chosen_families = [family for family in scorable if not families or family in families]
    more: dict[str, Any] = {}
    if score_rows is not None:
        scored, more = score_rows(sweeps, split, chosen_families, baselines)
    elif model is not None:
        scored = dict(scored_rows(sweeps, split, model, chosen_families, baselines))
    left_out = {}
    for family, n in counts.items():
        if families and family not in families:
            continue
        if family not in scorable:
            left_out[f"no expression for the family {family}"] = n
        elif family not in scored:
            left_out[f"every site of the family {family} is in the budget"] = n
    rejected = rejected_rows(sweeps, (*split.train_gpus, *split.test_gpus), left_out)
    return report(scored, rejected, split=split._asdict(), **more), scored


def _cell(family: str, dtype: str, rows: pa.Table) -> dict[str, Any]:
    """Return the report's entry of one cell: scores of all its rows, and of seen and unseen implementations."""
    gpus = own_json((rows.schema.metadata or {})[b"train_gpus"]).get(dtype, [])
    seen = rows["seen"]
    return {
        "family": family,
        "dtype": dtype,
        "train_gpus": gpus,
        "covered": bool(rows["covered"][0].as_py()),
        **_with_baselines(rows),
        "seen": _with_baselines(rows.filter(seen)),
        "unseen": _with_baselines(rows.filter(pc.invert(seen))),
    }


def _with_baselines(rows: pa.Table) -> dict[str, Any]:
    """Return scores of rows on grid and serving shapes: of the model, of its long kernels, and of each baseline."""
    return {
        **pair_of([rows]),
        "above_20_us": pair_of([rows.filter(pc.greater(rows["latency_us"], LONG_US))]),
        "nothing_of_target": pair_of([rows], UNMEASURED),
        "baselines": {
            # a baseline without an answer for some rows is compared on those that it has one for
            name: {**pair_of([rows], (column,)), "model_there": pair_of([rows.filter(pc.is_finite(rows[column]))])}
            for name, column in BASELINE_COLUMNS.items()
            if column in rows.column_names
        },
    }


def pair_of(tables: Sequence[pa.Table], columns: Sequence[str] = NAMED) -> dict[str, Any]:
    """Return scores {"grid", "serving"} of the rows of all tables; ``columns``: a prediction, and its interval."""
    return {
        "grid": _score(tables, columns),
        "serving": _score([table.filter(table["serving"]) for table in tables], columns),
    }


def _score(tables: Sequence[pa.Table], columns: Sequence[str]) -> dict[str, Any]:
    def all_of(name: str) -> np.ndarray:
        return np.concatenate([np.empty(0), *(table[name].to_numpy() for table in tables)])

    return score(all_of("latency_us"), *map(all_of, columns))


def _mean_pair(pairs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {shapes: mean_of([pair[shapes] for pair in pairs]) for shapes in ("grid", "serving")}


def mean_over_cells(tables: Sequence[pa.Table]) -> dict[str, Any]:
    """Return scores {"grid", "serving"}, means over cells (family, dtype); ``tables``: rows of one family each."""
    return _mean_pair([pair_of([rows]) for table in tables for _, rows in _by(table, "dtype")])


def _of(rows_of_family: Mapping[str, pa.Table], gpu: str) -> list[pa.Table]:
    return [table.filter(pc.equal(table["gpu"], gpu)) for table in rows_of_family.values()]


def _by(table: pa.Table, name: str) -> Iterator[tuple[str, pa.Table]]:
    for value in sorted(table[name].unique().to_pylist()):
        yield value, table.filter(pc.equal(table[name], value))


def _without(cell: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in cell.items() if key != name}
