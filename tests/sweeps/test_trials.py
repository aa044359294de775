"""Trials: what is kept of a simulated load."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from kernelsight.serving.engine.records import FINISHED, ITL_BINS
from kernelsight.sweeps.trials import Trials


def test_requests_of_conversations_are_in_the_order_in_which_they_were_sent() -> None:
    """Two conversations of two turns, the second of which begins while the first one's first turn is answered.

    They are sent after 0, 50, 10 and 30 ms and answered after 20, 10, 5 and 40 ms, the first token after 2, 4, 1 and 8.
    """
    sent_us = np.array([0.0, 50.0, 10.0, 30.0]) * 1e3
    out = SimpleNamespace(
        status=np.full(4, FINISHED),
        sent_us=sent_us,
        scheduled_us=sent_us,
        first_token_us=sent_us + np.array([2.0, 4.0, 1.0, 8.0]) * 1e3,
        finish_us=sent_us + np.array([20.0, 10.0, 5.0, 40.0]) * 1e3,
    )
    served = SimpleNamespace(out=out, histogram=np.zeros(ITL_BINS, np.int64))
    columns = {"prompt_tokens": np.full(4, 8), "output_tokens": np.array([10, 7, 5, 9]), "warmup": np.zeros(4, bool)}
    inputs = SimpleNamespace(spans={"a": (0, 4)}, columns=columns)
    trials = object.__new__(Trials)
    trials._fronts = {"d": (0.0, 0.0)}
    row = {"scenario_id": "a", "deployment_id": "d", "max_concurrency": None, "num_turns": 2}
    found = trials._trial(inputs, row, [SimpleNamespace(rows=np.arange(4), served=served)])
    assert found.latencies["e2e"].tolist() == [20.0, 5.0, 40.0, 10.0]
    assert found.latencies["ttft"].tolist() == [2.0, 1.0, 8.0, 4.0]
    assert found.latencies["tpot"].tolist() == [2.0, 1.0, 4.0, 1.0], "by each request's own number of tokens"
    assert found.tokens == (16.0, 15.5) and found.duration_s == 0.07 and not found.lost
