"""`kernelsight size`: finds the GPUs, their number and flags that serve a rate within objectives at the lowest cost."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.cli.options import (
    add_correction,
    add_flags,
    add_output,
    add_pack,
    deployment_flags,
    launch_line,
    open_session,
)
from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import read_number
from kernelsight.present.output import PAGE_ENDINGS, check_ending, note, status, write_table
from kernelsight.present.show import HTML, show
from kernelsight.scenario import flags
from kernelsight.scenario.flags import LOAD_FLAGS
from kernelsight.scenario.objectives import parse_slo

if TYPE_CHECKING:
    from kernelsight.session import Session

# flags of the load and the router that the search sets
VARIED = frozenset(
    "replicas trace request_rate max_concurrency ramp_up_strategy ramp_up_start_rps ramp_up_end_rps".split()
)
FILES = (".csv", ".json")


def declare(verb: argparse.ArgumentParser) -> None:
    """Declare the arguments of the verb."""
    question_group = verb.add_argument_group("question")
    question_group.add_argument(
        "--gpus",
        required=True,
        metavar="G1,G2",
        help="GPUs to search: names, and CSV or JSON files with GPUs of your own",
    )
    _declare_amount(question_group)
    _declare_certainty(question_group)
    _declare_search(question_group)
    group = verb.add_argument_group("deployment (flags given here are not searched)")
    add_flags(group, tuple(flag for flag in flags.DEPLOYMENT if flag.name != "gpu"))
    add_pack(group)
    add_correction(group)
    group.add_argument(
        "--host-overheads", metavar="FILE", help="CSV or JSON with host times of an engine (table host_overheads)"
    )
    add_flags(verb.add_argument_group("engine limits"), flags.LIMITS)
    add_flags(verb.add_argument_group("scheduling policies"), flags.POLICIES)
    add_flags(verb.add_argument_group("speculative decoding"), flags.SPECULATION)
    pools = verb.add_argument_group("P/D disaggregation (the deployment flags then describe the decode replicas)")
    add_flags(pools, (*flags.POOLS, *flags.PREFILL))
    load = verb.add_argument_group("workload")
    add_flags(load, tuple(flag for flag in flags.LOAD if flag.name not in VARIED))
    add_flags(verb.add_argument_group("lengths"), flags.LENGTHS)
    add_flags(
        verb.add_argument_group("router (in front of data-parallel replicas)"),
        tuple(flag for flag in flags.ROUTER if flag.name not in VARIED),
    )
    add_flags(verb.add_argument_group("energy (of the place where the servers stand)"), flags.SITE)
    add_output(
        verb, "also write the rows (.parquet, .csv, .json), the question with its tables (.duckdb), or a page (.html)"
    )


def _declare_amount(group: argparse._ArgumentGroup) -> None:
    """Declare the options on the amount to serve: rate, users or GPUs, and peaks."""
    group.add_argument("--rate", metavar="R", help="requests per second to serve: 12, 12/s, 700/min")
    group.add_argument("--requests-per-day", metavar="N", help="the same, as a mean over the day: 200000, 5M")
    group.add_argument(
        "--users", metavar="N", help="in place of a rate: users, each with one request in flight (a closed loop)"
    )
    group.add_argument(
        "--total-gpus", type=int, metavar="N", help="in place of a rate: the highest rate that N GPUs can serve"
    )
    group.add_argument(
        "--peak",
        type=float,
        default=1.0,
        metavar="FACTOR",
        help="the peak over the mean rate; it is sized for the peak",
    )
    group.add_argument(
        "--daily-peak",
        metavar="FACTOR|FILE",
        help="how many times the mean of a day its peak is, or a trace of a day: instances follow the hours",
    )
    group.add_argument(
        "--startup-seconds",
        metavar="S",
        help="with --daily-peak: what starting an instance takes (default: from the bytes of its weights)",
    )
    group.add_argument(
        "--disk-rate",
        metavar="GB/S",
        help="with --daily-peak: at which an instance reads its weights: 2GB/s, 800MB/s (default: 1, assumed)",
    )


def _declare_certainty(group: argparse._ArgumentGroup) -> None:
    """Declare the options on objectives and on the probability that they hold."""
    group.add_argument(
        "--margin", type=float, default=0.0, metavar="SHARE", help="share of what is sustained that stays unused"
    )
    group.add_argument(
        "--confidence",
        type=float,
        default=0.9,
        metavar="P",
        help="probability that every objective holds, from the intervals of kernels, host and load (default: 0.9)",
    )
    group.add_argument(
        "--time-limit", type=float, metavar="S", help="seconds after which the best so far is the answer; Ctrl-C too"
    )
    group.add_argument(
        "--effort",
        type=int,
        default=1,
        metavar="1-5",
        help="each step doubles the requests that the search may simulate (default: 1); it goes on from where it ended",
    )
    group.add_argument(
        "--slo",
        nargs="+",
        metavar="METRIC:MS",
        help="objectives: ttft, tpot, itl, e2e or queue with mean or any percentile, such as ttft_p95:2s tpot_p99:40ms",
    )


def _declare_search(group: argparse._ArgumentGroup) -> None:
    """Declare the options on prices and on the deployments to search."""
    group.add_argument(
        "--prices",
        metavar="P",
        help="dollars an hour of one GPU: g1=2.2,g2=4, or a file with gpu and price_per_gpu_hour",
    )
    group.add_argument(
        "--electricity-price",
        type=float,
        metavar="P",
        help="dollars a kilowatt-hour: energy of the GPUs (with --host-power and --pue, of servers and building) is "
        "added to what they cost",
    )
    group.add_argument("--max-gpus", type=int, default=8, metavar="N", help="GPUs of one instance at most (default: 8)")
    group.add_argument(
        "--search",
        nargs="+",
        metavar="FLAG=V1,V2",
        help="flags to search as well, such as quantization=none,fp8 kv_cache_dtype=auto,fp8 engine=vllm,sglang "
        "prefill_replicas=none,1,2; none: unset",
    )
    group.add_argument(
        "--tune", action=argparse.BooleanOptionalAction, default=True, help="try max_num_batched_tokens on the best"
    )


def run(arguments: Any) -> None:
    """Size, print the answer, and write its rows, tables or page."""
    target = check_ending(arguments.output, PAGE_ENDINGS)
    if not arguments.slo:
        raise InvalidInput("size needs --slo, the objectives to keep, such as --slo ttft_p95:1000 tpot_p99:40.")
    slo = parse_slo(arguments.slo)
    given_flags = deployment_flags(arguments)
    given_flags |= {name: value for name in LOAD_FLAGS if (value := getattr(arguments, name, None)) is not None}
    line = launch_line(arguments, given_flags)
    if line and "replicas" in line.flags:
        note("launch line: its number of replicas is not used, since the answer says how many instances are needed")
    names, files = _gpus(arguments.gpus)
    arguments.gpus = None  # here a list of names; the files among them are read below
    with open_session(arguments) as session:
        session.progress = None
        sizing = session.size(
            gpus=[*names, *_own_gpus(session, files)],
            slo=slo,
            rate=arguments.rate,
            requests_per_day=arguments.requests_per_day,
            prices=arguments.prices,
            max_gpus=arguments.max_gpus,
            search=_search(arguments.search or []),
            tune=arguments.tune,
            correction=arguments.correction,
            confidence=arguments.confidence,
            margin=arguments.margin,
            peak=arguments.peak,
            time_limit=arguments.time_limit,
            effort=arguments.effort,
            total_gpus=arguments.total_gpus,
            users=arguments.users,
            daily_peak=arguments.daily_peak,
            startup_seconds=arguments.startup_seconds,
            disk_rate=arguments.disk_rate,
            electricity_price=arguments.electricity_price,
            report=_show,
            **given_flags,
        )
        if target and target.suffix == ".duckdb":
            sizing.save(target)
        elif target and target.suffix != HTML:
            write_table(sizing.table(), target)
    if sys.stderr.isatty():
        status()
    columns = list(dict.fromkeys(name for row in sizing.rows for name in row))
    show(sizing.page(), arguments.format, target, sizing.rows, columns)


def _gpus(text: str) -> tuple[list[str], list[Path]]:
    """Return (GPU names, files of GPUs) of --gpus."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    files = [Path(word) for word in words if word.lower().endswith(FILES)]
    return [word for word in words if not word.lower().endswith(FILES)], files


