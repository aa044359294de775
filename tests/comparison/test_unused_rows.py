"""The verdict of a comparison says how many rows of the log it could not use, and why."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelsight.session import Session

FLAGS = {"model": "qwen3-0.6b", "gpu": "l4"}
HEADER = "request_id,arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms"
N = 12
TIER = "; kernels of this GPU were not measured but predicted from other GPUs."
Row = dict[str, Any]


def first_quoted(row: Row) -> Row:
    return row | {"request_id": f'"{row["request_id"]}'} if row["request_id"] == 3 else row


CASES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "one id": (
        lambda row: row | {"request_id": "same"},
        f"; not used: {N - 1} × requests whose id occurs before (a retry, or a file written twice)",
    ),
    "an open quote": (
        first_quoted,
        f"; not used: {N - 3} × lines that are cut off, or no record of the format (a quote in line 5 or later is not "
        "closed)",
    ),
    "swapped times": (
        lambda row: row | {"ttft_ms": row["e2e_ms"], "e2e_ms": row["ttft_ms"]},
        f"; doubtful: {N} × requests whose TTFT is longer than their E2E (they start at different times)",
    ),
    "endless prompts": (
        lambda row: row | {"prompt_tokens": 10**12},
        "no request of the log was served in the replay, so that nothing is compared; not used: "
        f"{N} × requests that the simulated engine rejects (up to 1,000,000,000,010 tokens, where max_model_len is "
        "40,960)",
    ),
    "two reasons": (
        lambda row: (
            row | ({"output_tokens": 0} if row["request_id"] < 2 else {"prompt_tokens": "x"})
            if row["request_id"] < 7
            else row
        ),
        "; not used: 5 × rows or samples with a value that is not a number, 2 × requests without output tokens",
    ),
}


def compared(session: Session, path: Path, change: Callable[[Row], Row]) -> dict[str, Any]:
    rows = [
        {
            "request_id": n,
            "arrival_s": n / 2,
            "prompt_tokens": 100 + n,
            "output_tokens": 10,
            "ttft_ms": 40,
            "e2e_ms": 90,
        }
        for n in range(N)
    ]
    lines = [",".join(str(value) for value in change(row).values()) for row in rows]
    path.write_text("\n".join([HEADER, *lines]) + "\n")
    return session.compare(log=path, deployment=FLAGS, fit="none", suspects="none").summary


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_used_is_in_the_verdict(name: str, session: Session, tmp_path: Path) -> None:
    change, sentence = CASES[name]
    verdict = compared(session, tmp_path / "log.csv", change)["verdict"]
    assert verdict.endswith(f"{sentence}{TIER}")
