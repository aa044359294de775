"""What the rows of an answer rest on: limits against rates that are searched with more of it, ends of intervals."""

from __future__ import annotations

import pytest

from kernelsight.scenario.objectives import objective_of
from kernelsight.session import Session
from kernelsight.sweeps.rate_intervals import _keeps_up_to, nearest_figure

from .conftest import FLAGS, LOAD

# what a deployment served at a rate is served once for all questions
pytestmark = pytest.mark.usefixtures("kept_trials")


def chosen(session: Session, slo: dict[str, float], **changed: object) -> dict[str, object]:
    asked = FLAGS | LOAD | {"gpus": ["h100_sxm"], "max_gpus": 1, "tune": False} | changed
    return session.size(**asked, slo=slo, rate=1.0).chosen


@pytest.mark.parametrize(
    ("changed", "slo", "limit"),
    [
        # two seats, and answers that take far longer than prompts: requests wait for a seat
        ({"max_num_seqs": 2, "input_len": 64, "output_len": 50}, {"ttft_p90_ms": 100.0}, "seats"),
        # room for ten requests
        ({"kv_cache_tokens": 3520, "output_len": 40, "max_num_seqs": 256}, {"ttft_p90_ms": 400.0}, "KV cache"),
    ],
)
@pytest.mark.whole
def test_more_of_the_limit_raises_the_rate(
    session: Session, changed: dict[str, object], slo: dict[str, float], limit: str
) -> None:
    row = chosen(session, slo, **changed)
    assert row["limit"] == limit
    name = {"seats": "max_num_seqs", "KV cache": "kv_cache_tokens"}[limit]
    more = FLAGS | LOAD | changed | {"gpu": "h100_sxm"}
    more[name] = int(more[name] * 1.5)
    assert session.find_rates([more], slo)["max_request_rate"][0].as_py() > 1.1 * row["rate"]


def test_a_rate_at_an_end_is_where_that_end_crosses_the_objective() -> None:
    at = {
        factor: {"ttft_p99_ms": {"low": 60 * factor, "predicted": 80 * factor, "high": 160 * factor}}
        for factor in (0.3, 0.5, 1.0, 1.5)
    }
    objective = objective_of("ttft_p95_ms", 100.0)
    assert nearest_figure(objective) == "ttft_p99_ms"
    assert _keeps_up_to(at, objective, "high") == pytest.approx(100 / 160)
    assert _keeps_up_to(at, objective, "low") == 1.5
    # what the figure itself is at the found rate counts as kept
    assert _keeps_up_to(at, objective_of("ttft_p99_ms", 1.0), "high") == pytest.approx(0.5)
    assert nearest_figure(objective_of("itl_mean_ms", 1.0)) == "tpot_mean_ms"


def test_disaggregated_rows_have_evidence_of_both_pools(session: Session) -> None:
    asked = FLAGS | LOAD | {"gpus": ["h100_sxm"], "max_gpus": 3, "tune": False, "tensor_parallel_size": 1}
    apart = {"prefill_replicas": 1, "decode_replicas": 1, "prefill_tensor_parallel_size": 2}
    for more, pools in (({}, {"decode"}), (apart, {"decode", "prefill"})):
        answer = session.size(**asked, **more, slo={"ttft_p90_ms": 100.0}, rate=1.0)
        assert set(answer.table("size_evidence")["pool"].to_pylist()) == pools
