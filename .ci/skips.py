"""Plugin of pytest that writes which tests were skipped, and why, as JSON: {test: reason} into the file SKIPS_FILE.

A file that is skipped as a whole stands there by its own name. It runs in the process that gathers what workers report.
"""

import json
import os
from pathlib import Path

import pytest

skipped = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        skipped[report.nodeid] = _reason(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.skipped:
        skipped[report.nodeid] = _reason(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        Path(os.environ["SKIPS_FILE"]).write_text(json.dumps(skipped, indent=1) + "\n", encoding="utf-8")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    told = report.longrepr
    return (told[2] if isinstance(told, tuple) else str(told)).removeprefix("Skipped: ")
