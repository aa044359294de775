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


def flat_settings(values: Mapping[str, Any], place: str) -> dict[str, tuple[str, str]]:
    """Return the scalars of an object as (value, place) by setting, without secrets and long texts.

    ``place``: where the object was, such as "server_info". Names have underscores, booleans are lower-case text.

    >>> flat_settings({"tp-size": 2, "api_key": "x", "internal_states": [{}], "quantization": None}, "server_info")
    {'tp_size': ('2', 'server_info')}
    """
    settings = {}
    for name, value in values.items():
        plain = str(name).lstrip("-").replace("-", "_")
        if isinstance(value, (str, int, float, bool)) and not names_secret(plain):
            text = str(value).lower() if isinstance(value, bool) else redacted_text(str(value))
            if len(text) <= LONGEST_VALUE:
                settings[plain] = (text, place)
    return settings


def non_default_args(line: str) -> dict[str, tuple[str, str]]:
    """Return the settings in vLLM's log line "non-default args: {...}"; empty for another line.

    >>> non_default_args("INFO 11-22 [api.py:1] non-default args: {'model': 'demo', 'max_num_seqs': 64}")
    {'model': ('demo', 'non-default args'), 'max_num_seqs': ('64', 'non-default args')}
    """
    match = _ARGUMENTS.search(line)
    if not match:
        return {}
    try:
        values = parse_literal(match.group(1), InvalidInput)
    except InvalidInput:
        return {}
    return flat_settings(values, "non-default args") if isinstance(values, dict) else {}
