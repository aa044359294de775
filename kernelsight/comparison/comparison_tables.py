"""The tables of a comparison, of whichever kind: by name, in SQL, and saved."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session


class ComparisonTables:
    """The tables that the graph makes of a comparison, and those of its logs."""

    # the tables that the graph makes, and the words of errors for the comparison
    _derived: tuple[str, ...] = ()
    _description: str = "a comparison"

    def __init__(self, session: Session, logs: Collection[str]) -> None:
        self._session, self._logs = session, logs

    def table(self, name: str) -> pa.Table:
        """Return a table of the comparison, or of the log; InvalidInput for another name."""
        if name in self._logs:
            return self._session.table(name)
        if name not in self._derived:
            has = ", ".join((*self._derived, *self._logs))
            raise InvalidInput(f"{self._description} has no table {name!r}; it has {has}.")
        return self._session.table(name).drop_columns(["comparison_id"])

    def save(self, path: str | Path) -> None:
        """Write the comparison and the log to a DuckDB file."""
        self._session.save(path, ["comparisons", *self._derived, *self._logs])

    def sql(self, query: str) -> Any:
        """Return a DuckDB relation over the tables of the comparison and of the log."""
        return self._session.sql(query)
