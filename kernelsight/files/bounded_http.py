"""HTTP GET bounded in time and size: no redirect is followed, and no message shows a secret of an address."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.budget import Budget
from kernelsight.files.redaction import redacted_text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, which would carry keys and prompts to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def opener() -> urllib.request.OpenerDirector:
    """Return a urllib opener that follows no redirect."""
    return urllib.request.build_opener(_NoRedirect)


def read_answer(answer: Any, budget: Budget) -> bytes:
    """Return a response's body, cut one byte beyond a budget; TimeoutError where that takes longer than it allows."""
    end, chunks, size = time.perf_counter() + budget.seconds, [], 0
    while size <= budget.bytes and (chunk := answer.read1(65_536)):
        chunks.append(chunk)
        size += len(chunk)
        if time.perf_counter() > end:
            raise TimeoutError
    return b"".join(chunks)


def check_address(flag: str, url: str) -> str:
    """Return an http or https URL unchanged; InvalidInput names the ``flag`` of any other."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidInput(f"{flag} is {redacted_text(url)!r}; give an http or https address.")
    return url


def get_text(url: str, budget: Budget) -> str:
    """Return the body of a GET as text; RunFailed: no response, an HTTP error, or more than a budget allows."""
    shown = redacted_text(url)
    try:
        with opener().open(urllib.request.Request(url), timeout=budget.seconds) as answer:
            body = read_answer(answer, budget)
    except urllib.error.HTTPError as error:
        with error:
            where = ", a redirect, which is not followed" if 300 <= error.code < 400 else ""
            raise RunFailed(f"{shown} answered HTTP {error.code}{where}.") from None
    except (http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        late = isinstance(reason, TimeoutError)
        raise RunFailed(f"{shown} gave no answer{f' within {budget.seconds:g} s' if late else ''}.") from None
    if len(body) > budget.bytes:
        raise RunFailed(f"{shown} answered more than {budget.bytes >> 20} MiB.")
    return body.decode("utf-8", "replace")
