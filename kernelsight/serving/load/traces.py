"""Checked requests of a trace: the columns of ``requests`` from the columns of the file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kernelsight import errors
from kernelsight.dataflow.rows import python_values
from kernelsight.errors import shown
from kernelsight.serving.load.trace_formats import CORRECT_LINE, Fault, RawTrace

TRACE_SCHEMA = pa.schema(
    [
        ("external_id", pa.string()),
        ("arrival_s", pa.float64()),
        ("prompt_tokens", pa.int64()),
        ("output_tokens", pa.int64()),
        ("hash_ids", pa.list_(pa.int64())),
        ("hash_block_tokens", pa.int64()),
        ("priority", pa.int64()),
        ("adapter", pa.int64()),
        ("warmup", pa.bool_()),
    ]
)
STATE_BLOCK = "State it: --columns hash_block_tokens==16, or a field hash_block_tokens."
LARGEST_SIZE = 2**53  # float64 represents every whole number up to here
LONGEST_S = 1e9  # the simulated clock counts nanoseconds in 64 bits
LATEST_S = 1e11  # over 3,000 years: an unix time above it was written in a finer unit
UNITS_PER_SECOND = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


def requests_of_trace(raw: RawTrace, waits: np.ndarray, faults: list[Fault]) -> pa.Table | None:
    """Return the requests of a trace as a table of ``TRACE_SCHEMA`` in file order; arrivals in s after the first.

    ``waits``: whether each request waits for another, shape [requests]; such arrivals are not read, and are 0.
    None: ``faults`` got rows at fault. InvalidInput: the file is, such as by its order.
    """
    if raw.columns.num_rows == 0 and raw.unused.rows:
        raise errors.trace_place_unusable(raw.path, *raw.unused.first(), CORRECT_LINE)
    if raw.columns.num_rows == 0:
        raise errors.trace_unusable(raw.path, "it has no requests", "Give a file with at least one request.")
    if raw.format.no_output_is_failed:
        failed = numbers(raw.columns[raw.format.output_tokens]) == 0
        note(faults, failed, "failed", f"it failed (0 {raw.format.output_tokens})")
    moments_s = _moments(raw, waits, faults)
    prompt_tokens = _sizes(raw, raw.format.prompt_tokens, faults)
    output_tokens = _sizes(raw, raw.format.output_tokens, faults)
    priority = _priorities(raw, faults)
    warmup = _warmups(raw, waits, faults)
    if faults:
        return None
    arrival_s = _arrivals(raw, waits, moments_s, faults)
    hash_ids, hash_block_tokens = _hashes(raw, prompt_tokens, faults)
    columns = [text_of(raw, raw.format.request_id), arrival_s, prompt_tokens, output_tokens, hash_ids]
    return pa.table([*columns, hash_block_tokens, priority, _adapters(raw), warmup], schema=TRACE_SCHEMA)


def note(faults: list[Fault], bad: np.ndarray, rule: str, problem: str, advice: str = CORRECT_LINE) -> None:
    """Append a fault if there are rows for which ``bad`` is True."""
    if bad.any():
        faults.append(Fault(bad, rule, problem, advice))


def note_values(faults: list[Fault], bad: np.ndarray, raw: RawTrace, field: str, rule: str) -> None:
    """Append a fault of the rows for which ``bad`` is True, with the first one's value of ``field`` as in the file."""
    if bad.any():
        faults.append(Fault(bad, f"{field} {rule}", f"{_stated(raw, int(bad.argmax()), field)}, but {rule}"))


def _stated(raw: RawTrace, row: int, field: str) -> str:
    (value,) = python_values(raw.columns[field].slice(row, 1))
    if isinstance(value, float) and abs(value) <= LARGEST_SIZE and value.is_integer():
        value = int(value)  # JSON's 0 was read as 0.0
    return f"{field} is missing" if value is None else f"{field} is {shown(value)}"


def _is_text(column: pa.ChunkedArray) -> bool:
    return pa.types.is_string(column.type) or pa.types.is_large_string(column.type)


def numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Return the column as float64, NaN for values that are not numbers."""
    import polars as pl

    if pa.types.is_decimal(column.type):  # sums and literals of SQL
        column = pc.cast(column, pa.float64(), safe=False)
    if _is_text(column):  # Arrow's cast fails at the first text that is not a number; polars continues
        column = pl.Series(column).cast(pl.Float64, strict=False).to_arrow()
    elif not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(len(column), np.nan)
    return pc.fill_null(pc.cast(column, pa.float64(), safe=False), np.nan).to_numpy(zero_copy_only=False)


def _sizes(raw: RawTrace, field: str, faults: list[Fault], *, optional: bool = False) -> np.ndarray:
    """Return numbers of tokens, shape [requests] int64, 1 if missing; note invalid ones."""
    values = numbers(raw.columns[field])
    good = (values >= 1) & (values <= LARGEST_SIZE) & (values == np.floor(values))
    if optional:
        good |= raw.columns[field].is_null().to_numpy()
    note_values(faults, ~good, raw, field, "must be a whole number of tokens, at least 1")
    return np.where((values >= 1) & (values <= LARGEST_SIZE), values, 1).astype(np.int64)


def _moments(raw: RawTrace, waits: np.ndarray, faults: list[Fault]) -> np.ndarray:
    """Return times of arrival in s, 0 of all if the trace has none; note invalid ones."""
    field, per_second = raw.format.arrival, raw.format.arrivals_per_second
    if field is None:
        return np.zeros(waits.size)
    column = raw.columns[field]
    # --columns names a column of dates or of numbers
    if per_second is None or (raw.format.name == "--columns" and _is_text(column) and np.isnan(numbers(column)).all()):
        values, rule = _clock_seconds(column), "must be a date and time such as 2024-05-10 00:00:00.25+00:00"
    else:
        values, rule = numbers(column), "must be a finite number, at least 0"
        values = np.where(values >= 0, values, np.nan) / per_second
    note_values(faults, ~np.isfinite(values) & ~waits, raw, field, rule)
    return values


def _arrivals(raw: RawTrace, waits: np.ndarray, values: np.ndarray, faults: list[Fault]) -> np.ndarray:
    """Return arrivals in seconds after the first, note late ones; InvalidInput: another unit, or out of order."""
    field = raw.format.arrival
    if field is None or waits.all():
        return np.zeros(waits.size)
    independent = np.flatnonzero(~waits)
    start_s = values[independent[0]]
    if raw.format.arrivals_per_second == 1 and start_s > LATEST_S:
        rule = f"{_stated(raw, int(independent[0]), field)}, but must be in seconds, and these are over 3,000 years"
        advice = "Divide all of them by 1e3 if they are milliseconds, by 1e9 if nanoseconds."
        raise raw.fault(int(independent[0]), rule, advice)
    values = np.where(waits, start_s, values) - start_s
    note_values(faults, values > LONGEST_S, raw, field, "must be within 30 years of the first request")
    earlier = independent[np.diff(values[independent], prepend=0.0) < 0]
    if earlier.size and not faults:
        rule = f"{_stated(raw, int(earlier[0]), field)}, but the previous request arrived later"
        raise raw.fault(int(earlier[0]), rule, f"Sort the trace by {field}.")
    return values


def _clock_seconds(column: pa.ChunkedArray) -> np.ndarray:
    """Return dates and times as seconds after the first one, to the nanosecond, NaN for invalid ones.

    Azure's 2023 traces have seven fractional digits and no time zone; those of 2024 have six or none, and an offset.
    """
    import polars as pl

    per_second = UNITS_PER_SECOND["ns"]
    if pa.types.is_timestamp(column.type):
        # in its own unit: not every date in seconds is one in nanoseconds
        counts, per_second = pl.Series(column.cast(pa.int64())), UNITS_PER_SECOND[column.type.unit]
    elif _is_text(column):
        text = pl.Series(column).str.strip_chars().str.replace("T", " ").str.replace("Z$", "+00:00")
        local = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f", time_unit="ns", strict=False)
        zoned = text.str.to_datetime("%Y-%m-%d %H:%M:%S%.f%:z", time_unit="ns", strict=False)
        counts = local.cast(pl.Int64).zip_with(local.is_not_null(), zoned.cast(pl.Int64))
    else:
        return np.full(len(column), np.nan)
    # subtract whole numbers first: an epoch in seconds as float64 has a resolution of 0.2 us
    # (polars would multiply by 1e-9 instead of dividing: numpy divides)
    return (counts - counts.drop_nulls().first()).to_numpy() / per_second


def text_of(raw: RawTrace, field: str | None) -> pa.ChunkedArray:
    """Return a column of names, such as the trace's own request ids, as text; null if it has none."""
    column = raw.column(field)
    try:
        return column.cast(pa.string())
    except pa.ArrowException:
        problem = f"{field} has values of type {column.type}"
        raise errors.trace_unusable(raw.path, problem, "Write it as text or whole numbers.") from None


def _priorities(raw: RawTrace, faults: list[Fault]) -> pa.Array:
    """Return the priorities (int64), null if missing; note those that are no whole numbers."""
    field = raw.format.priority
    column = raw.column(field)
    missing = column.is_null().to_numpy()
    if missing.all():
        return pa.nulls(len(column), pa.int64())
    values = numbers(column)
    good = missing | ((np.abs(values) <= LARGEST_SIZE) & (values == np.floor(values)))
    note_values(faults, ~good, raw, field, "must be a whole number")
    return pa.array(np.where(good & ~missing, values, 0).astype(np.int64), mask=missing)


def _adapters(raw: RawTrace) -> pa.Array:
    """Return the numbers of adapters (int64), in order of first appearance; null if a request has none."""
    names = text_of(raw, raw.format.adapter)
    return pc.dictionary_encode(pc.if_else(pc.equal(names, ""), None, names)).combine_chunks().indices.cast(pa.int64())


