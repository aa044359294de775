"""Kernel errors when short calls of one family set the latency floors of all other families, each generation left out.

    python benches/floors.py --sweep sweep.parquet

No published sweep holds an empty launch. Its substitute is the error of the floor of the shortest calls of GEMM,
batched GEMM or quantisation: the log error of calls with a large share of floor, over that share. The floors of all
other families move by 0 to 0.8 of it (in logarithm). Prints median / mean error in % over cells of those families, and
the median of calls predicted below SHORT_US. Takes 15 CPU-seconds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from points import TRAIN, sampled

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import fitted_coefficients
from kernelsight.fitting.few_shot import held_out_fit, measured_calls
from kernelsight.fitting.point_fit import Measured
from kernelsight.fitting.training import training_rows
from kernelsight.kernels.families import MEASURED
from kernelsight.kernels.floors import CARRIED, is_floor, with_floors
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.pack import default_pack

GPUS = ("a100_sxm", "l40s", "h100_sxm", "rtx_pro_6000_server")
STAND_INS = (("gemm",), ("batched_gemm",), ("quantize",))
SHARES = (0.0, CARRIED, 0.5, 0.8)
SHORT_US = 15.0
# a call counts as short if this share of its latency is floor, or it is among the fifth with the largest share
MUCH, LEAST, FIFTH, FEW_CALLS = 0.4, 0.1, 0.8, 6


def calls_of_gpu(sweep: Path, gpu: str) -> dict[str, Measured]:
    """Return a GPU's sampled served calls by family, with the shipped fit that lacks its generation."""
    pack, tables = default_pack(), (facts("kernel_implementations"), facts("gpus"), facts("fabrics"))
    calls = {}
    for family in MEASURED:
        rows = training_rows([sweep], family, [gpu])
        if rows.num_rows and held_out_fit(pack, family, family_facts(family, tables[0], tables[1]), gpu):
            rows = sampled(family, rows)
            if rows.num_rows:
                calls[family] = measured_calls(family, rows, gpu, pack, tables)
    return calls


def floor_share(measured: Measured) -> np.ndarray:
    """Return the share of each call's latency that is floor: d log latency / d log floors."""
    constants = fitted_coefficients(measured.calls.latency_model)
    per_floor = [column / one.spread if is_floor(one.name) else 0.0 * column
                 for column, one in zip(measured.inputs.slopes.T, constants, strict=True)]  # fmt: skip
    return np.sum(per_floor, axis=0)


def floor_error(measured: Measured) -> float | None:
    """Return the log error of the floor of a family's short calls; None: too few short calls."""
    share = floor_share(measured)
    short = share >= MUCH
    if short.sum() < FEW_CALLS:
        short = share >= max(LEAST, float(np.quantile(share, FIFTH)))
    if short.sum() < FEW_CALLS:
        return None
    return float(measured.log_error[short].sum() / share[short].sum())


def scored(calls: dict[str, Measured], log_by: float) -> str:
    """Return the errors with floors moved by ``log_by`` as text: median / mean, and median of short calls."""
    medians, means, short_medians = [], [], []
    for measured in calls.values():
        moved = measured.calls._replace(
            at=with_floors(measured.calls.latency_model.coefficients, measured.calls.at, log_by)
        )
        error = np.abs(moved.latency_us() / (measured.predicted_us * np.exp(measured.log_error)) - 1.0)
        for dtype in dict.fromkeys(measured.inputs.dtype.tolist()):
            of_cell = measured.inputs.dtype == dtype
            medians.append(np.median(error[of_cell]))
            means.append(error[of_cell].mean())
            short = of_cell & (measured.predicted_us < SHORT_US)
            if short.sum() > FEW_CALLS:
                short_medians.append(np.median(error[short]))
    return f"{np.mean(medians):.1%} / {np.mean(means):.1%}, short {np.mean(short_medians):.1%}"


def main() -> None:
    """Print the errors of each GPU by substitute and share."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    sweep = parser.parse_args().sweep
    assert set(GPUS) <= set(TRAIN)
    for gpu in GPUS:
        calls = calls_of_gpu(sweep, gpu)
        for stand_in in STAND_INS:
            known = [error for name in stand_in if name in calls and (error := floor_error(calls[name])) is not None]
            if known:
                others = {name: one for name, one in calls.items() if name not in stand_in}
                shown = [f"{share}: {scored(others, share * float(np.mean(known)))}" for share in SHARES]
                print(f"{gpu}, {', '.join(stand_in)} {np.mean(known):+.2f}: {'; '.join(shown)}", flush=True)


if __name__ == "__main__":
    main()
