"""`kernelsight calibrate plan`: chooses the measurements that reduce the expected error most in a given time."""

from __future__ import annotations

import argparse

from kernelsight.cli.options import open_session
from kernelsight.errors import InvalidInput
from kernelsight.measure.kernels_to_measure import (
    choose,
    choose_points,
    features_of_points,
    first_minute,
    of_families,
    seconds_of,
    served_calls,
    shares_unmeasured,
    suite_of_points,
    sustained_product,
)
from kernelsight.measure.points_to_measure import ATTENTION, attention_of, capability_of, measurable
from kernelsight.number_format import percent, rounded
from kernelsight.scenario.scenario_rows import resolve_gpu

DEFAULT_MODELS = ("llama-3.1-8b", "qwen3-32b", "qwen3-30b-a3b", "gpt-oss-120b")
COLUMNS = ("family", "points", "seconds", "of_calls", "expected_error_before", "expected_error_after")


def run(arguments: argparse.Namespace) -> None:
    """Rank the candidate points, write the suite, and print time and expected error per family."""
    from kernelsight.present.output import as_json, check_ending, note, print_rows, write_text

    target = check_ending(arguments.output, (".json",))
    if target is None:
        raise InvalidInput("calibrate plan needs -o FILE, the JSON file to write the suite to.")
    models = [name.strip() for name in (arguments.models or "").split(",") if name.strip()] or list(DEFAULT_MODELS)
    engines = [name.strip() for name in (arguments.engines or "").split(",") if name.strip()] or ["vllm"]
    with open_session(arguments) as session:
        arguments.gpu = resolve_gpu(session, arguments.gpu)
        calls = served_calls(session, arguments.gpu, models, engines)
        capability = capability_of(session.table("gpus"), arguments.gpu)
        points = measurable(calls, attention_of(arguments.attention), capability)
        points = of_families(points, arguments.families)
        if not points:
            raise InvalidInput("none of these models' kernels can be measured; name other models with --models.")
        gpus, product = session.table("gpus"), sustained_product(points)
        product_s = sum(seconds_of(point) for point in product)
        if arguments.points:
            pack = session.table("eta_coefficients")
            chosen, rows = choose_points(points, arguments.gpu, gpus, pack, arguments.points)
        else:
            left_s = 60.0 * arguments.minutes - product_s
            chosen, rows = choose(points, features_of_points(points, arguments.gpu, gpus), left_s)
        ordered = first_minute(session, points, chosen, product)
    minutes = (sum(row["seconds"] for row in rows) + product_s) / 60.0 if arguments.points else arguments.minutes
    suite = suite_of_points(ordered, target.stem, arguments.gpu, minutes, models, engines)
    write_text(as_json(suite) + "\n", target)
    print_rows(rows, list(COLUMNS), arguments.format)
    if any(points[number]["implementation"] == ATTENTION[0] for number in chosen) and not arguments.attention:
        note(
            f"attention will be measured with {ATTENTION[0]}; choose another with --attention {'|'.join(ATTENTION[1:])}"
        )
    limit = f"{rounded(60.0 * minutes)} seconds" if arguments.points else f"{minutes:g} minutes"
    beside = "empty launches and a product at the sustained clock" if product else "empty launches"
    note(f"{len(chosen):,} of {len(points):,} points in {limit}, beside {beside}; written to {target}")
    if shares := shares_unmeasured(calls, points):
        shown = ", ".join(f"{family} ({percent(share)})" for family, share in shares.items())
        note(
            f"not measured, in share of the models' kernel time: {shown}; calls of them that were measured elsewhere "
            "come by `calibrate fit --few` too"
        )
