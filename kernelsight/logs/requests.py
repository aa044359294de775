"""Rows of ``production_requests`` from the frame of any reader: checked, completed, in order of sending."""

from __future__ import annotations

import math

import polars as pl

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.violations import failing_rows
from kernelsight.files.row_faults import Faults
from kernelsight.logs.files import unusable
from kernelsight.logs.log_run import FILE_ROW, LogRun, rules
from kernelsight.number_format import number

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
DURATIONS = (
    *LATENCIES,
    *("front_end_ms", "queue_ms", "prefill_ms", "decode_ms", "kv_transfer_ms", "server_ttft_ms", "client_e2e_ms"),
)
# a rate differs from the requested one by more than this share, and by this many standard errors of the mean gap
RATE_TOLERANCE, CHANCE = 0.02, 3.0
LONGEST_MS = 1e12
TIMES = ("arrival_s", "sent_s")
# columns without a rule of their own whose values may not be finite, and lists with elements that are no number
MEASURES = ("tokens_per_chunk", "power_w")
BAD_ELEMENTS = {
    "chunk_gaps_ms": pl.element().is_null() | ~pl.element().is_finite(),
    "hash_ids": pl.element().is_null(),
}
# three years: a request that was sent so long before or after the others was not timed by their clock
FARTHEST_S = 1e8


def finish_requests(run: LogRun, *, is_whole: bool = True) -> pl.DataFrame:
    """Return the requests of a run with all columns of ``production_requests`` except log_id, and FILE_ROW.

    Rows that break a rule are excluded or dropped, and counted in ``run.faults``; times stay those of the log's clock.
    ``is_whole``: the run is a whole log. InvalidInput: no request of a whole log has a latency.
    """
    assert run.requests is not None
    frame, run.requests = _with_all_columns(run.requests), None
    if is_whole:
        _check_lengths(run, frame)
    frame = _drop_unusable(frame, run.faults)
    frame = _check_values(frame, run.faults)
    frame = _drop_other_clocks(frame, run.faults)
    frame = _derive(frame, run.faults)
    frame = _exclude(frame, run.faults)
    frame = possible_rows("production_requests", frame, run.faults)
    frame = _in_order(frame, run.faults)
    if is_whole:
        _check_latencies(run, frame)
        _compare_rate(run, frame)
    return frame


