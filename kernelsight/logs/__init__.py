"""Readers of production logs, one per format, and the common tables that they produce."""

from __future__ import annotations

from kernelsight.logs.read_logs import read_logs, read_table

__all__ = ["read_logs", "read_table"]
