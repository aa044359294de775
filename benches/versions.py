"""Hidden engine versions: is the sign of what an upgrade changes right, and does the interval of the change hold?

    python benches/versions.py --sweep new.parquet [--families moe,gemm]

A pair is two neighbouring versions of one engine, GPU, family and number format with at least 100 equal calls. All rows
of the later version on that GPU are hidden, also which kernel it ran. The kernel is chosen by `engine_backends` and the
sweeps that are left; another kernel takes the time of constants fitted to the rows that are left, the same kernel moves
as `kernelsight.fitting.versions` says of the links that are left. Uncertainties are those of all other pairs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from record import record

from kernelsight.catalog.tables import facts
from kernelsight.fitting.expressions import fit_family, predict_family
from kernelsight.fitting.kernel_choices import choice_rows
from kernelsight.fitting.kernel_sweeps.devices import SEALED
from kernelsight.fitting.splits import shape_columns
from kernelsight.fitting.sweep_files import measured_families
from kernelsight.fitting.training import to_learn, training_rows
from kernelsight.fitting.versions import KERNEL, RELEASES, Link, effects_of, links_of
from kernelsight.kernels.engine_versions import HALF_OF_90, version_factor, version_key
from kernelsight.kernels.families import FAMILIES, MEASURED
from kernelsight.kernels.kernel_constants import family_facts
from kernelsight.kernels.kernel_selection import choose
from kernelsight.kernels.pack import pack_table
from kernelsight.number_format import deviation
from kernelsight.present.output import table_lines

GPUS = "a100_sxm,l40s,h100_sxm,h200_sxm,b200_sxm,gb200,rtx_pro_6000_server"
ENGINES = ("vllm", "sglang", "trtllm")
FEWEST, MOVED = 100, 0.10
# lineages of other operations: their calls are equal in shape alone
OTHER_OPERATIONS = ("kimi", "kda")
TABLES = (facts("kernel_implementations"), facts("gpus"), facts("fabrics"))
SWAPPED, FORETOLD, UNKNOWN = (
    "another kernel",
    "the same kernel, as its generation moved",
    "the same kernel, no move known",
)


def _changes(links: Sequence[Link]) -> list[Link]:
    return [link for link in links if link.cells[0][0] == link.cells[1][0]]


# ways to foretell the change of the same kernel: the links that count, of those that are left
WAYS: dict[str, Callable[[Sequence[Link]], Sequence[Link]]] = {
    "equal calls of a generation, also across GPUs": lambda links: links,
    "changes on GPUs of the generation": _changes,
    "changes on all GPUs": lambda links: [link._replace(generation=ALL) for link in _changes(links)],
    "only another kernel moves": lambda links: [],
}
ALL = "all"
RULE = next(iter(WAYS))
PAIR = ("family", "dtype", "engine", "gpu", "from", "to")
WAY_COLUMNS = ["way", "sign right", "median", "mean", "p90", "bias", "moved: median", "moved: mean", "interval holds"]
KIND_COLUMNS = ["change", "pairs", "sd (log)", "sd / change", "median", "mean", "p90"]
MOVED_COLUMNS = [*PAIR, "calls", "kernel before", "kernel after", "measured", "predicted", "interval"]


def pairs_of(family: str, rows: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the pairs of neighbouring versions in rows of a family, each with its equal calls."""
    key = ["math", "distribution", *shape_columns(family)]
    identity = ["dtype", "engine", "gpu", "engine_version", "implementation", "latency_us"]
    others = [name for name in rows.columns if name not in (*identity, *key)]
    calls = rows.group_by(["dtype", "engine", "gpu", "engine_version", *key]).agg(
        pl.col("latency_us").log().mean().alias("log_us"),
        pl.col("implementation").sort().first(),
        pl.col(others).first(),
    )
    for (dtype, engine, gpu), group in calls.group_by(["dtype", "engine", "gpu"], maintain_order=True):
        versions = sorted(group["engine_version"].unique().to_list(), key=version_key)
        for number, later in enumerate(versions[1:], start=1):
            for earlier in reversed(versions[:number]):
                old, new = (group.filter(engine_version=version) for version in (earlier, later))
                both = old.join(new, on=key, nulls_equal=True, suffix="_new")
                if both.height >= FEWEST:
                    before = group.filter(pl.col("engine_version").is_in(versions[:number]))
                    mean = before.group_by(key).agg(pl.col("log_us").mean().alias("mean"))
                    both = both.join(mean, on=key, nulls_equal=True)
                    words = {"family": family, "dtype": dtype, "engine": engine, "gpu": gpu}
                    yield words | {"from": earlier, "to": later, "both": both}
                    break