def _with_all_columns(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame with all columns of ``production_requests`` and FILE_ROW, null where it has none."""
    empty = pl.from_arrow(contracts()["production_requests"].schema.empty_table())
    types = {name: column_type for name, column_type in empty.schema.items() if name not in ("log_id", "request_id")}
    present = [
        pl.col(name).cast(column_type, strict=False) for name, column_type in types.items() if name in frame.columns
    ]
    missing = [
        pl.lit(None, column_type).alias(name) for name, column_type in types.items() if name not in frame.columns
    ]
    if FILE_ROW not in frame.columns:
        frame = frame.with_row_index(FILE_ROW, offset=1)
    ordered = frame.select(*present, *missing, FILE_ROW).select(*types, FILE_ROW)
    return ordered.with_columns(pl.col("status").fill_null("ok"))


def _count(frame: pl.DataFrame, rule: str, rows: pl.Expr, faults: Faults) -> None:
    """Count the rows for which an expression is true as a rule's, with the number in the file and id of the first."""
    counted = frame.select(FILE_ROW, "external_id", rows.alias("is_counted")).filter("is_counted")
    if counted.height:
        row, external, _ = counted.row(0)
        faults.add(rule, counted.height, f"row {row}" if external is None else f"row {row} ({external})")


def _drop_unusable(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Drop and count requests without a prompt length, and repeated ids."""
    no_prompt = pl.col("prompt_tokens").is_null() | (pl.col("prompt_tokens") <= 0)
    failed = pl.col("status").is_in(["error", "cancelled"])
    _count(frame, "failed_without_length", no_prompt & failed, faults)
    _count(frame, "no_prompt_tokens", no_prompt & ~failed, faults)
    # a filter copies every column, so filter only if there is something to drop
    frame = frame.filter(~no_prompt) if frame.select(no_prompt.any()).item() else frame
    requests_with_id = frame.select("external_id", "turn", "status").with_row_index("place")
    requests_with_id = requests_with_id.filter(pl.col("external_id").is_not_null())
    requests_with_id = requests_with_id.filter(pl.struct("external_id", "turn").is_duplicated())
    if not requests_with_id.height:
        return frame
    # of several rows with one id the successful one is kept, otherwise the first
    requests_with_id = requests_with_id.sort(pl.col("status") != "ok", "place").filter(
        ~pl.struct("external_id", "turn").is_first_distinct()
    )
    repeated = pl.int_range(pl.len()).is_in(requests_with_id["place"].to_list())
    _count(frame, "duplicate_id", repeated, faults)
    return frame.filter(~repeated)


def _check_values(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Set implausible durations, times, counts and cached tokens to null, and count them."""
    negative = pl.any_horizontal(pl.col(name) < 0 for name in DURATIONS)
    not_finite = pl.any_horizontal(~pl.col(name).is_finite() | (pl.col(name) > LONGEST_MS) for name in DURATIONS)
    cached_is_wrong = (pl.col("cached_tokens") > pl.col("prompt_tokens")) | (pl.col("cached_tokens") < 0)
    _count(frame, "negative_duration", negative, faults)
    _count(frame, "not_finite", not_finite, faults)
    _count(frame, "cached_above_prompt", cached_is_wrong, faults)
    unset = [~pl.col(name).is_finite() for name in MEASURES]
    unset += [pl.col(name).list.eval(is_bad).list.any() for name, is_bad in BAD_ELEMENTS.items()]
    _count(frame, "unset_value", pl.any_horizontal(unset), faults)
    has_wrong_times = (negative | not_finite).fill_null(False)
    durations = [pl.when(has_wrong_times).then(None).otherwise(pl.col(name)).alias(name) for name in DURATIONS]
    finite = [pl.when(pl.col(name).is_finite()).then(pl.col(name)).alias(name) for name in (*TIMES, *MEASURES)]
    lists = [
        pl.when(~is_bad).then(pl.col(name)).alias(name)
        for name, is_bad in zip(BAD_ELEMENTS, unset[len(MEASURES) :], strict=True)
    ]
    counts = [
        pl.when(pl.col(name) >= 0).then(pl.col(name)).alias(name)
        for name in ("turn", "preemptions", "accepted_tokens", "decode_steps")
    ]
    cached_tokens = pl.when(~cached_is_wrong).then(pl.col("cached_tokens")).alias("cached_tokens")
    return frame.with_columns(
        durations + finite + lists + counts + [cached_tokens, pl.col("output_tokens").fill_null(0).clip(0)]
    )


def _drop_other_clocks(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Drop and count requests that were sent before 0, or farther than FARTHEST_S from the median of the log."""
    median = frame.select(pl.coalesce(*TIMES).median()).item()
    if median is None:
        return frame
    is_other = pl.any_horizontal((pl.col(name) < 0) | ((pl.col(name) - median).abs() > FARTHEST_S) for name in TIMES)
    _count(frame, "other_clock", is_other, faults)
    return frame.filter(~is_other.fill_null(False)) if frame.select(is_other.any()).item() else frame


def _derive(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Fill E2E, TPOT and tokens_per_chunk where others imply them, and unset clocks of missing latencies."""
    decoded = pl.col("output_tokens") - 1
    starts_late = pl.col("ttft_ms") > pl.col("e2e_ms") * (1 + 1e-9) + 1e-6
    _count(frame, "order_of_times", starts_late, faults)
    tpot = pl.when((decoded > 0) & ~starts_late).then((pl.col("e2e_ms") - pl.col("ttft_ms")) / decoded)
    e2e = pl.col("ttft_ms") + pl.when(decoded > 0).then(pl.col("tpot_ms") * decoded).otherwise(0.0)
    frame = frame.with_columns(
        pl.coalesce("e2e_ms", e2e).alias("e2e_ms"),
        pl.when(decoded > 0).then(pl.coalesce("tpot_ms", tpot.clip(0))).alias("tpot_ms"),
    )
    chunks = pl.when(pl.col("output_tokens") > 0).then(
        pl.col("output_tokens") / (pl.col("chunk_gaps_ms").list.len() + 1)
    )
    frame = frame.with_columns(pl.coalesce("tokens_per_chunk", chunks).alias("tokens_per_chunk"))
    has_time = pl.col("ttft_ms").is_not_null() | pl.col("e2e_ms").is_not_null()
    _count(frame, "chunked", pl.col("chunk_gaps_ms").is_not_null() & (pl.col("tokens_per_chunk") > 1.05), faults)
    _count(frame, "ttft_clock_unknown", has_time & pl.col("ttft_clock").is_null() & (pl.col("status") == "ok"), faults)
    return frame.with_columns(
        pl.when(has_time).then(pl.col("ttft_clock")).alias("ttft_clock"),
        pl.when(pl.col("server_ttft_ms").is_not_null()).then(pl.col("server_ttft_clock")).alias("server_ttft_clock"),
    )


def _exclude(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Count failed requests, and unset their latencies; requests without output tokens count as failed."""
    no_output = (pl.col("status") == "ok") & (pl.col("output_tokens") == 0)
    _count(frame, "no_output", no_output, faults)
    frame = frame.with_columns(
        pl.when(no_output).then(pl.lit("no output")).otherwise(pl.col("error")).alias("error"),
        pl.when(no_output).then(pl.lit("error")).otherwise(pl.col("status")).alias("status"),
    )
    unmeasured = (pl.col("status") == "ok") & pl.all_horizontal(pl.col(name).is_null() for name in LATENCIES)
    _count(frame, "no_latency", unmeasured, faults)
    for rule, status in (("failed", "error"), ("cancelled", "cancelled"), ("warmup", "warmup")):
        _count(frame, rule, (pl.col("status") == status) & ~(pl.col("error") == "no output").fill_null(False), faults)
    ended = pl.col("status").is_in(["error", "cancelled"])
    names = (*DURATIONS, "ttft_clock", "server_ttft_clock", "chunk_gaps_ms", "tokens_per_chunk")
    return frame.with_columns(pl.when(~ended).then(pl.col(name)).alias(name) for name in names)


def _in_order(frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Return the requests sorted by time of sending and numbered, with arrival_s and sent_s filled from each other."""
    _count(frame, "no_arrivals", pl.col("arrival_s").is_null() & pl.col("sent_s").is_null(), faults)
    frame = frame.with_columns(
        pl.coalesce("arrival_s", "sent_s").alias("arrival_s"), pl.coalesce("sent_s", "arrival_s").alias("sent_s")
    )
    if not frame["sent_s"].is_sorted(nulls_last=True):
        frame = frame.sort("sent_s", nulls_last=True, maintain_order=True)
    frame = frame.with_row_index("request_id")
    return frame.with_columns(pl.col("request_id").cast(pl.Int64))


def first_time(frame: pl.DataFrame) -> float | None:
    """Return the first intended or actual time of sending, in seconds of the log's clock; None without any."""
    times = [value for name in ("arrival_s", "sent_s") if (value := frame[name].min()) is not None]
    return float(min(times)) if times else None  # type: ignore[type-var, arg-type]


def _check_lengths(run: LogRun, frame: pl.DataFrame) -> None:
    """Check that some request has a prompt length; InvalidInput: of several that succeeded none has."""
    ok = frame.filter(pl.col("status") == "ok")
    if not ok.height or ok["prompt_tokens"].null_count() < ok.height:
        return
    ttft_ms, output = ok["ttft_ms"].mean(), ok["output_tokens"].sum()
    said = f"{output:,} output tokens" + (f", mean TTFT {number(ttft_ms)} ms" if ttft_ms is not None else "")
    raise unusable(
        run.file.path,
        f"has {ok.height:,} requests ({said}) and no prompt lengths",
        "State one for all with --columns prompt_tokens==N, or give the client's statistics too.",
    )


def _check_latencies(run: LogRun, frame: pl.DataFrame) -> None:
    """Check that requests succeeded and have a latency; InvalidInput: none did, or none has."""
    ok = frame.filter(pl.col("status") == "ok")
    if not ok.height:
        left_out = {rule: n for rule, (n, _, _) in run.faults.counted.items() if rules()[rule][0] != "noted"}
        counted = "; ".join(f"{n} {rule}" for rule, n in left_out.items()) or "the file has no rows"
        raise unusable(run.file.path, f"has no request that succeeded ({counted})", "Give a log of completed ones.")
    if all(ok[name].null_count() == ok.height for name in LATENCIES):
        raise unusable(
            run.file.path,
            f"has {ok.height} requests, and no TTFT, TPOT or E2E of any",
            "A log without latencies can be simulated with --trace, but not compared.",
        )


def _compare_rate(run: LogRun, frame: pl.DataFrame) -> None:
    """Set ``achieved_rate``, and count the requests of a run whose rate differs significantly from the requested one.

    The mean of n gaps of a gamma distribution with shape b has the relative standard error 1 / sqrt(n b); a Poisson
    process has b = 1.
    """
    sent = frame.filter(pl.col("status") != "warmup")["sent_s"].drop_nulls()
    if sent.len() < 2 or sent[-1] <= sent[0]:
        return
    achieved = (sent.len() - 1) / (sent[-1] - sent[0])
    run.stated["achieved_rate"] = achieved
    requested = run.stated.get("requested_rate")
    if not requested:
        return
    chance = CHANCE / math.sqrt((sent.len() - 1) * (run.stated.get("burstiness") or 1.0))
    if abs(achieved / requested - 1) > max(RATE_TOLERANCE, chance):
        run.faults.add(
            "rate_not_reached", sent.len(), more=f" ({number(achieved)} instead of {number(requested)} per second)"
        )


def possible_rows(table: str, frame: pl.DataFrame, faults: Faults) -> pl.DataFrame:
    """Return the rows of a frame whose values its table's contract allows; the others are counted in ``faults``.

    ``frame``: columns of ``table``, and FILE_ROW where rows have numbers of their own. A contract that excludes every
    row excludes none here: then the file, and not a row, is at fault.

    >>> faults, frame = Faults(), pl.DataFrame({"power_w": [300.0, -1.0], FILE_ROW: [1, 2]})
    >>> possible_rows("production_requests", frame, faults).height, faults.counted["impossible_value"][:2]
    (1, (1, 'row 2'))
    """
    numbers = frame[FILE_ROW] if FILE_ROW in frame.columns else pl.int_range(1, frame.height + 1, eager=True)
    filled = [name for name in frame.columns if name != FILE_ROW and frame[name].null_count() < frame.height]
    failing, sentences = failing_rows(frame.select(filled).to_arrow(), contracts()[table].columns, numbers)
    if not failing.any() or failing.all():
        return frame
    rows = numbers.filter(failing)
    faults.add("impossible_value", rows.len(), f"row {rows[0]}", f": {'; '.join(sentences)}")
    return frame.filter(~failing)