def _own_gpus(session: Session, files: list[Path]) -> list[str]:
    """Add the GPUs of files to the session, and return their names."""
    from kernelsight.scenario.given_facts import extend_gpus

    names_before = set(session.table("gpus")["gpu"].to_pylist())
    names = []
    for path in files:
        replaced = extend_gpus(session, path)
        for name in replaced:
            note(f"{path.name}: its row {name} replaces the catalogue GPU of that name")
        names_after = session.table("gpus")["gpu"].to_pylist()
        names += [*replaced, *(name for name in names_after if name not in names_before)]
        names_before = set(names_after)
    return names


def _search(words: list[str]) -> dict[str, list[Any]]:
    """Return the values to search by flag.

    >>> _search(["quantization=none,fp8", "max_num_seqs=64,128"])
    {'quantization': [None, 'fp8'], 'max_num_seqs': [64, 128]}
    """
    searched: dict[str, list[Any]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.lstrip("-").replace("-", "_")
        value_words = [value for value in values.split(",") if value]
        if not equals or not value_words:
            raise InvalidInput(f"--search {word!r} is not FLAG=V1,V2; give values, such as max_num_seqs=64,128.")
        if name in searched:
            raise InvalidInput(f"--search has {name} twice; give all its values at once.")
        constants = {"none": None, "true": True, "false": False}
        searched[name] = [constants[value] if value in constants else read_number(value) for value in value_words]
    return searched


def _show(text: str) -> None:
    """Show progress: in one line of a terminal that is overwritten, elsewhere line by line."""
    if sys.stderr.isatty():
        status(f"  {text}")
    else:
        note(text)
