"""Paths of the top-level folders sql/ and schemas/: in the checkout, else inside the installed package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def folder(name: str) -> Path:
    """Return the folder ``name`` ("schemas" or "sql"), found from the package's own file, not the working directory."""
    root = checkout()
    return root / name if root else _PACKAGE / f"_{name}"


def checkout() -> Path | None:
    """Return the root of the checkout that holds the package; None: it is installed without one."""
    root = _PACKAGE.parent
    # site-packages may hold a stranger's schemas/ folder: only ours has this file
    return root if (root / "schemas" / "table.schema.json").is_file() else None