def chosen(pair: Mapping[str, Any], sweep: Path, gpus: tuple[str, ...]) -> list[str]:
    """Return the kernel predicted for each equal call of a pair in the later version, from sources and other GPUs."""
    family, both = pair["family"], pair["both"]
    counts = pack_table([row for row in _choices(family, sweep, gpus) if not _is_hidden(row, pair)])
    known, stated, kernels = family_facts(family, *TABLES[:2]), _stated(pair), {}
    heads = both["head_dim"].to_list() if FAMILIES[family].by_head_dim else [0] * both.height
    for head_dim in set(heads):
        call = {name: pair[name] for name in ("engine", "gpu", "dtype")} | {"engine_version": pair["to"]}
        call |= {"head_dim": int(head_dim), "implementation": stated}
        kernels[head_dim] = choose(known, counts, family, [call])[0][0]
    return [kernels[head_dim] for head_dim in heads]


def _stated(pair: Mapping[str, Any]) -> str | None:
    """Return the kernel of experts that `engine_backends` names for the later version of a pair, whatever is served."""
    capability = dict(zip(TABLES[1]["gpu"].to_pylist(), TABLES[1]["compute_capability"].to_pylist(), strict=True))
    key, dtype = version_key(pair["to"]), {"w4a16_mxfp4": "mxfp4"}.get(pair["dtype"], pair["dtype"])
    names = [
        row["implementation"]
        for row in facts("engine_backends").to_pylist()
        if (pair["family"], row["layer"], row["engine"], row["format"]) == ("moe", "experts", pair["engine"], dtype)
        and not row["needs"]
        and capability[pair["gpu"]] in row["capabilities"].split()
        and version_key(row["from_version"]) <= key
        and (row["before_version"] is None or key < version_key(row["before_version"]))
    ]
    return names[0] if names else None


@cache
def _choices(family: str, sweep: Path, gpus: tuple[str, ...]) -> list[dict]:
    return choice_rows([sweep], family, gpus, TABLES[0])


def _is_hidden(row: Mapping[str, Any], pair: Mapping[str, Any]) -> bool:
    """Return whether a row is hidden: of the later version of a pair, or of one after it, on its GPU."""
    return (row["engine"], row["gpu"]) == (pair["engine"], pair["gpu"]) and version_key(
        row["engine_version"]
    ) >= version_key(pair["to"])


def judged(pair: dict[str, Any], rows: pl.DataFrame, links: Sequence[Link], kernels: list[str]) -> dict:
    """Return the measured and predicted logarithms of a pair's change: medians over its equal calls, by way."""
    both = pair["both"]
    change = (both["log_us_new"] - both["log_us"]).to_numpy()
    swapped = both["implementation"].to_numpy() != np.array(kernels)
    kind, logs, spread = UNKNOWN, dict.fromkeys(WAYS, np.zeros(both.height)), None
    if swapped.mean() > 0.5:
        kind, logs = SWAPPED, dict.fromkeys(WAYS, np.where(swapped, _swap(pair, rows, kernels), 0.0))
    else:
        (name,) = both["implementation"].mode().sort()[:1]
        kernel = tuple({**pair, "implementation": name}[word] for word in KERNEL)
        left = [link for link in links if link.kernel[-1] == pair["dtype"] and not _knows(link, pair)]
        for way, used in WAYS.items():
            effects = effects_of(used(left))
            for place in ((kernel, GENERATION[pair["gpu"]] or ""), (kernel, ALL)):
                if {(*place, pair["from"]), (*place, pair["to"])} <= effects.keys():
                    kind = FORETOLD if way == RULE else kind
                    logs |= {way: _at_calls(both, effects[*place, pair["to"]] - effects[*place, pair["from"]])}
        ends = {(pair["gpu"], pair["from"]), (pair["gpu"], pair["to"])}
        known = next((link for link in links if link.kernel == kernel and set(link.cells) == ends), None)
        if known:
            sign = 1.0 if known.cells[0][1] == pair["from"] else -1.0
            spread = np.abs(change - _at_calls(both, sign * known.logs))
    return {
        **{name: value for name, value in pair.items() if name != "both"}, "calls": both.height, "kind": kind,
        "measured": float(np.median(change)), "mean": float((both["mean"] - both["log_us"]).median()),
        "kernels": (both["implementation"].mode().sort()[0], both["implementation_new"].mode().sort()[0]),
        "predicted": {way: float(np.median(log)) for way, log in logs.items()}, "spread": spread,
        "call_error": float(np.median(np.abs(change - logs[RULE]))), "call_change": float(np.median(np.abs(change))),
    }  # fmt: skip


