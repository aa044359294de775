"""Columns of ``measured_runs`` that a launch line states."""

from __future__ import annotations

from typing import Any

from kernelsight.scenario.launch.deployments import read_launch_line

SIZES = {"tp": "tensor", "pp": "pipeline", "dp": "data", "ep": "expert"}


def launched(line: str) -> dict[str, Any]:
    """Return the columns that a launch line states; ``stated_flags``: its other flags, as a dict.

    >>> launched("vllm serve Qwen/Qwen3-14B -tp 2 --max-num-seqs 64")["stated_flags"]
    {'max_num_seqs': 64}
    """
    flags = dict(read_launch_line(line).flags)
    columns = {name: flags.pop(name) for name in ("model", "engine")}
    columns |= {column: flags.pop(f"{name}_parallel_size", 1) for column, name in SIZES.items()}
    return {**columns, "workers": 1, "stated_flags": flags}
