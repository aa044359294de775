"""The version of the engine as the cause of a change between two logs, with the kernels that explain it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kernelsight.comparison.signature_causes import Cause
from kernelsight.dataflow.session import Session
from kernelsight.errors import InvalidInput
from kernelsight.forward.forward_step import predict_step
from kernelsight.number_format import deviation
from kernelsight.scenario.flags import ALIASES, DEPLOYMENT_FLAGS
from kernelsight.upgrades.differences import kernel_rows

# the setting, and SGLang's name of it in its server_info
VERSION, SPELLINGS = "engine_version", {"version": "engine_version"}
# least and most of the measured change of decoding, as shares of its logarithm, that kernels explain if they predict it
EXPLAINS = (1.0 / 3.0, 3.0)
# kernels that are named, and the least change of one in a step that is named
MOST_NAMED, LEAST_SHARE = 3, 0.01


def with_kernels(
    causes: Sequence[Cause], rows: Sequence[Mapping[str, Any]], flags: Mapping[str, Any], session: Session
) -> list[Cause]:
    """Return causes, the version's with the kernels that it changes where these explain the change of decoding.

    ``rows``: of ``log_changes``; ``flags``: of the deployment, {} where none is stated.
    """
    by_name = {row["what"]: row for row in rows}
    change = by_name.get("decode_at_the_same_load")
    if VERSION not in by_name or not flags or change is None or not change["factor"]:
        return list(causes)
    versions = (by_name[VERSION]["before_word"], by_name[VERSION]["after_word"])
    try:
        named = _explanation(flags, versions, by_name, math.log(change["factor"]), session)
    except InvalidInput:  # a version in which the deployment cannot run, or words that are none
        named = ""
    return [
        cause._replace(value=f"{cause.value}{named}") if (cause.kind, cause.name) == ("setting", VERSION) else cause
        for cause in causes
    ]


def _explanation(
    flags: Mapping[str, Any],
    versions: tuple[str, str],
    by_name: Mapping[str, Mapping[str, Any]],
    log_change: float,
    session: Session,
) -> str:
    """Return the kernels that change, in brackets; "" where they do not explain the change."""
    own = {name: value for name, value in flags.items() if ALIASES.get(name, name) in DEPLOYMENT_FLAGS}
    lengths = [by_name[name]["after"] or 1.0 for name in ("prompt_tokens", "output_tokens")]
    running = by_name["in_flight"]["after"] if "in_flight" in by_name else 1.0
    sizes = {"batch_size": max(1, round(running)), "context_len": int(lengths[0] + lengths[1] / 2.0), "input_len": None}
    steps = []
    for version in versions:
        with session.fork() as fork:
            steps.append(predict_step(fork, own | {VERSION: version}, "decode", dict(sizes)))
    totals = [step["total_us"] for step in steps]
    predicted = math.log(totals[1] / totals[0])
    if not EXPLAINS[0] <= predicted / log_change <= EXPLAINS[1] if log_change else True:
        return ""
    kernels = [
        f"{row['family']} {' to '.join(dict.fromkeys([row['kernel_from'], row['kernel_to']]))}"
        for row in kernel_rows(*steps)
        if abs(row["ms_per_step_to"] - row["ms_per_step_from"]) > LEAST_SHARE * totals[0] / 1e3
    ]
    return f" ({', '.join(kernels[:MOST_NAMED])}: {deviation(math.expm1(predicted))} predicted)" if kernels else ""
