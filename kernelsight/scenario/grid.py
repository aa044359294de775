"""Grids of scenarios: read from a file, a query or rows, expanded, checked row by row, and planned as tables."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.dataflow.rows import give_rows
from kernelsight.errors import InvalidInput, KernelSightError
from kernelsight.scenario.flags import ALIASES, DEPLOYMENT_FLAGS, DRAFT_FLAGS, LOAD_FLAGS, POOL_FLAGS, PREFILL_FLAGS
from kernelsight.scenario.load_rules import check_load
from kernelsight.scenario.objectives import PRICE
from kernelsight.scenario.plan import (
    and_drafts,
    deployment_rows,
    deployments_of,
    normalise,
    resolve_names,
    scenario_row,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

QUERY_WORDS = ("select", "with", "from", "values")
# one grid is held in memory as rows; beyond this a table with fewer axes is what was meant
LARGEST_GRID = 5_000_000
# flags that are names, which catalogues spell in their own way
NAMES = (
    *("model", "gpu", "quantization", "prefill_gpu", "kv_transfer_fabric"),
    *("speculative_method", "speculative_model"),
)


class Plan(NamedTuple):
    """A checked grid: flags by their full names, with the rows of ``deployments`` and ``scenarios`` that they make."""

    flags: list[dict[str, Any]]
    deployments: dict[str, dict[str, Any]]
    scenarios: list[dict[str, Any]]
    prices: list[float | None]


def read_grid(session: Session, grid: str) -> list[dict[str, Any]]:
    """Return the rows of a grid: the path of a JSON, CSV or Parquet file, or a SQL query over the session's tables.

    >>> from kernelsight.session import connect
    >>> with connect() as session:
    ...     read_grid(session, "select 'qwen3-0.6b' as model, gpu from gpus where gpu = 't4'")
    [{'model': 'qwen3-0.6b', 'gpu': 't4'}]
    """
    words = grid.split(None, 1)
    is_query = bool(words) and words[0].lower() in QUERY_WORDS
    rows = session.query(grid).to_pylist() if is_query else _read_file(Path(grid))
    if not rows:
        raise InvalidInput(f"the grid {grid:.80} has no row; give at least one scenario.")
    return rows


def _read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix not in (".json", ".csv", ".parquet"):
        raise InvalidInput(
            f"the grid {str(path)!r:.80} is neither a .json, .csv or .parquet file nor a query; a query starts with "
            f"{', '.join(QUERY_WORDS)}."
        )
    if not path.is_file():
        raise InvalidInput(f"there is no grid file {path}; give a JSON file of axes, a table of scenarios, or a query.")
    if path.suffix == ".json":
        return _read_json(path)
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet

    try:
        if path.suffix == ".parquet":
            table = pa.parquet.read_table(path)
        else:
            table = pa.csv.read_csv(path, convert_options=pa.csv.ConvertOptions(strings_can_be_null=True))
    except pa.ArrowException as error:
        raise InvalidInput(f"the grid {path} cannot be read: {str(error).splitlines()[0]}.") from None
    if len(set(table.column_names)) < table.num_columns:
        raise InvalidInput(f"the grid {path} has a column twice: {', '.join(table.column_names)}; keep one of each.")
    return table.to_pylist()


def _read_json(path: Path) -> list[dict[str, Any]]:
    try:
        stated = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the grid {path} is not JSON: {error}.") from None
    if isinstance(stated, list) and all(isinstance(row, dict) for row in stated):
        return stated
    if not isinstance(stated, dict):
        raise InvalidInput(f"the grid {path} holds no axes; give an object with a scalar or a list for each flag.")
    return expand(stated)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is stated twice; keep one")
    return dict(pairs)


def expand(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the product of axes, the last one changing fastest; InvalidInput for an empty axis or one of objects.

    >>> expand({"model": "qwen3-0.6b", "max_concurrency": [1, 2]})
    [{'model': 'qwen3-0.6b', 'max_concurrency': 1}, {'model': 'qwen3-0.6b', 'max_concurrency': 2}]
    """
    lists = {name: values if isinstance(values, list) else [values] for name, values in axes.items()}
    for name, values in lists.items():
        if not values:
            raise InvalidInput(f"the axis {name} is empty; give it a value, or leave it out.")
        if any(isinstance(value, dict | list) for value in values):
            raise InvalidInput(f"the axis {name} holds a list or an object; give scalars.")
    size = math.prod(len(values) for values in lists.values())
    if size > LARGEST_GRID:
        raise InvalidInput(f"the axes make {size:,} scenarios; give at most {LARGEST_GRID:,}, for instance by a query.")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())] if lists else []


