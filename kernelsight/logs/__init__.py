"""Production logs: one reader per format, and the tables that all of them make."""

from __future__ import annotations

from kernelsight.logs.read import read_logs, read_table

__all__ = ["read_logs", "read_table"]
