"""One scenario of a session that may hold many, in a fork of its own: simulated again from its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from kernelsight.errors import InvalidInput, unknown

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

LOADS = ("scenario_loads", "load_requests", "load_dependencies")


def one_scenario(session: Session, scenario: str | None = None) -> Session:
    """Return the session where it has one scenario, else a fork that holds ``scenario`` alone.

    InvalidInput: there are several and ``scenario`` is None, there is none, or it cannot run; UnknownName: no scenario
    has this name.
    """
    names = scenarios_of(session)
    if scenario is None and len(names) > 1:
        raise InvalidInput(f"the file holds {len(names):,} scenarios; name one with --scenario, such as {names[0]}.")
    if scenario is not None and scenario not in names:
        raise unknown("scenario", scenario, names, "table scenarios lists them.")
    if len(names) == 1:
        return session
    session.compute(*LOADS)
    fork = session.fork()
    (load,) = _rows_of(session, "scenario_loads", "scenario_id", scenario)["load_id"].to_pylist()
    fork.give("scenarios", _rows_of(session, "scenarios", "scenario_id", scenario))
    # a trace is not read again: its file may be gone
    fork.give("scenario_loads", _rows_of(session, "scenario_loads", "scenario_id", scenario), trusted=True)
    for table in LOADS[1:]:
        fork.give(table, _rows_of(session, table, "load_id", load), trusted=True)
    row = fork.table("scenarios").to_pylist()[0]
    deployment_ids = [row[name] for name in ("deployment_id", "prefill_deployment_id") if row[name] is not None]
    faults = fork.table("deployment_faults")
    for fault in faults.filter(pc.is_in(faults["deployment_id"], pa.array(deployment_ids))).to_pylist():
        raise InvalidInput(f"scenario {scenario} was not served: {fault['sentence']}.")
    return fork


def _rows_of(session: Session, table: str, column: str, value: str) -> pa.Table:
    rows = session.table(table)
    return rows.filter(pc.equal(rows[column], value))


def scenarios_of(session: Session) -> list[str]:
    """Return the scenario_ids of a session; InvalidInput: it has none, so that its file is no saved run."""
    if "scenarios" not in session.available() or not session.table("scenarios").num_rows:
        where = f"{session.path} holds" if session.path else "this session holds"
        raise InvalidInput(
            f"{where} no scenario; save a run with `kernelsight simulate ... -o run.duckdb`, or a sweep likewise."
        )
    return session.table("scenarios")["scenario_id"].to_pylist()
