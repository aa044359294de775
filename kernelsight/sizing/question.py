"""A question of size: how many of which GPU serve a rate within objectives, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.scenario.corrections import give_corrections, refuse_unused_corrections
from kernelsight.scenario.flags import ALIASES, LOAD_FLAGS
from kernelsight.scenario.load_rules import distribution
from kernelsight.scenario.objectives import objectives_of
from kernelsight.scenario.plan import normalise, resolve_gpu
from kernelsight.scenario.prices import read_prices
from kernelsight.scenario.units import count_of, rate_of
from kernelsight.sizing.answer import Sizing, answer_of
from kernelsight.sizing.candidates import MOST_GPUS, VARIED, rows_of
from kernelsight.sizing.decision import checked, options_of
from kernelsight.sizing.search import SizeSearch
from kernelsight.sweeps.steady import LEAST_REQUESTS

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

DAY_S = 86_400.0
# requests/s; every person on earth (8.2 billion, UN World Population Prospects 2024) asking a hundred times a day
MOST_RATE = 1e7


def size_deployment(
    session: Session,
    flags: Mapping[str, Any],
    *,
    gpus: Sequence[str],
    slo: Mapping[str, float],
    rate: float | str | None = None,
    requests_per_day: float | str | None = None,
    prices: str | Path | Mapping[str, float] | None = None,
    max_gpus: int = MOST_GPUS,
    search: Mapping[str, Sequence[Any]] | None = None,
    tune: bool = True,
    correction: str | Path | pa.Table | None = None,
    confidence: float = 0.9,
    margin: float = 0.0,
    peak: float = 1.0,
    time_limit: float | None = None,
    total_gpus: int | None = None,
    report: Callable[[str], None] | None = None,
) -> Sizing:
    """Return the cheapest deployment that serves a rate within objectives; see ``Session.size``."""
    objectives = objectives_of(slo)
    if total_gpus is not None and (rate is not None or requests_per_day is not None):
        raise InvalidInput("--total-gpus asks for the highest rate; remove the rate.")
    per_s = None if total_gpus is not None else asked_rate(rate, requests_per_day)
    asked = checked(per_s, confidence, margin, peak, total_gpus)
    if time_limit is not None and (isinstance(time_limit, bool) or not 0.0 < time_limit < math.inf):
        raise InvalidInput(f"time_limit is {time_limit!r}; give seconds above 0.")
    if isinstance(max_gpus, bool) or not isinstance(max_gpus, int) or max_gpus < 1:
        raise InvalidInput(f"max_gpus is {max_gpus!r}; give a whole number of GPUs of one instance, at least 1.")
    named = [resolve_gpu(session, name) for name in gpus]
    if not named:
        raise InvalidInput("no GPU is given; set --gpus, such as --gpus h100_sxm,h200_sxm.")
    stated = {name: value for name, value in flags.items() if value is not None}
    for name in VARIED:
        if name in stated:
            what = "finds the number of replicas" if name == "replicas" else "varies the load to find the highest rate"
            raise InvalidInput(f"size {what}; remove {name}.")
    load = normalise(_load(stated))
    given = {name: value for name, value in stated.items() if ALIASES.get(name, name) not in LOAD_FLAGS}
    with session.fork() as fork:
        if correction is not None:
            give_corrections(fork, correction)
        known = read_prices(fork, prices)
        most_gpus = max_gpus if total_gpus is None else min(max_gpus, total_gpus)
        rows = rows_of(fork, given, list(dict.fromkeys(named)), most_gpus, search or {})
        load = {"num_prompts": LEAST_REQUESTS, **load}
        searching = SizeSearch(
            fork,
            asked.wanted,
            objectives,
            load,
            known,
            report,
            time_limit=time_limit,
            total_gpus=total_gpus,
            most_gpus=most_gpus,
            compared=[ALIASES.get(name, name) for name in search or {}],
        )
        try:
            searching.run(rows, tune)
            if correction is not None:
                refuse_unused_corrections(searching.forks[0], correction)
            options = options_of(searching, objectives, asked)
            return Sizing(answer_of(searching, options, objectives, asked, str(rows[0]["model"])))
        finally:
            searching.close()


def asked_rate(rate: float | str | None, requests_per_day: float | str | None) -> float:
    """Return the asked rate, requests/s; InvalidInput: none, two, or no positive number.

    >>> asked_rate(None, "8.64M"), asked_rate("12/s", None)
    (100.0, 12.0)
    """
    if (rate is None) == (requests_per_day is None):
        found = "neither is given" if rate is None else "both are given"
        raise InvalidInput(f"--rate R or --requests-per-day N says how much is to be served; {found}, give one.")
    name, value = ("rate", rate) if rate is not None else ("requests_per_day", requests_per_day)
    flag = f"--{name.replace('_', '-')}"
    per_s = rate_of(value, flag) if rate is not None else count_of(value, flag) / DAY_S
    if not 0.0 < per_s < math.inf:
        raise InvalidInput(f"{flag} is {value}; give a finite number above 0.")
    if per_s > MOST_RATE:
        raise InvalidInput(
            f"{flag} is {value} requests, {per_s:,.0f} a second; size answers up to {MOST_RATE:,.0f} a second, "
            "more than everybody on earth sends: count requests, not tokens."
        )
    return per_s


def _load(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of the load; InvalidInput: lengths are missing."""
    load = {name: value for name, value in stated.items() if ALIASES.get(name, name) in LOAD_FLAGS}
    named = {ALIASES.get(name, name): value for name, value in load.items()}
    missing = [name for name in ("input_len", "output_len") if name not in named]
    if missing and distribution(named) != "empirical":
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise InvalidInput(f"the load has no lengths; give {flags}, or --lengths-from FILE.")
    return load
