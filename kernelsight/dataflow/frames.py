"""DataFrames among a caller's variables, so that SQL can name them, as DuckDB's replacement scans allow."""

from __future__ import annotations

import sys
from typing import Any

_OURS = __name__.partition(".")[0]


def caller_frames() -> dict[str, Any]:
    """Return the DataFrames among the variables of the first caller outside this package, by lower-case name.

    Local variables hide global ones. A DataFrame is any object with ``__arrow_c_stream__``: pyarrow, polars and pandas
    tables, DuckDB relations.
    """
    frame = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == _OURS:
        if frame.f_globals.get("__name__") == "__main__":
            break
        frame = frame.f_back
    if frame is None:
        return {}
    variables = {**frame.f_globals, **frame.f_locals}
    return {name.lower(): value for name, value in variables.items() if hasattr(type(value), "__arrow_c_stream__")}