def _knows(link: Link, pair: Mapping[str, Any]) -> bool:
    """Return whether a link knows what is hidden for a pair."""
    cells = [{"engine": link.kernel[0], "gpu": gpu, "engine_version": version} for gpu, version in link.cells]
    return any(_is_hidden(cell, pair) for cell in cells)


def _at_calls(both: pl.DataFrame, logs: np.ndarray) -> np.ndarray:
    return np.log(version_factor(np.exp(both["log_us"].to_numpy()), logs[None], np.zeros(both.height, int)))


def _swap(pair: Mapping[str, Any], rows: pl.DataFrame, kernels: list[str]) -> np.ndarray:
    """Return log(time of the new kernel / of the old one) of a pair's calls, by constants fitted to rows of its format.

    The rows of the later version on the pair's GPU are left out.
    """
    family = pair["family"]
    later = [name for name in rows["engine_version"].unique() if version_key(name) >= version_key(pair["to"])]
    is_hidden = pl.col("engine_version").is_in(later) & (pl.col("gpu") == pair["gpu"])
    seen = rows.filter(~(is_hidden & (pl.col("engine") == pair["engine"])), dtype=pair["dtype"])
    model = FAMILIES[family].latency_model
    pack = pack_table(fit_family(family, model, to_learn(family, seen.to_arrow()), *TABLES, "seen rows"))
    calls = pair["both"].with_columns(latency_us=pl.col("log_us").exp())
    sides = [calls.with_columns(implementation=names) for names in (calls["implementation"], pl.Series(kernels))]
    old_us, new_us = (
        predict_family(family, model, side.select(rows.columns).to_arrow(), pack, *TABLES) for side in sides
    )
    return np.log(new_us / old_us)


GENERATION = family_facts("moe", *TABLES[:2]).generation


