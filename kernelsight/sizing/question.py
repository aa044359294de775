"""The question of a sizing, a row of ``size_questions``: how many of which GPU serve a rate within objectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kernelsight.errors import InvalidInput, unknown
from kernelsight.files.numbers import read_number
from kernelsight.number_format import rounded
from kernelsight.scenario.flag import options_of
from kernelsight.scenario.flag_values import asked_values, typed_value
from kernelsight.scenario.flags import ALIASES, FLAGS, LOAD_FLAGS
from kernelsight.scenario.launch.deployments import with_launch_line
from kernelsight.scenario.load_rules import distribution
from kernelsight.scenario.objectives import Objective, objective_rows, objectives_of, parse_slo, slo_of
from kernelsight.scenario.plan import normalise
from kernelsight.scenario.prices import read_prices
from kernelsight.scenario.stated_flags import object_text, read_flags
from kernelsight.scenario.units import bytes_per_s_of, count_of, rate_of, seconds_of
from kernelsight.sizing.candidates import VARIED
from kernelsight.sizing.daily import DAY_S, day_of, stated_day
from kernelsight.sizing.decision import Demand, demand_of, with_day

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.dataflow.session import Session

# requests/s: every person on earth (8.2 billion, UN World Population Prospects 2024) asking a hundred times a day; and
# users: one in a thousand of them
MOST_RATE, MOST_USERS = 1e7, 1e7
_OPTIONS = {flag.column: flag for flag in options_of("size_questions")["question"]}
MOST_EFFORT = int(_OPTIONS["effort"].most)


# what a change of a question is a factor of, and lengths among it by their flag
CHANGES = ("traffic", "users", "prompt", "output")
LENGTHS = {"prompt": "input_len", "output": "output_len"}
CHANGE_FORMS = (
    "A change is a factor, such as traffic=2, a flag of the deployment, such as quantization=fp8, or an objective, "
    "such as ttft_p95:500; a comma combines them."
)


class Question(NamedTuple):
    """The question of a sizing, by the columns of ``size_questions``; ``prices``: dollars per hour by GPU."""

    flags: Mapping[str, Any]
    gpus: Sequence[str]
    slo: Mapping[str, float]
    rate: float | None
    users: float | None
    total_gpus: int | None
    peak: float
    hours: Sequence[float] | None
    hours_from: str | None
    startup_s: float | None
    disk_bytes_per_s: float | None
    confidence: float
    margin: float
    prices: Mapping[str, float]
    electricity_price: float | None
    max_gpus: int
    search: Mapping[str, Sequence[Any]]
    tune: bool
    time_limit_s: float | None
    effort: int
    correction: str | None

    @property
    def objectives(self) -> list[Objective]:
        """The objectives of the SLO; InvalidInput: there are none, or one is not a positive number."""
        return objectives_of(self.slo)

    @property
    def demand(self) -> Demand:
        """The rate to serve, with which confidence; InvalidInput: none, or values out of range."""
        _refuse_rate(self.total_gpus, self.rate, self.users, self.hours)
        has_rate = self.total_gpus is None
        amount = asked_amount(self.rate, None, self.users, self.hours) if has_rate else None
        if self.hours is None:
            if self.startup_s is not None or self.disk_bytes_per_s is not None:
                raise InvalidInput("starts of instances are counted over a day; give --daily-peak, or remove them.")
            demand = demand_of(amount, self.confidence, self.margin, self.peak, self.total_gpus)
        else:
            day = stated_day(self.hours, self.hours_from)
            demand = demand_of(day.peak, self.confidence, self.margin, self.peak)
            demand = with_day(demand, day, self.startup_s, self.disk_bytes_per_s)
        return demand._replace(electricity_price=self.electricity_price)

    @property
    def deployment(self) -> dict[str, Any]:
        """The flags of the deployment alone."""
        return {name: value for name, value in self.flags.items() if ALIASES.get(name, name) not in LOAD_FLAGS}

    @property
    def load(self) -> dict[str, Any]:
        """The flags of the load alone; InvalidInput: prompt or output lengths are missing."""
        load = {name: value for name, value in self.flags.items() if ALIASES.get(name, name) in LOAD_FLAGS}
        by_flag = {ALIASES.get(name, name): value for name, value in load.items()}
        missing = [name for name in ("input_len", "output_len") if name not in by_flag]
        if missing and distribution(by_flag) != "empirical":
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in missing)
            raise InvalidInput(f"the load has no lengths; give {flags}, or --lengths-from FILE.")
        return load

    def check(self) -> None:
        """Raise InvalidInput for values that are out of range, missing, or that sizing varies itself."""
        _ = self.objectives, self.demand
        _refuse_single_tokens(normalise(self.load), self.objectives)
        if not self.gpus:
            raise InvalidInput("no GPU is given; set --gpus, such as --gpus h100_sxm,h200_sxm.")
        for name in VARIED:
            if name in self.flags:
                problem = (
                    "finds the number of replicas" if name == "replicas" else "varies the load to find the highest rate"
                )
                raise InvalidInput(f"size {problem}; remove {name}.")

    def as_row(self, question_id: str) -> dict[str, Any]:
        """Return the question's row of ``size_questions``; a launch line becomes flags."""
        flags = with_launch_line(self.flags)
        if "replicas" not in self.flags:
            flags.pop("replicas", None)  # of a launch line: sizing finds their number
        prices = [{"gpu": gpu, "price_per_gpu_hour": price} for gpu, price in self.prices.items()]
        return {
            "question_id": question_id,
            **self._asdict(),
            "flags": object_text(flags),
            "gpus": list(self.gpus),
            "slo": objective_rows(self.slo),
            "prices": prices or None,
            "search": object_text(self.search) if self.search else None,
        }


