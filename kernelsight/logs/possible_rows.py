"""Rows of a log that the contract of their table excludes: dropped and counted, so that one row spoils no other."""

from __future__ import annotations

import polars as pl

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.violations import failing_rows
from kernelsight.logs.log_run import FILE_ROW, Faults


def possible_rows(table: str, frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Return the rows of a frame whose values its table's contract allows; the others are counted in ``faults``.

    ``frame``: columns of ``table``, and FILE_ROW where rows have numbers of their own. A contract that excludes every
    row excludes none here: then the file, and not a row, is at fault.

    >>> faults, frame = Faults(), pl.DataFrame({"power_w": [300.0, -1.0], FILE_ROW: [1, 2]})
    >>> possible_rows("production_requests", frame, faults).height, faults.counted["impossible_value"][:2]
    (1, (1, 'row 2'))
    """
    numbers = frame[FILE_ROW] if FILE_ROW in frame.columns else pl.int_range(1, frame.height + 1, eager=True)
    filled = [name for name in frame.columns if name != FILE_ROW and frame[name].null_count() < frame.height]
    failing, sentences = failing_rows(frame.select(filled).to_arrow(), contracts()[table].columns, numbers)
    if not failing.any() or failing.all():
        return frame
    rows = numbers.filter(failing)
    faults.add("impossible_value", rows.len(), f"row {rows[0]}", f": {'; '.join(sentences)}")
    return frame.filter(~failing)
