"""A watch's state as a file: what its types do not say is checked when it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernelsight.comparison.watch_state import State, state_of
from kernelsight.errors import InvalidInput
from tests.asked import refusals


def written(path: Path, **changed: Any) -> Path:
    """Write the state of a watch that has read nothing yet, with other values."""
    path.write_text(json.dumps(json.loads(State("log.csv").as_json()) | changed))
    return path


def test_a_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = written(tmp_path / "state.json", windows=3)
    assert state_of(path, "log.csv") == State("log.csv", windows=3)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    refusals("comparison/test_watch_state::test_values_of_the_right_type_that_no_watch_writes_are_refused"),
)
def test_values_of_the_right_type_that_no_watch_writes_are_refused(
    tmp_path: Path, changed: dict[str, Any], sentence: str
) -> None:
    path = written(tmp_path / "state.json", **changed)
    with pytest.raises(InvalidInput, match=rf"is no state of a watch \({sentence}"):
        state_of(path, "log.csv")