def changed(question: Question, change: str) -> Question:
    """Return a question with factors, flags of the deployment or objectives changed: ``traffic=2,model=qwen3-8b``.

    InvalidInput: not a change, or one of something that the question does not state.
    """
    for word in change.split(","):
        name, _, text = (part.strip() for part in word.partition("="))
        flag = ALIASES.get(name.replace("-", "_"), name.replace("-", "_"))
        if ":" in word:
            question = question._replace(slo={**question.slo, **parse_slo([word.strip()])})
            continue
        if name not in CHANGES and flag in FLAGS and flag not in (*LOAD_FLAGS, *VARIED, "gpu"):
            value = None if text == "none" else typed_value(flag, read_number(text))
            others = {each: own for each, own in question.flags.items() if ALIASES.get(each, each) != flag}
            question = question._replace(flags=others if value is None else {**others, flag: value})
            continue
        if name not in CHANGES:
            raise unknown("change", name, (*CHANGES, *FLAGS), CHANGE_FORMS)
        factor = count_of(text, f"--what-if {name}")
        if not 0.0 < factor < math.inf:
            raise InvalidInput(f"--what-if {name} is {text}; give a factor above 0, such as {name}=2.")
        if name in LENGTHS:
            question = _with_length(question, LENGTHS[name], factor)
        elif question.total_gpus is not None or (name == "users" and question.users is None):
            raise InvalidInput(f"--what-if {name} changes what the question does not state; give --rate or --users.")
        else:
            question = question._replace(
                rate=question.rate and factor * question.rate,
                users=question.users and max(float(round(factor * question.users)), 1.0),
                hours=question.hours and [factor * amount for amount in question.hours],
            )
    question.check()
    return question


def _with_length(question: Question, length: str, factor: float) -> Question:
    """Return a question with a factor on the mean length of its prompts or outputs."""
    known = {ALIASES.get(name, name): name for name in question.flags}
    if length not in known:
        flag = length.replace("_", "-")
        raise InvalidInput(f"--what-if changes --{flag}, which is not given; give it, or change traffic or users.")
    tokens = max(round(factor * question.flags[known[length]]), 1)
    return question._replace(flags={**question.flags, known[length]: tokens})


def question_of(row: Mapping[str, Any]) -> Question:
    """Return the question of a row of ``size_questions``; InvalidInput: its flags are not a JSON object."""
    values = {name: row.get(name) for name in Question._fields}
    values |= {name: flag.default for name, flag in _OPTIONS.items() if name in values and values[name] is None}
    return Question(
        **values
        | {
            "flags": read_flags(row, "size_questions", "flags"),
            "slo": slo_of(row["slo"]),
            "prices": {price_row["gpu"]: price_row["price_per_gpu_hour"] for price_row in row.get("prices") or ()},
            "search": read_flags(row, "size_questions", "search"),
        }
    )