def plan_grid(session: Session, rows: list[Mapping[str, Any]], goodput: Mapping[str, float] | None = None) -> Plan:
    """Return the plan of rows of flags; models and GPUs that rows name by path join the session's tables.

    ``goodput``: objectives of every row. A refusal names the row, counted from 1; so does that of two rows that are
    the same scenario, because either could have been meant to be another.
    """
    plan = Plan([], {}, [], [])
    seen: dict[str, int] = {}
    known_names: dict[tuple, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=1):
        try:
            flags, price = _row_flags(session, row, goodput or {}, known_names)
            deployments = deployment_rows(flags)
            scenario = scenario_row(flags, deployments[0])
        except KernelSightError as error:
            raise type(error)(f"row {number} of the grid: {error}") from None
        first = seen.setdefault(scenario["scenario_id"], number)
        if first != number:
            raise InvalidInput(f"rows {first} and {number} of the grid are the same scenario; keep one of them.")
        plan.flags.append(flags)
        plan.prices.append(price)
        plan.deployments.update({row["deployment_id"]: row for row in deployments})
        plan.scenarios.append(scenario)
    _check_deployments(session, plan)
    return plan


def _row_flags(
    session: Session, row: Mapping[str, Any], goodput: Mapping[str, float], known_names: dict[tuple, dict[str, Any]]
) -> tuple[dict[str, Any], float | None]:
    """Return one row's flags by their full names, and its price."""
    stated = {name: value for name, value in row.items() if value is not None and name != PRICE}
    for alias, name in ALIASES.items():
        if alias in stated and name in stated:
            raise InvalidInput(f"{alias} and {name} are the same flag; keep one.")
    if "keep_steps" in stated:
        raise InvalidInput("a sweep keeps one row a scenario; leave out keep_steps, or use simulate --keep steps.")
    for name in goodput:
        if name in stated:
            raise InvalidInput(f"{name} is stated by the row and by --goodput; keep one.")
    flags = normalise({**stated, **goodput})
    named = tuple(flags.get(name) for name in NAMES)
    if named not in known_names:
        known_names[named] = resolve_names(session, {name: flags[name] for name in NAMES if name in flags})
    flags |= known_names[named]
    check_load(flags)
    return flags, _price(row.get(PRICE))


def _price(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InvalidInput(f"{PRICE} is {value!r}; give a finite number, 0 or more.")
    return float(value)


def _check_deployments(session: Session, plan: Plan) -> None:
    """Let the contracts look at all rows at once; where they find a fault, name the grid's first row that has it."""
    with session.fork() as fork:
        try:
            give_rows(fork, "deployments", plan.deployments.values())
            give_rows(fork, "scenarios", plan.scenarios)
            return
        except KernelSightError:
            pass
        for number, scenario in enumerate(plan.scenarios, start=1):
            try:
                keys = and_drafts(deployments_of(scenario), plan.deployments)
                give_rows(fork, "deployments", [plan.deployments[key] for key in keys])
                give_rows(fork, "scenarios", [scenario])
            except KernelSightError as error:
                raise type(error)(f"row {number} of the grid: {error}") from None


def flag_columns(session: Session, plan: Plan) -> pa.Table:
    """Return scenario_id, the flags that some row states, and the price where one does, in the order of the grid.

    Columns have the types of the contracts of ``deployments`` and ``scenarios``.
    """
    import pyarrow as pa

    types = {column.name: column.arrow_type for column in session.graph.known("scenarios").columns}
    columns = {column.name: column.arrow_type for column in session.graph.known("deployments").columns}
    types |= {flag: columns[column] for flag, column in DEPLOYMENT_FLAGS.items()} | dict.fromkeys(
        DRAFT_FLAGS, pa.string()
    )
    types |= {name: types[flag] for name, flag in PREFILL_FLAGS.items()}
    stated = {name for flags in plan.flags for name in flags}
    table = {
        "scenario_id": pa.array([row["scenario_id"] for row in plan.scenarios], pa.string()),
    }
    for name in [*DEPLOYMENT_FLAGS, *DRAFT_FLAGS, *PREFILL_FLAGS, *POOL_FLAGS, *LOAD_FLAGS]:
        if name in stated:
            table[name] = pa.array([flags.get(name) for flags in plan.flags], types[name])
    if any(price is not None for price in plan.prices):
        table[PRICE] = pa.array(plan.prices, pa.float64())
    return pa.table(table)
