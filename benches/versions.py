"""Hidden engine versions: is the sign of what an upgrade changes right, and does the interval of the change hold?

    python benches/versions.py --sweep new.parquet [--gpus A,B]

A pair is two neighbouring versions of one engine on one GPU with at least 100 equal calls of a kernel family. All rows
of the later version on that GPU are hidden, also which kernel it ran: the kernel is chosen by `engine_backends` and the
sweeps of other GPUs, the time of another kernel is that of constants fitted without the hidden rows, and the time of
the same kernel moves as on other GPUs. Pairs whose kernels are other operations are left out.
"""

from __future__ import annotations

import argparse
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.splits import shape_columns
from kernelsight.fitting.sweep_files import measured_families
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.fitting.versions import RELEASES, medians, residuals, rows_of_medians
from kernelsight.kernels.engine_versions import HALF_OF_90, version_at, version_key
from kernelsight.kernels.families import FAMILIES, MEASURED
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import pack_table, shipped_pack
from kernelsight.number_format import deviation
from kernelsight.present.output import table_lines
from kernelsight.upgrades.differences import COMMON

GPUS = "a100_sxm,l40s,h100_sxm,h200_sxm,b200_sxm,gb200,rtx_pro_6000_server"
ENGINES = ("vllm", "sglang", "trtllm")
FEWEST, MOVED = 100, 0.10
# lineages of other operations: their calls are equal in shape alone
OTHER_OPERATIONS = ("kimi", "kda")
TABLES = (facts("kernel_implementations"), facts("gpus"), facts("fabrics"))
COLUMNS = ["family", "engine", "GPU", "from", "to", "calls", "kernel changes", "measured", "predicted", "interval"]
# of a kernel's own errors, where it replaces another: log standard deviation of fits without the GPU's rows
OWN_SD = 0.2


