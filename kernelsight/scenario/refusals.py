"""Errors for deployments that cannot run, with the smallest tensor-parallel size that fits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

PARALLEL_SIZES = (1, 2, 4, 8, 16, 32, 64)
# the faults of deployment_faults, in the order in which they are reported
ORDER = (
    *("engine", "expert_parallel", "heads", "kv_heads", "width", "experts", "blocks", "pipeline", "dtype", "model_len"),
    *("limit", "drafts"),
    *("chunking", "partial_prefills", "batch_wait", "kv_cache_tokens", "kv_cache", "memory"),
)


def refuse_faults(session: Session) -> None:
    """Raise InvalidInput with every fault of the session's deployments; if memory is short, with a size that fits."""
    faults = session.table("deployment_faults").to_pylist()
    if not faults:
        return
    rows = {row["deployment_id"]: row for row in session.table("deployments").to_pylist()}
    sentences = []
    for fault in decisive(faults):
        sentence = fault["sentence"]
        if fault["fault"] in ("memory", "kv_cache"):
            sentence = f"{sentence.rstrip(' ;')}; {what_fits(session, rows[fault['deployment_id']])}"
        sentences.append(sentence)
    raise InvalidInput("; ".join(dict.fromkeys(sentences)) + ".")


def decisive(faults: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of ``deployment_faults`` to report, in ``ORDER``.

    An engine that does not exist for a GPU, or a value that cannot be simulated, is reported alone: other faults
    follow from it.
    """
    reported = sorted(faults, key=lambda fault: ORDER.index(fault["fault"]))
    for blocking in ("engine", "limit"):
        reported = [fault for fault in reported if fault["fault"] == blocking] or reported
    return reported


def what_fits(session: Session, deployment: dict[str, Any]) -> str:
    """Return a sentence on the smallest tensor-parallel size without a fault; all sizes are checked in one query.

    ``deployment``: a row of the session's ``deployments``; its draft model shares the GPUs, and must fit beside it.
    """
    candidates = []
    for size in PARALLEL_SIZES:
        candidates.append(_at_size(deployment, size))
        if deployment.get("draft_deployment_id"):
            rows = session.table("deployments").to_pylist()
            draft = next(row for row in rows if row["deployment_id"] == deployment["draft_deployment_id"])
            candidates[-1]["draft_deployment_id"] = f"draft of tp{size}"
            candidates.append({**_at_size(draft, size), "deployment_id": f"draft of tp{size}"})
    with session.fork() as fork:
        fork.give("deployments", candidates)
        broken = set(fork.table("deployment_faults")["deployment_id"].to_pylist())
    for size in PARALLEL_SIZES:
        if not broken & {f"tp{size}", f"draft of tp{size}"}:
            replicas = f" (on each of {deployment['dp']} data-parallel replicas)" if deployment["dp"] > 1 else ""
            return f"the smallest tensor-parallel size that fits is {size}{replicas}"
    return (
        f"no tensor-parallel size up to {PARALLEL_SIZES[-1]} fits; "
        "use another GPU, a quantisation, or pipeline parallelism"
    )


def _at_size(deployment: dict[str, Any], size: int) -> dict[str, Any]:
    experts = size * deployment["dp"] if deployment["ep"] > 1 else 1
    return {**deployment, "tp": size, "ep": experts, "deployment_id": f"tp{size}"}