def pairs_judged(sweep: Path, gpus: tuple[str, ...], families: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Judge every pair of the families, and print it."""
    for family in families:
        structure = family_facts(family, *TABLES[:2]).structure
        rows = pl.from_arrow(training_rows([sweep], family, gpus, f"{RELEASES} and engine in {ENGINES}"))
        names = rows["implementation"].unique().to_list()
        # what collectors ran and no engine serves with, and other operations, are no upgrade
        served = [name for name in names if structure.get((name, "served"), 1.0)]
        kept = [name for name in served if not any(word in name for word in OTHER_OPERATIONS)]
        rows = rows.filter(pl.col("implementation").is_in(kept))
        pairs = list(pairs_of(family, rows)) if rows.height else []
        links = links_of(family, rows, GENERATION) if pairs else []
        for pair in pairs:
            found = judged(pair, rows, links, chosen(pair, sweep, gpus))
            logs = (found["measured"], *found["predicted"].values())
            words = (*(found[name] for name in (*PAIR, "calls", "kind", "kernels")), *(f"{log:+.3f}" for log in logs))
            print(*words, flush=True)
            yield found


def sds_of(pairs: Sequence[Mapping[str, Any]], way: str, kind: str) -> tuple[float, float]:
    """Return two standard deviations of a kind's errors: of small changes, and of large ones as a share of the change.

    Nine of ten pairs lie in their 90 % intervals.
    """
    own = [(row["measured"], row["predicted"][way]) for row in pairs if row["kind"] == kind]
    small = [abs(true - log) for true, log in own if kind == SWAPPED or abs(log) < MOVED]
    large = [abs(true / log - 1.0) for true, log in own if kind != SWAPPED and abs(log) >= MOVED]
    return tuple(float(np.quantile(found, 0.9)) / HALF_OF_90 if len(found) > 1 else 0.0 for found in (small, large))


def sd_of(pairs: Sequence[Mapping[str, Any]], way: str, row: Mapping[str, Any]) -> float:
    """Return the standard deviation of a pair's predicted change, by all other pairs."""
    small, share = sds_of([other for other in pairs if other is not row], way, row["kind"])
    return float(np.hypot(small, share * row["predicted"][way]))


def report(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the tables of the record: ways, kinds of change, pairs that moved, and single calls."""
    known = [row for row in pairs if row["spread"] is not None]
    widths = np.array([np.quantile(row["spread"], 0.9) for row in known])
    others = [np.median(np.delete(widths, number)) for number in range(len(known))]
    holds = [np.mean(row["spread"] <= width) for row, width in zip(known, others, strict=True)]
    calls = {
        "version hidden": [row["call_error"] for row in known],
        "no change": [row["call_change"] for row in known],
        "version known": [np.median(row["spread"]) for row in known],
    }
    upgrades = {tuple(row[name] for name in ("family", "engine", "gpu", "from", "to")) for row in pairs}
    return {
        "ways": {"columns": WAY_COLUMNS, "rows": _scores(pairs)},
        "kinds": {"columns": KIND_COLUMNS, "rows": [_kind(pairs, kind) for kind in (SWAPPED, FORETOLD, UNKNOWN)]},
        "moved": {"columns": MOVED_COLUMNS, "rows": [_moved(pairs, row) for row in pairs if _has_moved(row)]},
        "calls": {name: f"{100 * np.mean(errors):.1f}" for name, errors in calls.items()}
        | {"sd": f"{np.median(widths) / HALF_OF_90:.3f}", "holds": f"{np.mean(holds):.0%}", "pairs": str(len(known))},
        "pairs": str(len(pairs)),
        "upgrades": str(len(upgrades)),
    }


def _has_moved(row: Mapping[str, Any]) -> bool:
    return bool(abs(np.expm1(row["measured"])) > MOVED)


def _scores(pairs: list[dict[str, Any]]) -> list[list[str]]:
    measured, moved = np.array([row["measured"] for row in pairs]), np.array([_has_moved(row) for row in pairs])
    logs = {way: np.array([row["predicted"][way] for row in pairs]) for way in WAYS}
    logs |= {"no change": 0.0 * measured, "mean of all earlier versions": np.array([row["mean"] for row in pairs])}
    scores = []
    for name, log in logs.items():
        error = np.abs(measured - log)
        sds = np.array([sd_of(pairs, name, row) for row in pairs]) if name in WAYS else np.zeros(len(pairs))
        holds = f"{np.mean(error <= HALF_OF_90 * sds):.0%}" if name in WAYS else "–"
        right = f"{(np.sign(log) == np.sign(measured))[moved].sum()} of {moved.sum()}"
        bias = f"{100 * np.mean(log - measured):+.1f}"
        scores.append([name, right, *_spread(error), bias, *_spread(error[moved])[:2], holds])
    right = sum(_commonest(row, pairs) == np.sign(row["measured"]) for row in pairs if _has_moved(row))
    return [*scores, ["commonest sign of the engine's other GPUs", f"{right} of {moved.sum()}", *["–"] * 7]]


def _kind(pairs: list[dict[str, Any]], kind: str) -> list[str]:
    errors = [abs(row["measured"] - row["predicted"][RULE]) for row in pairs if row["kind"] == kind]
    return [kind, str(len(errors)), *(f"{sd:.3f}" for sd in sds_of(pairs, RULE, kind)), *_spread(errors)]


def _moved(pairs: list[dict[str, Any]], row: Mapping[str, Any]) -> list[str]:
    changes = [deviation(np.expm1(log)) for log in (row["measured"], row["predicted"][RULE])]
    interval = f"±{100 * np.expm1(HALF_OF_90 * sd_of(pairs, RULE, row)):.0f}%"
    return [*(row[name] for name in PAIR), f"{row['calls']:,}", *row["kernels"], *changes, interval]


def _spread(errors: Any) -> list[str]:
    errors = errors if len(errors) else [np.nan]
    return [f"{100 * value:.1f}" for value in (np.median(errors), np.mean(errors), np.quantile(errors, 0.9))]


def _commonest(row: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]) -> float:
    same = ("family", "dtype", "engine", "to")
    others = [other for other in pairs if all(other[name] == row[name] for name in same) and other["gpu"] != row["gpu"]]
    return float(np.sign(sum(np.sign(other["measured"]) for other in others)))


def main() -> None:
    """Judge every pair, print and record the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", type=Path, required=True, help="as `calibrate import aisimulate` wrote it")
    parser.add_argument("--families", default=",".join(MEASURED), help="recorded where all are judged")
    arguments = parser.parse_args()
    gpus = tuple(gpu for gpu in GPUS.split(",") if gpu not in SEALED)
    held = measured_families([arguments.sweep], gpus)
    families = [name for name in arguments.families.split(",") if name in held]
    figures = report(list(pairs_judged(arguments.sweep, gpus, families)))
    for name in ("ways", "kinds", "moved"):
        columns, rows = figures[name]["columns"], figures[name]["rows"]
        print(*table_lines([dict(zip(columns, row, strict=True)) for row in rows], columns), sep="\n")
    print(figures["calls"], figures["pairs"], figures["upgrades"])
    if arguments.families == ",".join(MEASURED):
        print(record("kernels_versions", figures, "python benches/versions.py --sweep new.parquet"))


if __name__ == "__main__":
    main()
