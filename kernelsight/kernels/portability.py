"""Kernels of an answer whose η is taken from other GPUs although it varies between GPUs: the danger region."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from kernelsight.number_format import number, percent

# evidence of a latency that rests on other GPUs, the kernel that it names, and whether these are of other generations
EXTRAPOLATED = re.compile(r"(?:sweeps of other GPUs|fit of [^:]*hypothetical)[^:]*: (\w+)(.*not seen on this gen)?")
# smallest share of the GPU time that is said, in all and of one kernel
LEAST_SHARE, LEAST_NAMED = 0.02, 0.005


def in_danger(evidence: Iterable[Mapping[str, Any]], portability: Callable[[], pa.Table]) -> list[dict[str, Any]]:
    """Return the kernels in the danger region that rest on other GPUs alone, the longest time first.

    ``evidence``: family, evidence and gpu_us of kernels; ``portability``: makes ``eta_portability``, where one rests
    on other GPUs. Rows of it, with ``share`` of the GPU time.
    """
    rows = list(evidence)
    found = [(row, match) for row in rows if (match := EXTRAPOLATED.match(row["evidence"]))]
    known = {(row["family"], row["implementation"]): row for row in portability().to_pylist()} if found else {}
    kernels: dict[tuple[str, str], dict[str, Any]] = {}
    for row, match in found:
        key = row["family"], match[1]
        measured = known.get(key) or known.get((key[0], None)) or {"region": "safe"}
        # a kernel of one generation alone carries over to that generation's other GPUs
        if measured["region"] == "danger" and (measured["spread"] or match[2]):
            kernel = kernels.setdefault(key, measured | {"implementation": key[1], "share": 0.0})
            kernel["share"] += row["gpu_us"] / sum(each["gpu_us"] for each in rows)
    return sorted(kernels.values(), key=lambda kernel: -kernel["share"])


def danger_sentences(kernels: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the sentence on the kernels of :func:`in_danger`; empty: little of the time."""
    named = [kernel for kernel in kernels if kernel["share"] >= LEAST_NAMED]
    share = sum(kernel["share"] for kernel in named)
    words = ", ".join(
        f"{kernel['family']} {kernel['implementation']} ({percent(kernel['share'])}; η "
        f"{number(kernel['geometric_mean'], 2)}, "
        + (f"{number(kernel['spread'], 2)} × between GPUs)" if kernel["spread"] else "of one GPU generation alone)")
        for kernel in named
    )
    sentence = (
        f"{percent(share)} of the GPU time: η of {words} is taken from other GPUs although it varies between them"
    )
    rest = " (table eta_portability); `kernelsight calibrate plan` measures these kernels first"
    return [sentence + rest] if share >= LEAST_SHARE else []
