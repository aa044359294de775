"""A client of OpenAI-compatible chat completions: bounded time and retries, no redirects, standard library only."""

from __future__ import annotations

import http.client
import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_files import decoded
from kernelsight.files.bounded_http import opener, read_answer
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.budget import SCRAPE
from kernelsight.files.redaction import redacted_text

# environment variables of the API key, which is read from nowhere else, and neither stored nor shown
KEYS = ("KERNELSIGHT_LLM_KEY", "OPENAI_API_KEY")
# transient HTTP statuses, after which a request is retried
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
# HTTP statuses of a server that does not support some field, such as tools
UNKNOWN_FIELD = frozenset({400, 404, 415, 422, 501})
FIRST_WAIT_S, MOST_WAIT_S = 1.0, 30.0
# address of a model whose answers are in a file: nothing is asked
RECORDED = "recorded"


class Server(NamedTuple):
    """A server: base URL, model, time limit and retries; ``wait`` sleeps between retries."""

    url: str
    model: str
    timeout_s: float = 120.0
    retries: int = 3
    wait: Callable[[float], None] = time.sleep


class Reply(NamedTuple):
    """A response: the parsed body, or why there is none; seconds that it took, without waits."""

    body: dict[str, Any] | None
    failure: str | None
    status: int | None
    elapsed_s: float


def server_of(url: str, model: str, timeout_s: float, retries: int) -> Server:
    """Return a checked server; InvalidInput for a URL that is not http(s), or no model."""
    if url == RECORDED and model:
        return Server(url, model, timeout_s, retries)
    address = urlsplit(url)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise InvalidInput(
            f"--llm-url is {redacted_text(url)!r}; give an http or https address such as "
            f"http://127.0.0.1:8000/v1, or {RECORDED} for answers of --llm-cache alone."
        )
    if not model:
        raise InvalidInput("--llm-model is empty; name a model that the server holds.")
    return Server(url.rstrip("/"), model, timeout_s, retries)


def ask(server: Server, request: Mapping[str, Any]) -> Reply:
    """Request one chat completion, retried after transient failures; return the response, or why there is none.

    InvalidInput: the server rejects the key. RunFailed: no server answers at the address.
    """
    spent_s, failure, status = 0.0, "", None
    for attempt in range(server.retries + 1):
        started = time.perf_counter()
        body, failure, status, pause = _once(server, request)
        spent_s += time.perf_counter() - started
        if body is not None or (status is not None and status not in PASSING):
            break
        if attempt < server.retries:
            server.wait(min(pause if pause is not None else FIRST_WAIT_S * 2.0**attempt, MOST_WAIT_S))
    if status in (401, 403):
        raise InvalidInput(
            f"{redacted_text(server.url)} refuses the key (HTTP {status}); set the environment variable {KEYS[0]}."
        )
    if failure == "no_connection":
        raise RunFailed(f"no server answers at {redacted_text(server.url)}; start one, or give another --llm-url.")
    return Reply(body, None if body is not None else failure, status, spent_s)


def _once(server: Server, request: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str, int | None, float | None]:
    """Send a request once; return (body, failure, HTTP status, seconds to wait by Retry-After)."""
    headers = {"Content-Type": "application/json"}
    key = next((value for name in KEYS if (value := os.environ.get(name))), None)
    if key:
        headers["Authorization"] = f"Bearer {key}"
    data = json.dumps({"model": server.model, **request}).encode()
    message = urllib.request.Request(f"{server.url}/chat/completions", data, headers, method="POST")
    try:
        with opener().open(message, timeout=server.timeout_s) as response:
            raw = read_answer(response, SCRAPE._replace(seconds=server.timeout_s))
    except urllib.error.HTTPError as error:
        with error:
            return None, f"http_{error.code}", error.code, _pause(error.headers.get("Retry-After"))
    except TimeoutError:
        return None, "time_out", None, None
    except urllib.error.URLError as error:
        reason = "time_out" if isinstance(error.reason, TimeoutError) else "no_connection"
        return None, reason, None, None
    except (http.client.HTTPException, OSError):
        return None, "broken_answer", None, None
    try:
        body = parse_json(decoded(raw, InvalidInput), InvalidInput, SCRAPE)
    except InvalidInput:
        return None, "broken_answer", None, None
    return (body, "", 200, None) if isinstance(body, dict) else (None, "broken_answer", None, None)


def _pause(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0.0 <= seconds < math.inf else None
