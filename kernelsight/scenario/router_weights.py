"""The value of the flag ``router_weights``: ``prefix=3,kv_use=2,queue=2``; parsed, and written."""

from __future__ import annotations

from kernelsight.errors import InvalidInput

SCORERS = ("prefix", "tier", "kv_use", "queue", "running", "load")
FORM = "weights such as prefix=3,kv_use=2,queue=2"
MOST = 1e6


def parse_weights(text: str, flag: str = "router_weights") -> dict[str, float]:
    """Return weights by scorer; InvalidInput: an unknown scorer, a negative or no number, or all weights 0.

    >>> parse_weights("queue=2, prefix=3")
    {'prefix': 3.0, 'queue': 2.0}
    """
    weights: dict[str, float] = {}
    for weight_text in str(text).split(","):
        name, _, value = (word.strip() for word in weight_text.partition("="))
        if name not in SCORERS or name in weights:
            why = f"has {name!r:.30} twice" if name in weights else f"names no scorer {name!r:.30}"
            raise InvalidInput(f"{flag} {why}; give {FORM}. Scorers: {', '.join(SCORERS)}.")
        try:
            weights[name] = float(value)
        except ValueError:
            weights[name] = -1.0
        if not 0.0 <= weights[name] <= MOST:
            raise InvalidInput(f"{flag} has {name}={value!r:.30}; give a number from 0 to {MOST:g}.")
    if not any(value for name, value in weights.items() if name != "tier"):
        raise InvalidInput(f"{flag} is {str(text)!r:.60}, which scores nothing; give {FORM}.")
    return {name: weights[name] for name in SCORERS if name in weights}


def weights_text(weights: dict[str, float]) -> str:
    """Return weights in canonical spelling, independent of the order in which they were written.

    >>> weights_text(parse_weights("queue=2.0,prefix=3"))
    'prefix=3,queue=2'
    """
    return ",".join(f"{name}={value:g}" for name, value in weights.items())
