"""Power constants of each GPU (``gpu_power``), from those of its architecture times its board's power limit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces

# architecture of the constants that hold for GPUs of an architecture without its own
ANY = "*"
# constants of energy_constants that are shares of the board's limit, made columns <name>_w (watts), and those without
# a unit of power
SHARES = ("active", "memory", "compute", "expand", "link", "cap")
PLAIN = ("cap_sharpness", "clock_exponent")
# half widths of 90 % intervals, of log power and log energy
HALVES = ("power_log_half", "energy_log_half")


@produces("gpu_power")
def power_of_gpus(gpus: pa.Table, energy_constants: pa.Table) -> pa.Table:
    """Power of each GPU by constants of its architecture, else general ones, as shares of its limit.

    ``gpus``: architecture, tdp_w, idle_w (null: the architecture's share of tdp_w); constants:
    those of the architecture, else those of ANY. ``basis``: fitted (the GPU was measured),
    architecture (another GPU of its architecture was), estimated.
    """
    architectures, tdp_w = gpus["architecture"].to_pylist(), gpus["tdp_w"].to_numpy()
    rows = {(row["architecture"], row["constant"]): row for row in energy_constants.to_pylist()}
    fitted = {name for (name, _), row in rows.items() if name != ANY and row["basis"] == "fitted"}
    measured = {name for row in rows.values() for name in (row.get("gpus") or "").split(",")}
    basis = [
        "fitted" if name in fitted and gpu in measured else "architecture" if name in fitted else "estimated"
        for gpu, name in zip(gpus["gpu"].to_pylist(), architectures, strict=True)
    ]

    def values(constant: str, of_architectures: list[str] = architectures) -> np.ndarray:
        return np.array([(rows.get((name, constant)) or rows[ANY, constant])["value"] for name in of_architectures])

    # intervals of an architecture hold for its measured GPUs; for others, the errors of one architecture on another
    interval_architectures = [name if how == "fitted" else ANY for name, how in zip(architectures, basis, strict=True)]
    idle_w = np.asarray(gpus["idle_w"].to_numpy(), float)
    return pa.table(
        {
            "gpu": gpus["gpu"],
            "idle_w": np.where(np.isnan(idle_w), tdp_w * values("idle"), idle_w),
            **{f"{name}_w": tdp_w * values(name) for name in SHARES},
            "limit_w": tdp_w,
            **{name: values(name) for name in PLAIN},
            **{name: values(name, interval_architectures) for name in HALVES},
            "basis": basis,
        }
    )
