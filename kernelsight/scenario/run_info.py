"""Contents of a saved run: its tables, and ``run_info`` with version, command and hashes of every input table."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Collection
from functools import cache
from typing import TYPE_CHECKING

from kernelsight.errors import InvalidInput
from kernelsight.files.own import own_bytes
from kernelsight.files.redaction import redacted_words
from kernelsight.files.shell_words import join_commands
from kernelsight.version import VERSION

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

RUN_INFO, PACK, PACK_DIGEST = "run_info", "eta_coefficients", "coefficients_sha256"
# inputs of a simulation besides facts and given tables: a saved run is simulated again from these
INPUTS = ("scenario_loads", "load_requests", "load_dependencies")
# results that a saved run of one scenario keeps, so that SQL reads them without another simulation
ANSWERS = (
    *("requests", "deployment_settings", "memory_plan", "host_settings", "assumptions", "step_shapes", "kernel_calls"),
    *("kernel_latencies", "step_costs", "step_cost_uses", "itl_histogram", "replica_totals", "serving_windows"),
    *("kv_transfers", "request_events", "request_metrics", "request_statistics", "itl_percentiles"),
    *("scenario_summary", "kernel_breakdown", "cache_over_time", "scenario_intervals", "resource_gains"),
    *("request_statistics_at_ends", "kernel_evidence", "deployment_tiers", "kv_tier_settings", "kv_tier_totals"),
    *("deployment_evidence", "scenario_tiers", "scenario_evidence"),
)


def inputs_of(session: Session) -> list[str]:
    """Return the tables from which a saved run is simulated again: facts, given tables, and loads.

    Of the shipped kernel model, two thirds of a run's bytes, the hash in ``run_info`` is enough: see ``pack_as_saved``.
    """
    return sorted({*session.facts(), *session.given(), *INPUTS} - ({PACK} - session.given()))


def pack_as_saved(session: Session, read: Callable[[], pa.Table]) -> Callable[[], pa.Table]:
    """Return ``read``, which reads the shipped kernel model, for a session on a file.

    InvalidInput, when it is read: the saved run in the file was predicted with another one.
    """
    if RUN_INFO not in session.available():
        return read
    saved = {row["fact"]: row["value"] for row in session.table(RUN_INFO).to_pylist()}

    def same() -> pa.Table:
        from kernelsight.caches.disk_cache import content_digest

        pack = read()
        if content_digest(pack).hex() != saved.get(PACK_DIGEST, content_digest(pack).hex()):
            raise InvalidInput(
                f"{session.path} was saved by version {saved.get('program_version')}, with another kernel model than "
                "this version's: its tables can be read, but no others computed; install the version that saved it."
            )
        return pack

    return same


def give_run_info(session: Session, seed: int | None = None) -> None:
    """Set the table ``run_info``: version, command with secrets redacted, seed, and hashes of the run's inputs."""
    facts = {**run_facts(session), "command": join_commands([["kernelsight", *redacted_words(sys.argv[1:])]])}
    facts |= {} if seed is None else {"seed": str(seed)}
    session.give(RUN_INFO, [{"fact": fact, "value": value} for fact, value in facts.items()])


def run_facts(session: Session, left_out: Collection[str] = ()) -> dict[str, str]:
    """Return the program's version, and SHA-256 hashes of the contracts and of each fact and given table, by name.

    ``left_out``: tables that hold the question, not inputs of the answer.
    """
    from kernelsight.caches.disk_cache import content_digest

    names = sorted({*session.facts(), *session.given()} - {RUN_INFO, *left_out})
    tables = {name: content_digest(session.table(name)).hex() for name in names}
    return {
        "program_version": VERSION,
        "schema_sha256": _schemas_digest(),
        "catalogue_sha256": _digest(*(f"{name} {digest}\n".encode() for name, digest in tables.items())),
        PACK_DIGEST: tables.pop(PACK),
        **{f"{name}_sha256": digest for name, digest in tables.items()},
    }


@cache
def _schemas_digest() -> str:
    from kernelsight.dataflow.locations import folder

    return _digest(*(own_bytes(path) for path in sorted(folder("schemas").glob("*.json"))))


def _digest(*chunks: bytes) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()