def pairs_of(family: str, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the pairs of neighbouring versions of a family, each with its equal calls."""
    key = ["dtype", "math", "distribution", *shape_columns(family)]
    found = []
    for (engine, gpu), group in rows.group_by(["engine", "gpu"], maintain_order=True):
        versions = sorted(group["engine_version"].unique().to_list(), key=version_key)
        calls = group.group_by([*key, "engine_version"]).agg(
            pl.col("latency_us").log().mean(), pl.col("implementation").sort().first()
        )
        for number, later in enumerate(versions[1:], start=1):
            new = calls.filter(engine_version=later)
            for earlier in reversed(versions[:number]):
                old = calls.filter(engine_version=earlier)
                both = old.join(new, on=key, nulls_equal=True, suffix="_new")
                if both.height >= FEWEST:
                    found.append({"engine": engine, "gpu": gpu, "from": earlier, "to": later, "both": both})
                    break
    return found


def chosen(family: str, pair: dict[str, Any], hidden: pl.DataFrame, pack: pa.Table) -> dict[tuple, str]:
    """Return the kernel predicted for the later version by (dtype, head width), from sources and other GPUs."""
    known = family_facts(family, *TABLES[:2])
    stated = _stated(family, pair)
    has_heads = FAMILIES[family].by_head_dim
    cells = hidden.select(["dtype", *(["head_dim"] if has_heads else [])]).unique(maintain_order=True).rows()
    kernels = {}
    for cell in cells:
        call = {"engine": pair["engine"], "gpu": pair["gpu"], "dtype": cell[0], "engine_version": pair["to"]}
        call |= {"head_dim": int(cell[1]) if has_heads else 0, "implementation": stated.get(cell[0])}
        kernels[cell] = choose(known, pack, family, [call])[0][0]
    return kernels


def _stated(family: str, pair: dict[str, Any]) -> dict[str, str]:
    """Return the kernels of experts by format that `engine_backends` names for the later version of a pair."""
    capability = dict(zip(TABLES[1]["gpu"].to_pylist(), TABLES[1]["compute_capability"].to_pylist(), strict=True))
    key = version_key(pair["to"])
    return {
        {"mxfp4": "w4a16_mxfp4"}.get(row["format"], row["format"]): row["implementation"]
        for row in facts("engine_backends").to_pylist()
        if family == "moe" and row["layer"] == "experts" and row["engine"] == pair["engine"] and not row["needs"]
        and capability[pair["gpu"]] in row["capabilities"].split()
        and version_key(row["from_version"]) <= key
        and (row["before_version"] is None or key < version_key(row["before_version"]))
    }  # fmt: skip


def predicted(
    family: str, pair: dict[str, Any], sweep: Path, rows: pl.DataFrame, left: pl.DataFrame
) -> tuple[float, float, bool]:
    """Return the predicted log change of a pair's median call, its standard deviation, and whether kernels change."""
    seen = rows.filter(~_hidden(rows, pair))
    versions = pack_table(rows_of_medians(family, medians(left.filter(~_hidden(left, pair)))))
    gpus = sorted(set(seen["gpu"].to_list()))
    counts = pack_table(_choices_without(family, sweep, gpus, pair))
    key = ["dtype", "math", "distribution", *shape_columns(family)]
    is_before = (seen["engine"] == pair["engine"]) & (seen["gpu"] == pair["gpu"])
    calls = seen.filter(is_before & (seen["engine_version"] == pair["from"]))
    calls = calls.join(pair["both"].select(key), on=key, how="semi", nulls_equal=True)
    kernels = chosen(family, pair, calls, counts)
    cells = calls.select(["dtype", *(["head_dim"] if FAMILIES[family].by_head_dim else [])]).rows()
    new = [kernels[cell] for cell in cells]
    swapped = np.array([old != name for old, name in zip(calls["implementation"].to_list(), new, strict=True)])
    change, drift = np.zeros(calls.height), 0.1
    for name, cell in set(zip(new, cells, strict=True)):
        kernel = {"engine": pair["engine"], "implementation": name, "dtype": cell[0]}
        before, after = (version_at(versions, family, kernel, pair["gpu"], pair[end]) for end in ("from", "to"))
        own = [number for number, both_words in enumerate(zip(new, cells, strict=True)) if both_words == (name, cell)]
        change[own], drift = after.logs[1] - before.logs[1], max(after.log_sd, 0.03)
    if swapped.any():
        change += np.where(swapped, _swap(family, calls, new, seen), 0.0)
    sd = OWN_SD * np.sqrt(2.0 * (1.0 - COMMON)) if swapped.mean() > 0.5 else drift
    return float(np.median(change)), float(sd), bool(swapped.mean() > 0.5)


def _hidden(rows: pl.DataFrame, pair: dict[str, Any]) -> pl.Series:
    """Return which rows are hidden: those of the later version, and of all after it, on the pair's GPU."""
    later = [name for name in rows["engine_version"].unique() if version_key(name) >= version_key(pair["to"])]
    return rows["engine_version"].is_in(later) & (rows["gpu"] == pair["gpu"]) & (rows["engine"] == pair["engine"])


@cache
def _choices(family: str, sweep: Path, gpus: tuple[str, ...]) -> list[dict]:
    return choice_rows([sweep], family, gpus, TABLES[0])


def _choices_without(family: str, sweep: Path, gpus: list[str], pair: dict[str, Any]) -> list[dict]:
    return [
        row
        for row in _choices(family, sweep, tuple(gpus))
        if row["gpu"] != pair["gpu"] or row["engine"] != pair["engine"]
        or version_key(row["engine_version"]) < version_key(pair["to"])
    ]  # fmt: skip


def _swap(family: str, calls: pl.DataFrame, new: list[str], seen: pl.DataFrame) -> np.ndarray:
    """Return log(time of the new kernel / of the old one) of calls, by constants fitted to the rows that are seen."""
    table = to_learn(family, seen.to_arrow())
    model = FAMILIES[family].latency_model
    pack = pack_table(fit_family(family, model, table, *TABLES, "seen rows"))
    sides = (calls, calls.with_columns(implementation=pl.Series(new)))
    old_us, new_us = (predict_family(family, model, side.to_arrow(), pack, *TABLES) for side in sides)
    return np.log(new_us / old_us)


def main() -> None:
    """Judge every pair and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aisimulate` wrote it")
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--families", default=",".join(MEASURED))
    arguments = parser.parse_args()
    gpus = [gpu for gpu in arguments.gpus.split(",") if gpu not in SEALED]
    judged = []
    for family in (
        name for name in arguments.families.split(",") if name in measured_families([arguments.sweep], gpus)
    ):
        condition = f"{RELEASES} and engine in {ENGINES}"
        rows = pl.from_arrow(training_rows([arguments.sweep], family, gpus, condition))
        rows = rows.filter(~pl.any_horizontal(pl.col("implementation").str.contains(word) for word in OTHER_OPERATIONS))
        pairs = pairs_of(family, rows) if rows.height else []
        left = residuals([arguments.sweep], family, gpus, shipped_pack(), TABLES) if pairs else rows
        for pair in pairs:
            measured = float((pair["both"]["latency_us_new"] - pair["both"]["latency_us"]).median())
            change, sd, swapped = predicted(family, pair, arguments.sweep, rows, left)
            judged.append(
                {"family": family, **pair, "measured": measured, "predicted": change, "sd": sd, "swap": swapped}
            )
            print(
                family,
                pair["engine"],
                pair["gpu"],
                pair["from"],
                pair["to"],
                f"{measured:+.3f} {change:+.3f} {sd:.3f}",
                swapped,
                flush=True,
            )
    report(judged)


def report(judged: list[dict[str, Any]]) -> None:
    """Print the pairs that moved, and the scores beside the baselines."""
    moved = [row for row in judged if abs(np.expm1(row["measured"])) > MOVED]
    right = sum(np.sign(row["predicted"]) == np.sign(row["measured"]) for row in moved)
    common = sum(_commonest(row, judged) == np.sign(row["measured"]) for row in moved)
    inside = [abs(row["measured"] - row["predicted"]) <= HALF_OF_90 * row["sd"] for row in judged]
    error = [
        np.median([abs(row["measured"] - row[name]) if name else abs(row["measured"]) for row in judged])
        for name in ("predicted", "")
    ]
    scores = [
        ["pairs; of them moved by more than 10 %", f"{len(judged)}; {len(moved)}"],
        ["sign right where moved", f"{right} of {len(moved)}"],
        ["- no change; mean of all versions (neither has a sign)", f"0 of {len(moved)}"],
        ["- commonest sign of the engine's other GPUs", f"{common} of {len(moved)}"],
        ["median error of the change, %; of no change", f"{100 * error[0]:.1f}; {100 * error[1]:.1f}"],
        ["intervals that hold", f"{np.mean(inside):.0%} of {len(judged)}"],
    ]
    rows = [
        [
            *(row[name] for name in ("family", "engine", "gpu", "from", "to")), str(row["both"].height),
            "yes" if row["swap"] else "no",
            *(deviation(np.expm1(row[name])) for name in ("measured", "predicted")),
            f"±{100 * np.expm1(HALF_OF_90 * row['sd']):.0f}%",
        ]
        for row in moved
    ]  # fmt: skip
    print(*table_lines([dict(zip(COLUMNS, row, strict=True)) for row in rows], COLUMNS), sep="\n")
    print(*(f"{name}: {value}" for name, value in scores), sep="\n")


def _commonest(row: dict[str, Any], judged: list[dict[str, Any]]) -> float:
    others = [
        np.sign(other["measured"])
        for other in judged
        if (other["family"], other["engine"], other["to"]) == (row["family"], row["engine"], row["to"])
        and other["gpu"] != row["gpu"]
    ]
    return float(np.sign(sum(others)))


if __name__ == "__main__":
    main()