def _warmups(raw: RawTrace, waits: np.ndarray, faults: list[Fault]) -> pa.Array:
    """Return which requests are warm-ups (bool): the first of the file, which wait for no other; note other ones."""
    field = raw.format.warmup
    column = raw.column(field)
    if column.null_count == len(column):
        return pa.array(np.zeros(len(column), bool))
    marks = numbers(pc.fill_null(column, 0) if not _is_text(column) else pc.fill_null(column, "0"))
    note_values(faults, ~np.isin(marks, (0, 1)), raw, str(field), "must be 0 or 1")
    note(faults, (marks == 1) & waits, "waiting warm-up", "it is a warm-up, and waits for another request")
    late = (marks == 1) & np.logical_or.accumulate(marks == 0)
    note(faults, late, "late warm-up", "it is a warm-up after a measured request", "Put warm-ups first.")
    if (marks == 1).all():
        raise errors.trace_unusable(raw.path, "all of its requests are warm-ups", "Add requests with warmup 0.")
    return pa.array(marks == 1)


def _hashes(raw: RawTrace, prompt_tokens: np.ndarray, faults: list[Fault]) -> tuple[pa.Array, pa.Array]:
    """Return the block hashes (list<int64>) and the tokens per block (int64), null if there are none.

    A prompt has one hash per block, including a partly filled last one (ceil(prompt / block), as in all 12,031 requests
    of Mooncake's conversation trace, also those whose prompt ends with a full block), or one per whole block alone.
    """
    field, block_field = raw.format.hash_ids, raw.format.hash_block
    ids = _hash_lists(raw, faults)
    has_ids = ids.is_valid().to_numpy(zero_copy_only=False)
    if block_field is None or isinstance(block_field, int):
        block_field = block_tokens(ids, prompt_tokens, block_field)
        if block_field is None:
            raise raw.fault(int(has_ids.argmax()), f"no size of blocks fits the numbers of {field}", STATE_BLOCK)
        block, has_block = np.full(len(ids), block_field), has_ids
    else:
        has_block = raw.column(block_field).is_valid().to_numpy()
        block = _sizes(raw, block_field, faults, optional=True) if has_block.any() else np.ones(len(ids), np.int64)
    alone = has_ids & ~has_block
    rule = f"{field} is set without {block_field}, the number of tokens per hash"
    note(faults, alone, rule, rule, f"Add {block_field}, or remove {field}.")
    expected = -(-prompt_tokens // block)
    lengths = ids.value_lengths().fill_null(0).to_numpy()
    wrong = has_ids & has_block & (lengths != expected) & (lengths != prompt_tokens // block)
    if wrong.any():
        row = int(wrong.argmax())
        rule = f"{prompt_tokens[row]} prompt tokens in blocks of {block[row]} need {expected[row]}"
        note(faults, wrong, f"{field} of another length", f"{field} has {lengths[row]} entries, but {rule}")
    return ids, pa.array(block, mask=~has_block)


def block_tokens(ids: pa.Array, prompt_tokens: np.ndarray, published: int | None) -> int | None:
    """Return the tokens of a block that fit the numbers of ids of nearly all prompts; None: there is no such size.

    The published one is taken where it fits half of the prompts, else a power of two that fits, else the smallest.

    >>> block_tokens(pa.array([[1, 2, 3], [4, 5]]), np.array([40, 17]), 512)
    16
    """
    counts = ids.value_lengths().fill_null(0).to_numpy()
    told = counts > 0
    if not told.any():
        return published or 1

    def misses(block: int) -> int:
        tokens = prompt_tokens[told]
        return int(((counts[told] != -(-tokens // block)) & (counts[told] != tokens // block)).sum())

    if published and 2 * misses(published) <= told.sum():
        return published
    powers = [1 << exponent for exponent in range(13)]
    lengths = prompt_tokens[told] / counts[told]  # at most the size; near to it for long prompts
    usual = range(max(int(np.median(lengths)) - 8, 1), int(np.median(lengths)) + 65)
    best = min((misses(block), block not in powers, block) for block in (*powers, *usual))
    # a few lines may be wrong, and are then named
    return best[2] if best[0] <= told.sum() / 10 else published


def _hash_lists(raw: RawTrace, faults: list[Fault]) -> pa.ListArray:
    """Return the block hashes as lists; in text they are whole numbers separated by blanks, commas or semicolons."""
    import polars as pl

    field = raw.format.hash_ids
    column = raw.column(field)
    if _is_text(column):
        # large_string: the text of all lists may exceed 32-bit offsets
        text = pc.utf8_trim(column.cast(pa.large_string()).combine_chunks(), characters=" []")
        texts = pc.split_pattern_regex(text, r"[,;\s]+")
        values = pl.Series(texts.flatten()).cast(pl.Int64, strict=False).to_arrow()
        lists = pa.ListArray.from_arrays(texts.offsets, values, mask=texts.is_null())
    else:
        try:
            lists = column.cast(pa.list_(pa.int64())).combine_chunks()
        except pa.ArrowException:
            problem = f"{field} has values of type {column.type}"
            raise errors.trace_unusable(raw.path, problem, "Write lists of 64-bit whole numbers.") from None
        values = lists.flatten()
    if values.null_count:
        bad = np.zeros(len(lists), dtype=bool)
        bad[lists.value_parent_indices().filter(values.is_null()).to_numpy()] = True
        note_values(faults, bad, raw, field, "must be 64-bit whole numbers")
    return lists
