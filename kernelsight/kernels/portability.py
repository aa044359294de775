"""Kernels of an answer whose η is taken from other GPUs although it varies between GPUs: the danger region."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from kernelsight.number_format import number, percent

# evidence of a latency that rests on other GPUs, the kernel that it names, and whether these are of other generations
EXTRAPOLATED = re.compile(
    r"(?:sweeps of other GPUs|fit of [^:]*hypothetical)[^:]*: (\w+)(, not seen on this generation)?"
)
# smallest share of the GPU time that is said, in all and of one kernel
LEAST_SHARE, LEAST_NAMED = 0.02, 0.005


def kernels_in_danger(
    evidence: Iterable[Mapping[str, Any]], portability: Callable[[], pa.Table]
) -> list[dict[str, Any]]:
    """Return the kernels in the danger region that no row of the GPU's own sweep answers, the longest time first.

    ``evidence``: family, evidence and gpu_us of kernels; ``portability``: makes ``eta_portability``, read where a
    kernel rests on other GPUs. Rows: family, implementation, geometric_mean, spread, share of the GPU time.
    """
    total_us, times = 0.0, dict[tuple[str, str, bool], float]()
    for row in evidence:
        total_us += row["gpu_us"]
        if found := EXTRAPOLATED.match(row["evidence"]):
            key = row["family"], found[1], found[2] is not None
            times[key] = times.get(key, 0.0) + row["gpu_us"]
    if not times:
        return []
    known = {(row["family"], row["implementation"]): row for row in portability().to_pylist()}
    rows = []
    for (family, implementation, is_new), time_us in sorted(times.items(), key=lambda item: (-item[1], item[0])):
        row = known.get((family, implementation)) or known.get((family, None))
        # a kernel of one generation alone carries over to that generation's other GPUs
        if row and row["region"] == "danger" and (row["spread"] or is_new):
            rows.append({**row, "implementation": implementation, "share": time_us / total_us})
    return rows


def danger_sentence(kernels: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the sentence on the rows of :func:`kernels_in_danger`; None: little of the time.

    >>> row = {"family": "moe", "implementation": "a", "geometric_mean": 4.1, "spread": 2.3, "share": 0.43}
    >>> danger_sentence([row])[:67]
    '43% of the GPU time: η of moe a (43%; η 4.1, 2.3 × between GPUs) is'
    """
    named = [row for row in kernels if row["share"] >= LEAST_NAMED]
    share = sum(row["share"] for row in named)
    if share < LEAST_SHARE:
        return None
    words = ", ".join(
        f"{row['family']} {row['implementation']} ({percent(row['share'])}; η {number(row['geometric_mean'], 2)}, "
        + (f"{number(row['spread'], 2)} × between GPUs)" if row["spread"] else "of one GPU generation alone)")
        for row in named
    )
    return (
        f"{percent(share)} of the GPU time: η of {words} is taken from other GPUs although it varies between them "
        "(table eta_portability); `kernelsight calibrate plan` measures these kernels first"
    )
