"""Grids of scenarios: rows of flags from JSON axes, a CSV, JSON or Parquet file, a SQL query or a table."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput, name_shown
from kernelsight.files.bounded_files import check_file
from kernelsight.files.bounded_values import parse_json, read_json
from kernelsight.files.budget import ROWS
from kernelsight.files.parquet_files import read_parquet
from kernelsight.scenario.flags import FLAGS

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session
    from kernelsight.files.bounded_files import Refuse

QUERY_WORDS = ("select", "with", "from", "values")
# rows of a grid are held in memory; larger products of axes are most likely a mistake
LARGEST_GRID, MOST_AXES = 2_000_000, 1000


def read_grid(session: Session, grid: str) -> list[dict[str, Any]]:
    """Return the rows of a grid: JSON of axes, a JSON, CSV or Parquet file, or a SQL query of the session's tables."""
    words = grid.split(None, 1)
    if words and words[0].startswith(("{", "[")):
        rows = _json_rows(parse_json(grid, _refusal("the grid"), ROWS), "the grid")
    elif words and words[0].lower() in QUERY_WORDS:
        rows = python_rows(session.query(grid))
    else:
        rows = _read_file(Path(grid))
    if not rows:
        raise InvalidInput(f"the grid {grid:.80} has no rows; give at least one scenario.")
    return rows


def _read_file(path: Path) -> list[dict[str, Any]]:
    if path.suffix not in (".json", ".csv", ".parquet"):
        raise InvalidInput(
            f"the grid {str(path)!r:.80} is neither a .json, .csv or .parquet file, nor JSON, nor a query; a query "
            f"starts with {', '.join(QUERY_WORDS)}."
        )
    name = f"the grid {path}"
    refuse = _refusal(name)
    if path.suffix == ".json":
        return _json_rows(read_json(path, refuse, ROWS), name)
    table = read_parquet(path, refuse) if path.suffix == ".parquet" else _read_csv(path, refuse)
    names = table.column_names
    if len(set(names)) < len(names):
        raise InvalidInput(f"the grid {path} has duplicate columns in its {len(names)}; keep one of each.")
    if table.num_rows > LARGEST_GRID:
        raise InvalidInput(f"the grid {path} has {table.num_rows:,} scenarios; give at most {LARGEST_GRID:,}.")
    try:
        return python_rows(table)
    except ValueError as error:  # Arrow holds times that Python does not
        raise refuse(f"cannot be read ({str(error).splitlines()[0].rstrip('.')})") from None


def _refusal(name: str) -> Refuse:
    """Return a function that builds the error for a grid; ``name``: the grid in the message."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{name} {problem}; give JSON of axes, a table of scenarios as CSV or Parquet, or a query.")

    return refuse


def _read_csv(path: Path, refuse: Refuse) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv

    check_file(path, refuse, ROWS)
    options = pa.csv.ConvertOptions(
        strings_can_be_null=True,
        null_values=["", "null", "NULL"],
        # in the rows that a sweep wrote: hexadecimal digits, which may look like a number
        column_types={"scenario_id": pa.string()},
    )
    try:
        table = pa.csv.read_csv(path, convert_options=options)
        table.validate(full=True)
        _ = table.column_names  # text that is not UTF-8
    except (pa.ArrowException, OSError, ValueError) as error:
        raise refuse(f"cannot be read as CSV ({str(error).splitlines()[0].rstrip('.')})") from None
    return table


def _json_rows(content: Any, name: str) -> list[dict[str, Any]]:
    """Return the rows of parsed JSON: a list of rows, or an object of axes."""
    if isinstance(content, list) and all(isinstance(row, dict) for row in content):
        return content
    if not isinstance(content, dict):
        raise InvalidInput(f"{name} has no axes; give an object with a scalar or a list for each flag.")
    return expand(content)


def expand(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the product of axes, the last one changing fastest; InvalidInput for an empty axis or one of objects."""
    if len(axes) > MOST_AXES:
        raise InvalidInput(f"the grid has {len(axes):,} axes, more than {MOST_AXES:,}; give flags of simulate.")
    lists = {name: _values(values) for name, values in axes.items()}
    for name, values in lists.items():
        if not values:
            raise InvalidInput(f"the axis {name} is empty; give it a value, or remove it.")
        if any(isinstance(value, dict | list) for value in values):
            words = {word.lstrip("-").replace("-", "_") for flag in FLAGS.values() for word in flag.options}
            axis = name_shown(name, words | FLAGS.keys(), "of one name")
            raise InvalidInput(f"the axis {axis} contains a list or an object; use scalars.")
    size = math.prod(len(values) for values in lists.values())
    if size > LARGEST_GRID:
        raise InvalidInput(f"the axes make {size:,} scenarios; give at most {LARGEST_GRID:,}, for instance by a query.")
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())] if lists else []


def _values(axis: Any) -> list[Any]:
    """Return the values of an axis: a list, a tuple, a range or a NumPy array, or a scalar alone."""
    if isinstance(axis, list | tuple | range):
        return list(axis)
    if hasattr(axis, "tolist"):  # as Python numbers
        values = axis.tolist()
        return values if isinstance(values, list) else [values]
    return [axis]


def grid_rows(grid: Any) -> list[dict[str, Any]]:
    """Return a grid's rows of flags: from axes as a dict, a list of rows, or anything with ``__arrow_c_stream__``.

    InvalidInput: something else, or no row.

    >>> grid_rows({"model": "qwen3-0.6b", "max_concurrency": [1, 2]})[1]
    {'model': 'qwen3-0.6b', 'max_concurrency': 2}
    """
    if isinstance(grid, Mapping):
        return expand(grid)
    if hasattr(grid, "__arrow_c_stream__"):
        import pyarrow as pa

        grid = python_rows(pa.table(grid))
    if not isinstance(grid, list) or not grid or not all(isinstance(row, Mapping) for row in grid):
        raise InvalidInput(
            "a grid is a dict of axes, a list of dicts or an Arrow table with one row of flags or more, and was "
            f"{grid!r:.60}."
        )
    return [dict(row) for row in grid]
