"""What is kept of a replay."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from kernelsight import connect
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import REPLAYED_PARTS, Replayed, Variant, load_of_log
from kernelsight.logs.read_logs import read_logs


def test_parts_that_are_not_wanted_take_no_memory() -> None:
    parts = [np.full((2, 3), place) for place in range(len(REPLAYED_PARTS))]
    served = Replayed(*np.ones((5, 3), np.int64), parts, np.ones((2, 3)))
    kept = served.only(["moe", "host"])
    assert sum(values.size for values in kept.parts_ns) == 6
    assert kept.part("moe").tolist() == served.part("moe").tolist() and kept.steps.sum() == 6
    assert served.only([]).steps.size == 0


def test_a_log_says_which_adapter_a_request_has(tmp_path) -> None:
    rows = [f"{k},900,60,{50 + k},{1000 + k},{name}" for k, name in enumerate(("b", "", "a", "b"))]
    path = tmp_path / "log.csv"
    path.write_text("\n".join(["arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms,lora_name", *rows]))
    table = read_logs(path, columns={"adapter": "lora_name"})["production_requests"]
    assert load_of_log(table)["adapter"].to_pylist() == [0, None, 1, 0]


def test_a_correction_takes_no_more_host_time_than_there_is() -> None:
    """A step of negative length would end before it began, and be counted where there is no memory."""
    flags = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}
    sent, whole = np.arange(200) / 20.0, np.ones(200, np.int64)
    requests = {"sent_s": sent, "arrival_s": sent, "prompt_tokens": 900 * whole, "output_tokens": 60 * whole}
    requests |= {"hash_ids": pa.nulls(200, pa.list_(pa.int64())), "cached_tokens": pa.nulls(200, pa.int64())}
    requests |= {"adapter": pa.nulls(200, pa.string())}
    with connect() as session:
        load = load_of_log(pa.table(requests))
        off = [-1e2, -1e3, -1e4, -1e6]
        served = LogReplayer(session, load).serve([Variant(flags, {"decode_gemm": 0.01}, us, us) for us in off])
        for schedule in (False, True):
            ahead = [Variant({**flags, "async_scheduling": schedule}, {}, us, us) for us in off]
            served += LogReplayer(session, load).serve(ahead)
    for one in served:
        assert one.served.all()
        assert (one.scheduled_ns >= one.sent_ns).all() and (one.first_ns > one.scheduled_ns).all()
        assert (one.finish_ns > one.first_ns).all() and all((part >= 0).all() for part in one.parts_ns)
