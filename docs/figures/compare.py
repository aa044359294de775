"""Views of `compare` (planted faults) and `corrections` (fits scored on later time)."""

from __future__ import annotations

from figures.blocks import result
from figures.text import percent, table


def planted() -> str:
    """How often planted faults are named first, and sized within a fifth."""
    found = result("compare")
    words = {"one": "one fault", "two": "two faults", "clean": "none (no cause named)"}
    rows = []
    for kind, title in words.items():
        sized = found["sized"][kind]
        cells = [percent(share, 0) for share in found["named"][kind]]
        rows.append(
            [
                title,
                str(found["worlds"][kind]),
                *cells,
                *(percent(share, 0) for share in sized or []),
                *([""] * (0 if sized else 3)),
            ]
        )
    logs = ["requests alone", "with noise", "with steps"]
    head = [
        "planted",
        "worlds",
        *(f"named first, {name}" for name in logs),
        *(f"size within 20 %, {name}" for name in logs),
    ]
    seeds = "; ".join(f"{name}: `{flags}`" for name, flags in found["seeds"].items())
    return table(head, rows) + f"\n\nFlags of the bench: {seeds}."


def corrections() -> str:
    """Median absolute errors of single requests on later time."""
    found = result("corrections")
    words = {"uncorrected": "uncorrected", "one_factor": "one factor a metric", "corrected": "corrected"}
    rows = [[title, *map(percent, found["errors"][name])] for name, title in words.items()]
    rows.append(["worlds in which corrected is ahead of one factor", *(percent(share, 0) for share in found["ahead"])])
    return f"{found['worlds']} worlds:\n\n" + table(["", "TTFT", "TPOT", "E2E"], rows)
