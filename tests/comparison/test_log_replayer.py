"""Replays of one log in worlds that are read once: the same as those that the graph makes of rows of corrections."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import REPLAYED_PARTS, Variant, give_log
from kernelsight.session import Session
from tests.comparison.test_comparison import FLAGS, drawn

MOE = {"model": "qwen3-30b-a3b", "gpu": "h100_sxm", "tensor_parallel_size": 2}
VARIANTS = (
    Variant(FLAGS),
    Variant(FLAGS, {"decode_gemm": 1.3, "prefill_attention": 0.8}, 400.0, -1e6),
    Variant({**FLAGS, "max_num_seqs": 8}, {"prefill_gemm": 1.1}, request_us=2500.0),
    Variant(MOE, {"moe": 1.4, "communication": 0.7, "decode_attention": 1.2}),
)
# the graph rounds every knot to whole picoseconds
ROUNDED_NS = 5


@pytest.mark.whole
def test_replays_are_those_of_the_graph(session: Session) -> None:
    load = drawn(n=60)
    found = LogReplayer(session, load).serve(VARIANTS)
    with session.fork() as fork:
        places = give_log(fork, load, VARIANTS)
        fork.compute("request_events", "request_parts")
        events, parts = (fork.table(name).to_pylist() for name in ("request_events", "request_parts"))
    for name, number in places.items():
        own = [row for row in events if row["scenario_id"] == name]
        split = [row for row in parts if row["scenario_id"] == name]
        served = found[number]
        moments = {"sent": served.sent_ns, "scheduled": served.scheduled_ns, "first_token": served.first_ns}
        for column, values in {**moments, "finish": served.finish_ns}.items():
            assert values.tolist() == pytest.approx([row[f"{column}_ns"] for row in own], abs=ROUNDED_NS), (
                name,
                column,
            )
        assert served.cached_tokens.tolist() == [row["cached_tokens"] for row in own]
        for part in REPLAYED_PARTS:
            whole = sum(row[f"{part}_ns"] for row in split)
            assert served.part(part).sum() == pytest.approx(whole, abs=60 * ROUNDED_NS), (name, part)
        assert served.steps.sum() == sum(row["steps"] for row in split)


def test_some_requests_are_served_as_if_they_were_all(session: Session) -> None:
    load = drawn(n=60)
    worlds, rows = LogReplayer(session, load), np.arange(20, 50)
    (sliced,) = worlds.serve(VARIANTS[:1], rows)
    (taken,) = worlds.serve(VARIANTS[:1], np.append(rows, 59))
    for served, own in ((sliced, rows), (taken, np.append(rows, 59))):
        (alone,) = LogReplayer(session, load.take(pa.array(own))).serve(VARIANTS[:1])
        assert served.finish_ns.tolist() == alone.finish_ns.tolist() and alone.served.all()


def test_a_deployment_that_cannot_run_serves_nothing(session: Session) -> None:
    wrong = [Variant({"model": "llama-3.1-405b", "gpu": "l4"}), Variant({**FLAGS, "gpu": "no such"}), Variant(FLAGS)]
    small, unknown, able = LogReplayer(session, drawn(n=10)).serve(wrong)
    assert not small.served.any() and not unknown.served.any() and able.served.all()
    assert able.part("host").size == small.part("host").size == 10
