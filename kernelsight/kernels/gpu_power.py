"""What each GPU draws, from constants of its architecture and the limit of its board."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

ANY = "*"
# constants that are shares of the limit of the board, and those that are not
SHARES = ("active", "memory", "compute", "expand", "link", "cap")
PLAIN = ("cap_sharpness", "clock_exponent")
# half widths of intervals: those of an architecture hold for the GPUs alone that were measured
HALVES = ("power_log_half", "energy_log_half")


def power_of_gpus(gpus: pa.Table, constants: pa.Table) -> pa.Table:
    """Return ``gpu_power``: constants of the architecture, else those that hold for any."""
    kinds, limit = gpus["architecture"].to_pylist(), gpus["tdp_w"].to_numpy()
    rows = {(row["architecture"], row["constant"]): row for row in constants.to_pylist()}
    fitted = {kind for (kind, _), row in rows.items() if kind != ANY and row["basis"] == "fitted"}
    measured = {name for row in rows.values() for name in (row.get("gpus") or "").split(",")}
    basis = [
        "fitted" if kind in fitted and gpu in measured else "architecture" if kind in fitted else "estimated"
        for gpu, kind in zip(gpus["gpu"].to_pylist(), kinds, strict=True)
    ]

    def values(name: str, of: list[str] = kinds) -> np.ndarray:
        return np.array([(rows.get((kind, name)) or rows[ANY, name])["value"] for kind in of])

    # of another GPU than those that were measured, an error is what one architecture's constants make on the other
    own = [kind if rests == "fitted" else ANY for kind, rests in zip(kinds, basis, strict=True)]

    idle = np.asarray(gpus["idle_w"].to_numpy(), float)
    return pa.table(
        {
            "gpu": gpus["gpu"],
            "idle_w": np.where(np.isnan(idle), limit * values("idle"), idle),
            **{f"{name}_w": limit * values(name) for name in SHARES},
            "limit_w": limit,
            **{name: values(name) for name in PLAIN},
            **{name: values(name, own) for name in HALVES},
            "basis": basis,
        }
    )
