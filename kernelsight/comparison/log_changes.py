"""Changes between two logs: load, cache, speed, power, settings; and the causes of the change in latency."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kernelsight.comparison.causes_by_evidence import LEAST_QUIET, cause_of_incident, quiet_requests
from kernelsight.comparison.earlier_log import calibrated, predicted_by
from kernelsight.comparison.errors import concurrency_of
from kernelsight.comparison.incidents import incidents_of
from kernelsight.comparison.measured_requests import LEAST_REQUESTS, LEAST_SECONDS, Measured
from kernelsight.comparison.observed_limits import LEAST_CACHED, caches_nothing, decoding, most_running, seats_seen
from kernelsight.comparison.power import MeanPower, span_s
from kernelsight.comparison.replay import Replayed
from kernelsight.comparison.signature_causes import AGREES, Cause, best_fitting, closed_forms, lasts, signature

# smallest change of the load that counts, and its smallest number of standard errors
LEAST_CHANGE, CHANCE = 0.05, 3.0
# parts of a log, in order of sending, whose means vary as those of other logs of the same server would
PARTS = 10
# unit of each figure, by kind; a ratio is that of the later log's times over those expected of the earlier engine
FIGURES: Mapping[str, Mapping[str, str]] = {
    "load": {
        **{"request_rate": "requests/s", "prompt_tokens": "tokens", "output_tokens": "tokens"},
        **{"cached_share": "share of prompt tokens", "failed_share": "share of requests", "in_flight": "requests"},
    },
    "speed": {
        **{"e2e_ms": "ms", "ttft_at_the_same_load": "ratio", "decode_at_the_same_load": "ratio"},
        "running_max": "requests",
    },
    "power": {"power_w": "W", "energy_per_output_token_j": "J/token", "measured_gpus": "GPUs"},
}
KIND_OF = {figure: kind for kind, figures in FIGURES.items() for figure in figures}
# changes of the load that can lengthen latencies
LENGTHEN = ("request_rate", "prompt_tokens", "output_tokens", "cached_share")
# settings that are reported as causes if both logs state them and they differ
NAMED = ("engine_version", "model", "tensor_parallel_size", "quantization", "max_num_seqs", "max_num_batched_tokens")


class LogPair(NamedTuple):
    """An earlier and a later log: measured requests, and the settings that each log states, by name.

    ``gaps``: ``chunk_gaps_ms`` of the later log's requests; ``power``: of both logs, None where it was not measured.
    """

    before: Measured
    after: Measured
    settings: tuple[Mapping[str, str], Mapping[str, str]]
    gaps: pa.ChunkedArray | None = None
    power: tuple[MeanPower | None, MeanPower | None] = (None, None)

    @property
    def enough(self) -> bool:
        """Whether requests and seconds of both logs suffice to search for causes, with their own times of sending."""
        return all(_is_enough(measured) for measured in (self.before, self.after))


class Changes(NamedTuple):
    """Changes between two logs: rows of ``log_changes``, causes, and ``load_ms``, by which the load lengthens mean E2E.

    ``load_ms``: None where it is unknown; ``base``: the earlier log's prediction for the later one's requests.
    """

    rows: list[dict[str, Any]]
    causes: list[Cause]
    load_ms: float | None
    base: Replayed | None


def changes_between(pair: LogPair, replay: Callable[[], tuple[Replayed, Replayed]] | None) -> Changes:
    """Return the changes between two logs, with their causes.

    ``replay``: returns replays of the earlier and the later log on the deployment, where one is stated: then the load's
    effect is simulated, and errors that the model makes in both logs cancel. Without it, ``earlier_log`` predicts.
    """
    rows = _load_rows(pair) + _setting_rows(pair) + _power_rows(pair) + _latency_rows(pair)
    load, settings = _load_causes(rows), _setting_causes(rows)
    base = _base(pair, replay) if pair.enough else None
    if base is None:
        return Changes(rows, [*settings, *load], None, None)
    answered = pair.after.ok & base.served & np.isfinite(pair.after.e2e_ms)
    earlier_ms = float(np.nanmean(np.where(pair.before.ok, pair.before.e2e_ms, np.nan)))
    expected, later_ms = float(base.e2e_ms[answered].mean()), float(pair.after.e2e_ms[answered].mean())
    seats = _seats(pair)
    rows += _speed_rows(pair, base, seats)
    engine = _engine_causes(pair, base, seats, {row["what"] for row in rows if row["certain"]})
    load_ms = expected - earlier_ms
    by_size = [load, engine] if abs(load_ms) > abs(later_ms - expected) else [engine, load]
    return Changes(rows, [*settings, *by_size[0], *by_size[1]], load_ms, base)


def _is_enough(measured: Measured) -> bool:
    sent = measured.sent_s[measured.ok]
    return not measured.drawn and sent.size >= LEAST_REQUESTS and float(np.ptp(sent)) >= LEAST_SECONDS


def _base(pair: LogPair, replay: Callable[[], tuple[Replayed, Replayed]] | None) -> Replayed | None:
    """Return the earlier log's prediction for the later one's requests: by regression, or by calibrated replay."""
    if replay is None:
        return predicted_by(pair.before, pair.after)
    earlier, later = replay()
    return calibrated(pair.after, later, signature(pair.before, earlier, pair.before.ok))


def _load_rows(pair: LogPair) -> list[dict[str, Any]]:
    """Return rows of ``log_changes`` for the load; ``certain``: whether a change is large enough and significant."""
    logs = (pair.before, pair.after)
    rows = []
    if not any(measured.drawn for measured in logs):
        spans = [float(np.ptp(measured.sent_s)) for measured in logs]
        counts = [measured.sent_s.size - 1 for measured in logs]
        rates = [count / span if span > 0.0 else None for count, span in zip(counts, spans, strict=True)]
        # of a Poisson process; a closed loop varies less
        error = np.sqrt(sum(1.0 / max(count, 1) for count in counts))
        rows.append(_row("request_rate", *rates, float(error)))
    for name in ("prompt_tokens", "output_tokens"):
        lengths = [getattr(measured, name)[measured.ok].astype(float) for measured in logs]
        error = np.sqrt(
            sum(column.var() / max(column.size, 1) / max(column.mean(), 1e-9) ** 2 for column in lengths if column.size)
        )
        rows.append(_row(name, *(float(column.mean()) if column.size else None for column in lengths), float(error)))
    cached_shares = [_cached_share(measured) for measured in logs]
    if None not in cached_shares:
        rows.append(_row("cached_share", *cached_shares, 0.0, abs(cached_shares[1] - cached_shares[0]) >= LEAST_CACHED))
    failed_shares = [1.0 - float(measured.ok.mean()) if measured.ok.size else None for measured in logs]
    rows.append(
        _row("failed_share", *failed_shares, 0.0, abs((failed_shares[1] or 0.0) - (failed_shares[0] or 0.0)) >= 0.01)
    )
    if not any(measured.drawn or not measured.ok.any() for measured in logs):
        rows.append(_row_of_means("in_flight", *map(concurrency_of, logs)))
    return rows


def _latency_rows(pair: LogPair) -> list[dict[str, Any]]:
    """Return a row for mean E2E; none if a log has none."""
    e2e_ms = [measured.e2e_ms[measured.ok & np.isfinite(measured.e2e_ms)] for measured in (pair.before, pair.after)]
    return [_row_of_means("e2e_ms", *e2e_ms)] if all(times_ms.size for times_ms in e2e_ms) else []


def _row_of_means(figure: str, before: np.ndarray, after: np.ndarray) -> dict[str, Any]:
    """Return a row of the means of a figure by request, in order of sending; neighbours have the same queue and batch.

    The error of a mean is that of the means of PARTS parts: requests of one part depend on each other, parts hardly.
    """
    means = [float(values.mean()) for values in (before, after)]
    errors = [
        _error_of_mean(values) / mean if mean else 0.0 for values, mean in zip((before, after), means, strict=True)
    ]
    return _row(figure, *means, float(np.hypot(*errors)))


def _error_of_mean(values: np.ndarray) -> float:
    """Return the standard error of the mean of values that depend on their neighbours; infinity with few values."""
    if values.size < 2 * PARTS:
        return float("inf")
    parts = np.array([part.mean() for part in np.array_split(values, PARTS)])
    return float(parts.std(ddof=1) / np.sqrt(PARTS))


def _seats(pair: LogPair) -> int | None:
    """Return the max_num_seqs that the later log shows, which the earlier log exceeds; None: it shows none."""
    seats = seats_seen(pair.after, pair.before.ttft_ms[pair.before.ok])
    return seats if seats is not None and seats < most_running(*decoding(pair.before)) else None


def _speed_rows(pair: LogPair, base: Replayed, seats: int | None) -> list[dict[str, Any]]:
    """Return rows for speed at the same load (earlier log 1, later log measured over predicted), and running_max.

    ``seats``: the limit that the later log holds while requests wait: then its running_max is no chance.
    """
    predicted_ms = {"ttft": base.ttft_ms, "decode": (base.finish_ns - base.first_ns) / 1e6}
    measured_ms = {"ttft": pair.after.ttft_ms, "decode": pair.after.decode_ms}
    rows = []
    for name, times_ms in predicted_ms.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = measured_ms[name] / times_ms
        ratio = ratio[pair.after.ok & base.served & np.isfinite(ratio) & (times_ms > 0.0) & (measured_ms[name] > 0.0)]
        if ratio.size:
            rows.append(_row(f"{name}_at_the_same_load", 1.0, float(np.median(ratio)), _error_of_mean(np.log(ratio))))
    most = [most_running(*decoding(measured)) for measured in (pair.before, pair.after)]
    return [*rows, _row("running_max", *map(float, most), 0.0, seats is not None)]


def _power_rows(pair: LogPair) -> list[dict[str, Any]]:
    """Return rows for mean power, W, energy per output token, J, and GPUs; none unless both logs measured power."""
    before, after = pair.power
    if before is None or after is None:
        return []
    error = float(np.hypot(before.error_w / before.power_w, after.error_w / after.power_w)) if before.power_w else 0.0
    rows = [_row("power_w", before.power_w, after.power_w, error)]
    seconds = [span_s(measured) for measured in (pair.before, pair.after)]
    tokens = [float(measured.output_tokens[measured.ok].sum()) for measured in (pair.before, pair.after)]
    if all(value > 0.0 for value in (*tokens, *seconds)):
        by_log = zip(pair.power, seconds, tokens, strict=True)
        joules_per_token = [
            mean_power.power_w * span / count for mean_power, span, count in by_log if mean_power is not None
        ]
        rows.append(_row("energy_per_output_token_j", *joules_per_token, error))
    if None not in (before.gpus, after.gpus) and before.gpus != after.gpus:
        rows.append(_row("measured_gpus", before.gpus, after.gpus, 0.0, True))
    return rows


def _setting_rows(pair: LogPair) -> list[dict[str, Any]]:
    """Return rows for settings that both logs state and that differ."""
    before, after = pair.settings
    return [
        {"what": name, "kind": "setting", "before_word": before[name], "after_word": after[name], "certain": True}
        for name in sorted(before.keys() & after.keys())
        if before[name] != after[name]
    ]


def _row(
    figure: str, before: float | None, after: float | None, error: float, certain: bool | None = None
) -> dict[str, Any]:
    """Return a row of ``log_changes``; ``error``: relative standard error of the factor, which decides ``certain``."""
    factor = after / before if before and after is not None else None
    if certain is None:
        certain = bool(factor and abs(np.log(factor)) >= max(np.log1p(LEAST_CHANGE), CHANCE * error))
    kind = KIND_OF[figure]
    values = {"before": before, "after": after, "factor": factor, "certain": certain}
    return {"what": figure, "kind": kind, "unit": FIGURES[kind][figure], **values}


def _cached_share(measured: Measured) -> float | None:
    """Return cached over prompt tokens, of requests that report both; None without any."""
    reported = measured.ok & np.isfinite(measured.cached_tokens)
    if not reported.any():
        return None
    return float(measured.cached_tokens[reported].sum() / max(measured.prompt_tokens[reported].sum(), 1))


def _load_causes(rows: Sequence[Mapping[str, Any]]) -> list[Cause]:
    """Return the significant changes of the load as causes, the largest factor first."""
    changed_rows = [row for row in rows if row["what"] in LENGTHEN[:3] and row["certain"]]
    changed_rows.sort(key=lambda row: -abs(np.log(row["factor"])))
    return [Cause("load", row["what"], row["factor"]) for row in changed_rows]


def _setting_causes(rows: Sequence[Mapping[str, Any]]) -> list[Cause]:
    return [
        Cause("setting", row["what"], row["after_word"])
        for row in rows
        if row["kind"] == "setting" and row["what"] in NAMED
    ]


def _engine_causes(pair: LogPair, base: Replayed, seats: int | None, certain: Collection[str]) -> list[Cause]:
    """Return causes in the later log's engine: incidents, batch limit, prefix cache, then the signature's best fit.

    ``certain``: the figures that changed beyond chance. The signature's fit explains times at the same load, and the
    prefix cache the cached share: neither is a cause if these did not change.
    """
    after = pair.after
    incidents = incidents_of(after, base, pair.gaps)
    causes = [cause_of_incident(incident, after) for incident in incidents]
    if seats is not None and not causes:
        return [Cause("setting", "max_num_seqs", float(seats))]
    if "cached_share" in certain and caches_nothing(after, base):
        return [*causes, Cause("setting", "enable_prefix_caching", "false")]
    quiet = quiet_requests(after, incidents)
    half = after.sent_s <= np.median(after.sent_s)
    if quiet.sum() < LEAST_QUIET or not {"ttft_at_the_same_load", "decode_at_the_same_load"} & set(certain):
        return causes
    observed = signature(after, base, quiet & half)
    if not observed.misfit > AGREES:
        return causes
    best = best_fitting(closed_forms(observed, after.from_server), observed)
    later = signature(after, base, quiet & ~half)
    return [*causes, best.cause] if best and lasts(best, later, after.from_server) else causes
