"""A question of size: how many of which GPU serve a rate within objectives, and what it costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
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
from kernelsight.sizing.candidates import FIRST_RATE, FIRST_USERS, MOST_GPUS, VARIED, rows_of
from kernelsight.sizing.closer_look import closer_look
from kernelsight.sizing.daily import DAY_S, day_of
from kernelsight.sizing.decision import checked, options_of, with_day
from kernelsight.sizing.search import SizeSearch
from kernelsight.sweeps.steady import LEAST_REQUESTS

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

# requests/s: every person on earth (8.2 billion, UN World Population Prospects 2024) asking a hundred times a day; and
# users: one in a thousand of them
MOST_RATE, MOST_USERS = 1e7, 1e7


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
    users: float | str | None = None,
    daily_peak: float | str | Path | None = None,
    startup_seconds: float | str | None = None,
    disk_rate: float | str | None = None,
    electricity_price: float | None = None,
    measurable: Collection[str] = (),
    report: Callable[[str], None] | None = None,
) -> Sizing:
    """Return the cheapest deployment that serves a rate within objectives; see ``Session.size``.

    ``measurable``: kernel families that ``calibrate plan`` can plan for.
    """
    objectives = objectives_of(slo)
    if total_gpus is not None and any(given is not None for given in (rate, requests_per_day, users, daily_peak)):
        raise InvalidInput("--total-gpus asks for the highest rate; remove the rate.")
    amount = None if total_gpus is not None else asked_amount(rate, requests_per_day, users, daily_peak)
    if daily_peak is None:
        if startup_seconds is not None or disk_rate is not None:
            raise InvalidInput("starts of instances are counted over a day; give --daily-peak, or remove them.")
        asked = checked(amount, confidence, margin, peak, total_gpus)
    else:
        day = day_of(daily_peak, amount)
        asked = with_day(checked(day.peak, confidence, margin, peak), day, startup_seconds, disk_rate)
    if electricity_price is not None and not 0.0 <= electricity_price < math.inf:
        raise InvalidInput(f"electricity_price is {electricity_price!r}; give dollars a kilowatt-hour, 0 or more.")
    asked = asked._replace(electricity_price=electricity_price)
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
        loop = {"request_rate": FIRST_RATE} if users is None else {"max_concurrency": FIRST_USERS}
        load = {"num_prompts": LEAST_REQUESTS, **load, **loop}
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
            closer = [closer_look(searching, option) for option in options[:2]]
            return Sizing(answer_of(searching, options, closer, objectives, asked, str(rows[0]["model"]), measurable))
        finally:
            searching.close()


def asked_amount(
    rate: float | str | None,
    requests_per_day: float | str | None,
    users: float | str | None = None,
    daily_peak: float | str | Path | None = None,
) -> float | None:
    """Return what is asked for, requests/s or users; None: what the trace of a day has.

    InvalidInput: nothing, more than one, or no positive number.

    >>> asked_amount(None, "8.64M"), asked_amount("12/s", None), asked_amount(None, None, "2k")
    (100.0, 12.0, 2000.0)
    """
    stated = {"--rate": rate, "--requests-per-day": requests_per_day, "--users": users}
    given = {flag: value for flag, value in stated.items() if value is not None}
    if not given and daily_peak is not None:
        return None
    if len(given) != 1:
        found = f"{' and '.join(given)} are given" if given else "none is given"
        raise InvalidInput(
            f"--rate R, --requests-per-day N or --users N says how much is to be served; {found}, give one."
        )
    ((flag, value),) = given.items()
    if flag == "--users":
        return _users(value)
    per_s = rate_of(value, flag) if rate is not None else count_of(value, flag) / DAY_S
    if not 0.0 < per_s < math.inf:
        raise InvalidInput(f"{flag} is {value}; give a finite number above 0.")
    if per_s > MOST_RATE:
        raise InvalidInput(
            f"{flag} is {value} requests, {per_s:,.0f} a second; size answers up to {MOST_RATE:,.0f} a second, "
            "more than everybody on earth sends: count requests, not tokens."
        )
    return per_s


def _users(value: float | str) -> float:
    users = count_of(value, "--users")
    if not 1.0 <= users <= MOST_USERS or users != round(users):
        raise InvalidInput(f"--users is {value}; give a whole number of users from 1 to {MOST_USERS:,.0f}.")
    return users


def _load(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of the load; InvalidInput: lengths are missing."""
    load = {name: value for name, value in stated.items() if ALIASES.get(name, name) in LOAD_FLAGS}
    named = {ALIASES.get(name, name): value for name, value in load.items()}
    missing = [name for name in ("input_len", "output_len") if name not in named]
    if missing and distribution(named) != "empirical":
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
        raise InvalidInput(f"the load has no lengths; give {flags}, or --lengths-from FILE.")
    return load
