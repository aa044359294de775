"""Question of a comparison, a row of ``comparisons``: logs, deployment or baseline, and options of the fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kernelsight.scenario.flag import options_of
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.stated_flags import object_text, read_flags

# columns that may be null, and what is meant then
OPTIONAL = {flag.name: flag.default for flag in options_of("comparisons")["comparison"] if flag.default is not None}


class Question(NamedTuple):
    """The inputs of a comparison: flags of the deployment, and how causes are searched for.

    ``stated``: flags of the load as it was described; ``fit``: none, host (host time and front end alone) or parts;
    ``hold_out``: the last share of the time, on which corrections are scored; ``suspects``: which settings are tried,
    all or none; ``log_ids``: the logs, None: all; ``baseline``: ids of earlier logs that they are compared with.
    """

    flags: Mapping[str, Any]
    stated: Mapping[str, Any] | None = None
    fit: str = "parts"
    hold_out: float = 0.3
    suspects: str = "all"
    log_ids: tuple[str, ...] | None = None
    baseline: tuple[str, ...] | None = None

    def as_row(self, comparison_id: str) -> dict[str, Any]:
        """Return its row of ``comparisons``; a launch line among the flags is parsed into flags."""
        return {
            "comparison_id": comparison_id,
            "log_ids": None if self.log_ids is None else list(self.log_ids),
            "baseline_log_ids": None if self.baseline is None else list(self.baseline),
            "deployment": object_text(with_launch_line(self.flags)),
            "stated": object_text(self.stated) if self.stated else None,
            **{name: getattr(self, name) for name in OPTIONAL},
        }


def question_of(row: Mapping[str, Any]) -> Question:
    """Return the question of a row of ``comparisons``; InvalidInput: its flags are not a JSON object.

    >>> question_of({"deployment": '{"gpu": "l4"}', "stated": None, "fit": None, "log_ids": ["a"]}).flags
    {'gpu': 'l4'}
    """
    flags, stated = (read_flags(row, "comparisons", name) for name in ("deployment", "stated"))
    options = {name: default if row.get(name) is None else row[name] for name, default in OPTIONAL.items()}
    logs, baseline = (
        None if (ids := row.get(name)) is None else tuple(ids) for name in ("log_ids", "baseline_log_ids")
    )
    return Question(flags, stated or None, **options, log_ids=logs, baseline=baseline)
