"""Sizes of causes, found by replays on either side of each where steps from the parts of each request do not move."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from kernelsight.comparison import cause_sizes as sizes
from kernelsight.comparison.cause_sizes import Log, State, with_sizes
from kernelsight.comparison.factors import PARAMETERS, prior_covariance, relative_residuals
from kernelsight.comparison.log_replayer import LogReplayer
from kernelsight.comparison.replay import KERNELS, LOAD, Variant, conformed
from kernelsight.comparison.residuals import group_residuals, misfit, similar
from kernelsight.session import Session

FLAGS = {"model": "llama-3.1-8b", "gpu": "h100_sxm"}
N = 700


def load_at(rate: float) -> pa.Table:
    dice = np.random.default_rng(3)
    arrival = np.cumsum(dice.exponential(1.0 / rate, N))
    prompts = np.clip(dice.lognormal(6.6, 0.6, N), 64, 8000).astype(np.int64)
    outputs = np.clip(dice.lognormal(4.9, 0.5, N), 8, 1000).astype(np.int64)
    columns = {"load_id": [LOAD] * N, "request_id": np.arange(N), "arrival_s": arrival - arrival[0]}
    return conformed({**columns, "prompt_tokens": prompts, "output_tokens": outputs})


def log_of(session: Session, rate: float, truth: Variant) -> tuple[Log, State]:
    """Return what explanations of a planted world are held against, and the deployment as it was stated."""
    load = load_at(rate)
    served = LogReplayer(session, load).serve([truth])[0]
    table = {name: load[name] for name in ("arrival_s", "prompt_tokens", "output_tokens")}
    table |= {"ttft_ms": served.ttft_ms, "e2e_ms": served.e2e_ms, "ttft_clock": ["client_send"] * N}
    measured = session.compare(requests=pa.table(table), deployment=FLAGS, fit="none").log.measured
    everyone = np.ones(N, bool)
    groups = similar(measured, everyone)
    log = Log(
        *(LogReplayer(session, load).serve, measured, everyone),
        prior_covariance(dict.fromkeys(KERNELS, 0.1)),
        lambda replayed: group_residuals(relative_residuals(measured, replayed), groups),
    )
    (base,) = log.serve([Variant(FLAGS)])
    return log, State(FLAGS, np.zeros(len(PARAMETERS)), (), base, log.residuals_of(base))


@pytest.mark.parametrize(
    ("rate", "factors", "host_ms"),
    [
        (9.0, {"decode_attention": 1.29, "prefill_gemm": 1.22}, 0.0),
        (13.0, {"decode_attention": 0.8}, 1.2),
        (13.0, {"prefill_gemm": 1.3}, 0.0),  # near saturation
    ],
)
def test_sizes_of_planted_causes(session: Session, rate: float, factors: dict[str, float], host_ms: float) -> None:
    log, stated = log_of(session, rate, Variant(FLAGS, factors, host_ms * 1e3))
    causes = (*factors, "host") if host_ms else tuple(factors)
    (found,) = with_sizes(log, [stated._replace(causes=causes)], stated.residuals)
    sized = dict(zip(PARAMETERS, found.values, strict=True))
    assert all(sized[name] == pytest.approx(np.log(factor), rel=0.25) for name, factor in factors.items()), sized
    assert sized["host"] == pytest.approx(host_ms, rel=0.1)
    assert (
        misfit(found.residuals, stated.residuals) < 0.05 * misfit(stated.residuals, stated.residuals)
        or found.residuals.is_chance
    )


def test_secants_move_where_steps_from_parts_are_stuck(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a request's time do not say that its queue grows too."""
    log, stated = log_of(session, 13.0, Variant(FLAGS, {"prefill_gemm": 1.3}, 900.0))
    asked = [stated._replace(causes=("prefill_gemm", "host"))]
    (found,) = with_sizes(log, asked, stated.residuals)
    monkeypatch.setattr(sizes, "SECANT_STEPS", 0)
    without = with_sizes(log, asked, stated.residuals)
    assert not without or misfit(found.residuals, found.residuals) < misfit(without[0].residuals, found.residuals)


def test_a_cause_without_effect_is_none(session: Session) -> None:
    log, stated = log_of(session, 6.0, Variant(FLAGS, {"decode_gemm": 1.25}))
    asked = [stated._replace(causes=("decode_gemm", name)) for name in ("front_end", "prefill_gemm")]
    found = {state.causes[-1]: state for state in with_sizes(log, asked, stated.residuals)}
    assert "front_end" not in found
    assert all(abs(state.values[PARAMETERS.index("prefill_gemm")]) < 0.05 for state in found.values())
