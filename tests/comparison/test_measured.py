"""What a log measured of a request, from its sending on, whatever its clock and whichever times it has."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.comparison.measured_requests import Measured, measured_of

TIMES = ("arrival_s", "sent_s", "ttft_ms", "tpot_ms", "e2e_ms", "queue_ms", "cached_tokens")


def measured(**times: float | str) -> Measured:
    """Return what is measured of one request of five tokens; a time that is not named is not in the log."""
    row = dict.fromkeys(TIMES) | {"sent_s": 10.5, "output_tokens": 5, "prompt_tokens": 100, "ttft_clock": None} | times
    whole = dict.fromkeys(("model", "status", "ttft_clock", "sent_from"), pa.string())
    row |= {"model": None, "status": "ok", "sent_from": None}
    return measured_of(
        pa.table({name: pa.array([value], whole.get(name, pa.float64())) for name, value in row.items()})
    )


@pytest.mark.parametrize(
    ("times", "ttft_ms", "decode_ms", "e2e_ms"),
    [
        ({"ttft_ms": 100.0, "e2e_ms": 180.0}, 100.0, 80.0, 180.0),
        ({"ttft_ms": 100.0, "tpot_ms": 20.0}, 100.0, 80.0, 180.0),
        ({"tpot_ms": 20.0, "e2e_ms": 180.0}, 100.0, 80.0, 180.0),
        ({"e2e_ms": 180.0}, np.nan, np.nan, 180.0),
        ({"ttft_ms": 100.0, "e2e_ms": 100.0, "output_tokens": 1}, 100.0, 0.0, 100.0),
        # sent half a second after it was due: what it waited in the client is no time of the server
        ({"arrival_s": 10.0, "ttft_ms": 600.0, "e2e_ms": 680.0, "ttft_clock": "client_scheduled"}, 100.0, 80.0, 180.0),
        ({"ttft_ms": 100.0, "e2e_ms": 180.0, "ttft_clock": "client_scheduled"}, 100.0, 80.0, 180.0),
        ({"arrival_s": 10.0, "ttft_ms": 100.0, "e2e_ms": 180.0, "ttft_clock": "client_send"}, 100.0, 80.0, 180.0),
    ],
)
def test_times_begin_when_a_request_is_sent(
    times: dict[str, float | str], ttft_ms: float, decode_ms: float, e2e_ms: float
) -> None:
    found = measured(**times)
    assert [found.ttft_ms[0], found.decode_ms[0], found.e2e_ms[0]] == pytest.approx(
        [ttft_ms, decode_ms, e2e_ms], nan_ok=True
    )
    assert not found.from_server
