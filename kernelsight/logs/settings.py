"""Server settings stated in logs, flattened and without secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_values import parse_literal
from kernelsight.files.redaction import names_secret, redacted_text

LONGEST_VALUE = 200
_ARGUMENTS = re.compile(r"non-default args: (\{.*\})")
# vLLM 0.11.0 openai/api_server.py, 0.33.0 common/startup.py; v1/engine/core.py
_VERSION = re.compile(r"vLLM (?:API )?server version ([\w.+]{1,40})|LLM engine \(v([\w.+]{1,40})\)")


def flat_settings(values: Mapping[str, Any], place: str) -> dict[str, tuple[str, str]]:
    """Return the scalars of an object as (value, place) by setting, without secrets and long texts.

    ``place``: where the object was, such as "server_info". Names have underscores, booleans are lower-case text.
    """
    settings = {}
    for name, value in values.items():
        plain = str(name).lstrip("-").replace("-", "_")
        if isinstance(value, (str, int, float, bool)) and not names_secret(plain):
            text = str(value).lower() if isinstance(value, bool) else redacted_text(str(value))
            if len(text) <= LONGEST_VALUE:
                settings[plain] = (text, place)
    return settings


def stated_by(line: str) -> dict[str, tuple[str, str]]:
    """Return the settings in vLLM's log lines of its arguments and its version; empty for another line."""
    if version := _VERSION.search(line):
        return {"engine_version": (version[1] or version[2], "version of the server")}
    match = _ARGUMENTS.search(line)
    if not match:
        return {}
    try:
        values = parse_literal(match.group(1), InvalidInput)
    except InvalidInput:
        return {}
    return flat_settings(values, "non-default args") if isinstance(values, dict) else {}
