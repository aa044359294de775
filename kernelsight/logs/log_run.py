"""Common types of log readers: LogRun, the content of one run of a file; LogFormat; rules for dropped rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.files.row_faults import Faults

if TYPE_CHECKING:
    import polars as pl

    from kernelsight.logs.files import LogFile

# column with the number of a request's row in its file, from 1: for error messages, in no table
FILE_ROW = "file_row"
# by rule: what happens to its rows (dropped, excluded from errors, or only noted), and the explanation for users
RULES: Mapping[str, tuple[str, str]] = {
    "failed": ("excluded", "requests that failed"),
    "cancelled": ("excluded", "requests that the client ended early"),
    "warmup": ("excluded", "requests sent before the measurement"),
    "no_output": ("excluded", "requests without output tokens"),
    "no_latency": ("excluded", "requests without any latency"),
    "failed_without_length": ("dropped", "failed requests whose prompt length is not in the log"),
    "no_prompt_tokens": ("dropped", "requests without a prompt length"),
    "duplicate_id": ("dropped", "requests whose id occurs before: a retry, or a file written twice"),
    "retried": ("noted", "requests that a client or gateway sent again: their latency holds several attempts"),
    "impossible_kernel": ("dropped", "kernels whose time, calls or rank is negative or beyond all measure"),
    "negative_duration": ("excluded", "requests that end before they begin: clocks are mixed, or were set"),
    "other_clock": ("dropped", "requests sent before 0, or years before or after the others: their clock is another"),
    "impossible_value": ("dropped", "rows with a value that no request, step or kernel can have"),
    "unset_value": ("noted", "requests with a value, or an element of a list, that is no finite number: it is unset"),
    "not_finite": ("excluded", "requests with a latency that is not a finite number"),
    "order_of_times": ("noted", "requests whose TTFT is longer than their E2E: they start at different times"),
    "cached_above_prompt": ("excluded", "requests with more cached tokens than prompt tokens: cached_tokens is unset"),
    "unreadable_line": ("dropped", "lines that are cut off, or no record of the format"),
    "gateway_cache_hit": ("dropped", "requests that the gateway answered from its own cache: no engine saw them"),
    "other_call": ("dropped", "calls that are no text generation, such as embeddings"),
    "not_streamed": ("excluded", "requests that were not streamed: their TTFT is unknown"),
    "no_first_chunk": ("excluded", "requests without a chunk of text: their TTFT is unknown"),
    "no_arrivals": ("noted", "requests without times of sending: their arrivals are unknown"),
    "sent_by_rule": ("noted", "requests without times of sending: taken from the rule by which the client sends"),
    "sent_drawn": ("noted", "requests without times of sending: drawn at the requested rate"),
    "sampled": ("noted", "requests or steps of a log that holds only a sample of them"),
    "counted_twice": ("noted", "requests with two entries per token: TPOT is computed from the number of tokens"),
    "chunked": ("noted", "requests with several tokens per chunk: gaps between chunks are not ITL"),
    "rate_not_reached": ("noted", "requests of a run whose rate of sending is not the requested one, beyond chance"),
    "ttft_clock_unknown": ("noted", "requests whose TTFT starts at a time that the log does not name"),
    "no_client_times": ("noted", "server spans without a client span of the same trace"),
    "no_server_times": ("noted", "client spans without a server span of the same trace"),
    "idle_heartbeat": ("dropped", "records of an idle engine"),
    "dummy_step": ("dropped", "steps of an idle data-parallel rank"),
    "empty_step": ("dropped", "steps without a duration"),
    "negative_count": ("dropped", "steps with a negative number of requests or tokens"),
    "duplicate_step": ("dropped", "steps whose number occurs before in the same replica"),
    "clock_of_steps": ("noted", "steps whose clock the file does not name: schedule_to_update is assumed, as for vLLM"),
    "no_common_clock": ("noted", "requests of runs whose times have no common clock: taken one run after the other"),
    "counter_reset": ("dropped", "intervals in which a counter fell: the server was started again"),
    "unnamed_series": ("dropped", "series without a metric name, or of a metric that is not used"),
    "unreadable_value": ("dropped", "rows or samples with a value that is not a number"),
    "statistics_only": ("noted", "runs without requests: only their statistics are in the file"),
    "part_of_a_block": ("dropped", "parts of a printed result without a latency or without a load"),
    "mean_length": ("noted", "requests whose prompt length is the mean that the statistics beside them state"),
    "one_scrape": ("noted", "series of one scrape: totals since the start of the server, and gauges of one moment"),
    "repeated_line": ("dropped", "lines that occur a second time"),
    "no_time_stamp": ("noted", "lines without a time stamp: their means count, and no window is theirs"),
    "no_family": ("noted", "kernels whose name fits no pattern of kernel_name_patterns"),
}


_FAULT = ("log_id", "rule", "n", "rows", "example", "explanation")


def fault_rows(faults: Faults, log_id: str) -> list[dict[str, Any]]:
    """Return the rows of ``log_faults``.

    >>> faults = Faults()
    >>> faults.add("failed", 2, "chat-7")
    >>> fault_rows(faults, "run")[0]["explanation"]
    'requests that failed'
    """
    return [
        dict(zip(_FAULT, (log_id, rule, n, RULES[rule][0], example, RULES[rule][1] + more), strict=True))
        for rule, (n, example, more) in faults.counted.items()
    ]


@dataclass
class LogRun:
    """Content of one run of a file: frames with the columns of production_* tables, without log_id.

    Times are absolute, in seconds of ``clock``.
    """

    file: LogFile
    format: str
    clock: str = "none"  # unix, monotonic, none
    requests: pl.DataFrame | None = None
    steps: pl.DataFrame | None = None
    windows: pl.DataFrame | None = None
    kernels: pl.DataFrame | None = None
    summaries: list[dict[str, Any]] = field(default_factory=list)
    settings: dict[str, tuple[str, str]] = field(default_factory=dict)  # by setting: value, and its place in the file
    stated: dict[str, Any] = field(default_factory=dict)  # columns of production_logs that the file states
    faults: Faults = field(default_factory=Faults)


class LogFormat(NamedTuple):
    """A log format: ``recognises`` checks one file, ``read`` returns the runs of all its files together."""

    name: str
    role: str  # requests, steps, metrics or kernels
    written_by: str
    recognises: Callable[[LogFile], bool]
    read: Callable[[Sequence[LogFile]], list[LogRun]]
    by_rows: bool = False  # a form of log_forms, whose signature is loose: formats with a module go before it


_KIND_OF_ERROR = re.compile(r"\b([A-Za-z_.]*(?:Error|Exception|Timeout|Disconnected|Refused))\b")
_PHRASE_STATUS = {status.phrase: status.value for status in HTTPStatus if status.value >= 400}
_PHRASES = re.compile(f"({'|'.join(map(re.escape, _PHRASE_STATUS))})")
_HTTP_STATUS = re.compile(r"\b([45]\d\d)\b")


def object_in(container: Any, name: str) -> Mapping[str, Any]:
    """Return the object under a name in a JSON value; an empty one if there is none."""
    value = container.get(name) if isinstance(container, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def kind_of_error(text: object) -> str:
    """Return the exception class or HTTP status in an error's text, else "other"; the text itself may hold prompts.

    >>> kind_of_error("Traceback ...\\naiohttp.client_exceptions.ServerDisconnectedError: Server disconnected")
    'ServerDisconnectedError'
    >>> kind_of_error("Internal Server Error: prompt 'secret' was refused"), kind_of_error("503")
    ('HTTP 500', 'HTTP 503')
    """
    phrase = _PHRASES.match(str(text))
    if phrase:
        return f"HTTP {_PHRASE_STATUS[phrase.group(1)]}"
    names = _KIND_OF_ERROR.findall(str(text))
    names = [name.rpartition(".")[2] for name in names if name.strip(".") not in ("Error", "Exception")]
    if names:
        return names[-1][:60]
    status = _HTTP_STATUS.search(str(text)[:200])
    return f"HTTP {status.group(1)}" if status else "other"
