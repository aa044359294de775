"""Grids of scenarios: rows of flags from JSON axes, a CSV, JSON or Parquet file, a SQL query or a table."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import InvalidInput, name_shown
from kernelsight.files.bounded_files import open_file
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
NUMBER = "number of the row"


class Grid:
    """Rows of flags that are made when they are needed: the product of ``axes``, or those of an Arrow table.

    A row has the number, counted from 1, that it has in the grid as it was given, in whatever order rows are made.
    """

    def __init__(self, axes: Mapping[str, list[Any]], table: pa.Table | None = None) -> None:
        self.axes, self._table, self._order = dict(axes), table, list(axes)
        self._numbers = range(1, 1 + (table.num_rows if table is not None else math.prod(map(len, axes.values()))))
        sizes = [len(values) for values in axes.values()]
        self._strides = {name: math.prod(sizes[place + 1 :]) for place, name in enumerate(axes)}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.axes) if self._table is None else self._table.column_names

    def values(self, name: str) -> list[Any]:
        """Return the different values of a column but null."""
        if self._table is None:
            return list(dict.fromkeys(self.axes.get(name, ())))
        values = self._table[name].unique().to_pylist() if name in self.names else []
        return [value for value in values if value is not None]

    def sort(self, first: Collection[str]) -> None:
        """Make rows that have the columns ``first`` in common beside each other."""
        if self._table is None:
            self._order = sorted(self.axes, key=lambda name: name not in first)
        elif keys := [name for name in self.names if name in first]:
            import pyarrow.compute as pc

            order = pc.sort_indices(self._table.select(keys), [(name, "ascending") for name in keys])
            self._table, self._numbers = self._table.take(order), [1 + number for number in order.to_pylist()]

    def block(self, start: int, stop: int) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the numbers and the rows of a block."""
        stop = min(stop, len(self))
        if self._table is not None:
            return list(self._numbers[start:stop]), python_rows(self._table.slice(start, stop - start))
        numbers, columns, stride = [1] * (stop - start), {}, 1
        for name in reversed(self._order):
            values = self.axes[name]
            digits = [place // stride % len(values) for place in range(start, stop)]
            columns[name] = [values[digit] for digit in digits]
            numbers = [number + digit * self._strides[name] for number, digit in zip(numbers, digits, strict=True)]
            stride *= len(values)
        rows = zip(*(columns[name] for name in self.axes), strict=True)
        return numbers, [dict(zip(self.axes, row, strict=True)) for row in rows]

    def samples(self, most: int = 1000) -> tuple[list[int], list[dict[str, Any]]]:
        """Return the numbers and the rows in which values of columns occur first, of each column at most ``most``."""
        if self._table is None:
            places = {place * self._strides[name]
                      for name, values in self.axes.items() for place in range(min(len(values), most))}  # fmt: skip
            rows = [{name: values[place // self._strides[name] % len(values)] for name, values in self.axes.items()}
                    for place in sorted(places)]  # fmt: skip
            return [place + 1 for place in sorted(places)], rows
        whole = self._table.append_column(NUMBER, [list(range(len(self)))])
        firsts = {place for name in self.names
                  for place in whole.group_by(name).aggregate([(NUMBER, "min")])[f"{NUMBER}_min"].to_pylist()[:most]
                 }  # fmt: skip
        return [self._numbers[place] for place in sorted(firsts)], python_rows(self._table.take(sorted(firsts)))

    def digest(self) -> str:
        """Return a SHA-256 of the rows as they were given."""
        from kernelsight.caches.disk_cache import content_digest

        if self._table is not None:
            return content_digest(self._table).hex()
        return hashlib.sha256(json.dumps(self.axes, default=str).encode()).hexdigest()


def open_grid(session: Session, grid: str, shared: Mapping[str, Any]) -> Grid:
    """Return a grid without making its rows; ``shared``: flags of columns that it lacks. See ``read_grid``."""
    import pyarrow as pa

    content, name = _content(session, grid)
    if isinstance(content, Mapping):
        return Grid(_axes({**shared, **content}))
    if isinstance(content, list):
        try:
            content = pa.Table.from_pylist(content)
        except (pa.ArrowException, TypeError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise InvalidInput(f"{name} has values of several types in a column ({why}); give one type.") from None
    if not content.num_rows:
        raise _empty(grid)
    for flag in set(shared) - set(content.column_names):
        content = content.append_column(flag, pa.array([shared[flag]] * content.num_rows))
    return Grid({}, content)


def read_grid(session: Session, grid: str) -> list[dict[str, Any]]:
    """Return the rows of a grid: JSON of axes, a JSON, CSV or Parquet file, or a SQL query of the session's tables."""
    content, name = _content(session, grid)
    if isinstance(content, Mapping):
        rows = expand(content)
    elif isinstance(content, list):
        rows = content
    else:
        try:
            rows = python_rows(content)
        except ValueError as error:  # Arrow holds times that Python does not
            raise _refusal(name)(f"cannot be read ({str(error).splitlines()[0].rstrip('.')})") from None
    if not rows:
        raise _empty(grid)
    return rows


def _empty(grid: str) -> InvalidInput:
    return InvalidInput(f"the grid {grid:.80} has no rows; give at least one scenario.")


def _content(session: Session, grid: str) -> tuple[Mapping[str, Any] | list[dict[str, Any]] | pa.Table, str]:
    """Return the axes, rows or table of a grid, and what it is called."""
    words = grid.split(None, 1)
    if words and words[0].startswith(("{", "[")):
        return _of_json(parse_json(grid, _refusal("the grid"), ROWS), "the grid"), "the grid"
    if words and words[0].lower() in QUERY_WORDS:
        return session.query(grid), "the grid"
    path = Path(grid)
    if path.suffix not in (".json", ".csv", ".parquet"):
        raise InvalidInput(
            f"the grid {str(path)!r:.80} is neither a .json, .csv or .parquet file, nor JSON, nor a query; a query "
            f"starts with {', '.join(QUERY_WORDS)}."
        )
    name = f"the grid {path}"
    refuse = _refusal(name)
    if path.suffix == ".json":
        return _of_json(read_json(path, refuse, ROWS), name), name
    table = read_parquet(path, refuse) if path.suffix == ".parquet" else _read_csv(path, refuse)
    names = table.column_names
    if len(set(names)) < len(names):
        raise InvalidInput(f"the grid {path} has duplicate columns in its {len(names)}; keep one of each.")
    if table.num_rows > LARGEST_GRID:
        raise InvalidInput(f"the grid {path} has {table.num_rows:,} scenarios; give at most {LARGEST_GRID:,}.")
    return table, name


def _refusal(name: str) -> Refuse:
    """Return a function that builds the error for a grid; ``name``: the grid in the message."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{name} {problem}; give JSON of axes, a table of scenarios as CSV or Parquet, or a query.")

    return refuse


def _read_csv(path: Path, refuse: Refuse) -> pa.Table:
    import pyarrow as pa
    import pyarrow.csv

    with open_file(path, refuse, ROWS) as file:
        columns = file.readline(1 << 20).count(b",") + 1
    if columns > MOST_AXES:
        raise refuse(f"has {columns:,} columns, more than the {MOST_AXES:,} of any table of scenarios")
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


def _of_json(content: Any, name: str) -> Mapping[str, Any] | list[dict[str, Any]]:
    """Return parsed JSON that is a list of rows, or an object of axes."""
    if isinstance(content, Mapping) or (isinstance(content, list) and all(isinstance(row, dict) for row in content)):
        return content
    raise InvalidInput(f"{name} has no axes; give an object with a scalar or a list for each flag.")


def expand(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the product of axes, the last one changing fastest; InvalidInput for an empty axis or one of objects."""
    grid = Grid(_axes(axes))
    if len(grid) > LARGEST_GRID:
        raise InvalidInput(
            f"the axes make {len(grid):,} scenarios; give at most {LARGEST_GRID:,}, or a folder as `sweep -o FOLDER/`."
        )
    return grid.block(0, len(grid))[1] if axes else []


def _axes(axes: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the values of each axis; InvalidInput for an empty axis or one of objects."""
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
    return lists


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
