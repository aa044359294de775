"""The generators of the documentation, loaded from their files: docs/ is no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def load_generator() -> ModuleType:
    """Return docs/generate.py as a module."""
    return load("generate.py")


def load(name: str) -> ModuleType:
    """Return a file of docs/ as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{Path(name).stem}", ROOT / "docs" / name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def reference() -> ModuleType:
    """docs/site/reference.py."""
    return load("site/reference.py")


@pytest.fixture(scope="session")
def generator() -> ModuleType:
    """docs/generate.py."""
    return load_generator()
