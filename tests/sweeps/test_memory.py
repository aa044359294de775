"""What a sweep holds of a load: so much a request, nothing a step or a token."""

from __future__ import annotations

import tracemalloc

import pytest

from kernelsight.session import Session
from tests.asked import sweep

from .conftest import SMALL

# records of the loop (about 300 bytes), its outcome twice, columns of the load and of the statistics
BYTES_A_REQUEST = 1500


def peak_bytes(session: Session, requests: int, output_len: int) -> int:
    """Return the most memory that Python and numpy held during a sweep of one scenario."""
    row = {**SMALL, "max_concurrency": 16, "num_prompts": requests, "input_len": 64, "output_len": output_len}
    tracemalloc.start()
    try:
        (found,) = sweep(session, [row]).to_pylist()
        assert found["completed"] == requests
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.whole
def test_memory_grows_with_requests_alone(session: Session):
    peak_bytes(session, 100, 8)  # what is read and compiled once is there
    few, many = peak_bytes(session, 10_000, 8), peak_bytes(session, 40_000, 8)
    assert 100 < (many - few) / 30_000 < BYTES_A_REQUEST
    # sixty times the decode steps
    assert peak_bytes(session, 10_000, 480) < 1.1 * few
