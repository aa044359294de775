"""pytest plugin that writes the skipped tests with their reasons as JSON, {test: reason}, to the file SKIPS_FILE.

A file that is skipped as a whole is listed by its name. The main process of pytest-xdist writes the file.
"""

import json
import os
from pathlib import Path

import pytest

skipped = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a skipped test."""
    if report.skipped and not hasattr(report, "wasxfail"):
        skipped[report.nodeid] = _reason(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file skipped as a whole."""
    if report.skipped:
        skipped[report.nodeid] = _reason(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the file, in the main process."""
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["SKIPS_FILE"]).write_text(json.dumps(skipped, indent=1) + "\n", encoding="utf-8")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skip."""
    outcome = report.longrepr
    return (outcome[2] if isinstance(outcome, tuple) else str(outcome)).removeprefix("Skipped: ")