def question_from(
    session: Session,
    flags: Mapping[str, Any],
    *,
    gpus: Sequence[str],
    slo: Mapping[str, float],
    search: Mapping[str, Sequence[Any]],
    correction: str | Path | pa.Table | None = None,
    **arguments: Any,
) -> Question:
    """Return the question of ``Session.size``'s arguments, in the units of ``size_questions``.

    InvalidInput: no or more than one rate, a value out of range, or a file that cannot be read.
    """
    asked = asked_values("size_questions", arguments)
    amounts = asked["rate"], asked["requests_per_day"], asked["users"], asked["daily_peak"]
    _refuse_rate(asked["total_gpus"], *amounts)
    amount = asked_amount(*amounts) if asked["total_gpus"] is None else None
    day = None if asked["daily_peak"] is None else day_of(asked["daily_peak"], amount)
    startup, disk_rate, users = asked["startup_seconds"], asked["disk_rate"], asked["users"]
    values = {name: value for name, value in asked.items() if name in Question._fields} | {
        "rate": amount if users is None else None,
        "users": amount if users is not None else None,
        "hours": day and list(day.amounts),
        "hours_from": day and day.source,
        "startup_s": None if startup is None else seconds_of(startup, "--startup-seconds"),
        "disk_bytes_per_s": None if disk_rate is None else bytes_per_s_of(disk_rate, "--disk-rate"),
        "time_limit_s": asked["time_limit"],
        "correction": None
        if correction is None
        else str(correction)
        if isinstance(correction, str | Path)
        else "table",
        "flags": {name: value for name, value in flags.items() if value is not None},
    }
    question = Question(**values | {"gpus": gpus, "slo": slo, "search": search, "prices": {}})
    question.check()
    return question._replace(prices=read_prices(session, asked["prices"]))


def _refuse_single_tokens(load: Mapping[str, Any], objectives: Iterable[Objective]) -> None:
    """Raise InvalidInput for objectives on the time between tokens where every output is one token."""
    unmet = [objective.column for objective in objectives if objective.metric in ("tpot", "itl")]
    if unmet and load.get("output_len") == 1 and "output_len_cv" not in load:
        raise InvalidInput(
            f"an output of one token has no {unmet[0]}; give --output-len of 2 or more, or objectives on ttft or e2e."
        )


def _refuse_rate(total_gpus: int | None, *amounts: Any) -> None:
    if total_gpus is not None and any(amount is not None for amount in amounts):
        raise InvalidInput("--total-gpus asks for the highest rate; remove the rate.")


def asked_amount(
    rate: float | str | None, requests_per_day: float | str | None, users: float | str | None = None, day: Any = None
) -> float | None:
    """Return the demand in requests/s or users from the one argument that gives it; None: the ``day`` gives it.

    InvalidInput: none, more than one, or not a positive number.

    >>> asked_amount(None, "8.64M"), asked_amount("12/s", None), asked_amount(None, None, "2k")
    (100.0, 12.0, 2000.0)
    """
    by_flag = {"--rate": rate, "--requests-per-day": requests_per_day, "--users": users}
    given = {flag: value for flag, value in by_flag.items() if value is not None}
    if not given and day is not None:
        return None
    if len(given) != 1:
        problem = f"{' and '.join(given)} are given" if given else "none is given"
        raise InvalidInput(
            f"--rate R, --requests-per-day N or --users N says how much is to be served; {problem}, give one."
        )
    ((flag, value),) = given.items()
    if flag == "--users":
        return _users(value)
    per_s = rate_of(value, flag) if rate is not None else count_of(value, flag) / DAY_S
    if not 0.0 < per_s < math.inf:
        raise InvalidInput(f"{flag} is {value}; give a finite number above 0.")
    if per_s > MOST_RATE:
        raise InvalidInput(
            f"{flag} is {value} requests, {rounded(per_s)} a second; size answers up to {rounded(MOST_RATE)} a second, "
            "more than everybody on earth sends: count requests, not tokens."
        )
    return per_s


def _users(value: float | str) -> float:
    users = count_of(value, "--users")
    if not 1.0 <= users <= MOST_USERS or users != round(users):
        raise InvalidInput(f"--users is {value}; give a whole number of users from 1 to {rounded(MOST_USERS)}.")
    return users
