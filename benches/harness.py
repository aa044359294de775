"""Coverage of the measured tier's intervals for equal calls that another engine's harness timed, one engine left out.

    python benches/harness.py --sweep sweep.parquet --record
    python benches/harness.py --sweep sweep.parquet --write   # fits these rows of the shipped pack again

The interval of one engine's kernel on a measured GPU, around its own measured time (the correction's own error is left
out), against the time of the same call in another engine: as shipped for that engine's calls, and with what harnesses
differ by (kernelsight/fitting/harness.py), learnt from the engines that are left. By family and number formats.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from record import ROOT, record

from kernelsight.fitting.harness import EqualCalls, equal_calls, harness_curves, harness_rows
from kernelsight.fitting.pack_rows import write_pack
from kernelsight.kernels.families import MEASURED
from kernelsight.kernels.intervals import ALL, DRIFT_HALF, HARNESS, spread
from kernelsight.kernels.pack import default_pack, pack_table, shipped_pack
from kernelsight.kernels.pack_contents import interval_curves

GPUS = ("a100_sxm", "l40s", "h100_sxm", "h200_sxm", "b200_sxm", "gb200", "rtx_pro_6000_server")
LEAST_CALLS = 100


def scores(calls: EqualCalls) -> list[dict[str, Any]]:
    """Return coverage and width of each cell, before and after."""
    own, added = np.full((2, calls.log_ratio.size, 5), np.nan)
    for key in set(zip(calls.family, calls.gpu, calls.engine, calls.implementation, calls.dtype, strict=True)):
        family, gpu, engine, implementation, dtype = key
        curve = interval_curves(family, default_pack(), gpu, None, None).get(f"{engine}|{implementation}|{dtype}")
        if curve is not None:
            columns = (calls.family, calls.gpu, calls.engine, calls.implementation, calls.dtype)
            own[np.logical_and.reduce([column == word for column, word in zip(columns, key, strict=True)])] = curve
    for engine in sorted(set(calls.other)):
        curves = harness_curves(calls, (calls.engine != engine) & (calls.other != engine))
        for row in np.flatnonzero(calls.other == engine):
            added[row] = curves.get((calls.family[row], calls.dtype[row]), curves[ALL, ALL])
    halves = {"before": np.hypot(own, DRIFT_HALF), "after": np.hypot(np.hypot(own, DRIFT_HALF), added)}
    factor = {name: np.log(spread(np, calls.latency_us, half)) for name, half in halves.items()}
    rows, cell = [], [f"{family}, {dtype}" for family, dtype in zip(calls.family, calls.dtype, strict=True)]
    for name in sorted(set(cell)):
        chosen = (np.array(cell) == name) & np.isfinite(own[:, 0])
        if chosen.sum() >= LEAST_CALLS:
            found: Mapping[str, Any] = {"cell": name, "n": int(chosen.sum())}
            for which, half in factor.items():
                inside = np.abs(calls.log_ratio[chosen]) <= half[chosen]
                found |= {f"covers {which}": inside.mean(), f"width {which}": np.median(np.exp(2.0 * half[chosen]))}
            rows.append(found)
    return rows


def main() -> None:
    """Score and print; record, or write the rows of the shipped pack."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aiconfigurator` wrote it")
    parser.add_argument("--record", action="store_true", help="write benches/results/harness.json")
    parser.add_argument("--write", action="store_true", help="fit the rows of the shipped pack again")
    arguments = parser.parse_args()
    if arguments.write:
        pack = shipped_pack()
        names = sorted(set(pack["family"].to_pylist()))
        fitted = pack_table(harness_rows([arguments.sweep], names, GPUS))
        kept = pack.filter(pc.invert(pc.fill_null(pc.ends_with(pack["dtype"], f"|{HARNESS}"), False)))
        write_pack(pa.concat_tables([kept, fitted]), ROOT / "kernelsight" / "packs" / "default.parquet")
        return
    rows = scores(equal_calls([arguments.sweep], MEASURED, GPUS))
    for row in rows:
        print(
            ", ".join(f"{name} {value:.2f}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )
    mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0] if name not in ("cell", "n")}
    print(f"mean of {len(rows)} cells: {mean}")
    if arguments.record:
        print(
            record("harness", {"cells": rows, "mean": mean}, "python benches/harness.py --sweep sweep.parquet --record")
        )


if __name__ == "__main__":
    main()
