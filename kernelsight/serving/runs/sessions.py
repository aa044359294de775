"""Sessions of a load: requests connected by dependencies, such as turns of a conversation; and the turn of each."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kernelsight.dataflow.python_nodes import produces
from kernelsight.serving.engine.inputs import Waits
from kernelsight.serving.engine.session_records import first_of_session
from kernelsight.serving.load.dependencies import Dependencies, generations
from kernelsight.serving.load.requests import spans_of


@produces("session_requests")
def sessions_of_requests(requests: pa.Table, request_dependencies: pa.Table) -> pa.Table:
    """Sessions: requests connected by dependencies, such as the turns of a conversation.

    A request that neither waits for another nor is waited for is a session of its own.
    """
    names, ids, sessions, turns = [], [], [], []
    spans = spans_of(requests["scenario_id"])
    request_ids = requests["request_id"].to_numpy()
    dependency_columns = [request_dependencies[name].to_numpy() for name in ("request_id", "after", "think_s")]
    for scenario, (start, stop) in spans_of(request_dependencies["scenario_id"]).items():
        ids_of_scenario = request_ids[slice(*spans[scenario])]
        order = np.argsort(ids_of_scenario)
        request, after = (
            order[np.searchsorted(ids_of_scenario, column[start:stop], sorter=order)]
            for column in dependency_columns[:2]
        )
        waits = Waits(request, after, dependency_columns[2][start:stop])
        names += [scenario] * ids_of_scenario.size
        ids.append(ids_of_scenario)
        sessions.append(ids_of_scenario[first_of_session(waits, ids_of_scenario.size)])
        turns.append(generations(Dependencies(*waits), ids_of_scenario.size))
    columns = (np.concatenate([*values, np.zeros(0, np.int64)]) for values in (ids, sessions, turns))
    return pa.table([pa.array(names, pa.string()), *columns], names=["scenario_id", "request_id", "session", "turn"])
