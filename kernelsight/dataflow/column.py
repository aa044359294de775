"""One column of a table contract."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from kernelsight.dataflow.types import arrow_type


@dataclass(frozen=True)
class Column:
    """One column of a contract; ``check`` is a SQL boolean over the row, ``reference`` a ``table.column``."""

    name: str
    type: str
    doc: str
    nullable: bool = False
    unit: str = ""
    key: bool = False
    reference: str = ""
    check: str = ""

    @cached_property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type that ``type`` names."""
        return arrow_type(self.type)
