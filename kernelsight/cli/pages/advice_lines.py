"""Lines on advised changes of settings: TTFT, TPOT and throughput before and after."""

from __future__ import annotations

from typing import Any

from kernelsight.number_format import interval

# smallest relative change of a metric that is shown
LEAST_CHANGE = 0.01


def advice_lines(rows: list[dict[str, Any]], most: int = 4) -> list[str]:
    """Return a line for each of the best changes (rows of advice), at most ``most``."""
    lines = []
    for row in rows[:most]:
        moved = [
            f"{label} {interval(row[f'{name}_before'], row[f'{name}_after'], 3)}{unit}"
            for name, label, unit in (
                ("ttft_p99_ms", "TTFT p99", " ms"),
                ("tpot_p99_ms", "TPOT p99", " ms"),
                ("output_throughput_per_gpu", "throughput a GPU", " tok/s"),
            )
            if row[f"{name}_before"] and abs(row[f"{name}_after"] / row[f"{name}_before"] - 1.0) >= LEAST_CHANGE
        ]
        note = " (changes what is computed: check the quality of answers)" if row["changes_numerics"] else ""
        lines.append(f"{row['setting']} {row['stated']} to {row['value']}: {', '.join(moved)}{note}")
    return lines
