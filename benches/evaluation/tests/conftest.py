"""Tests of the laboratory run as all others do: the queries, worlds and settings of ``tests/conftest.py``."""

import tests.conftest  # noqa: F401
