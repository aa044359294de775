"""`kernelsight simulate`: simulates serving a load; prints what a benchmark client would, and where GPU time went."""

from __future__ import annotations

from typing import Any

from kernelsight.cli.launch_files import write_launch
from kernelsight.cli.options import (
    deployment_flags,
    launch_line,
    open_session,
)
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.present.output import PAGE_ENDINGS, check_ending, csv_of, note, write_table
from kernelsight.present.progress import Waiting
from kernelsight.present.show import HTML, show
from kernelsight.scenario import load_rules
from kernelsight.scenario.flags import LOAD_FLAGS
from kernelsight.scenario.objectives import parse_objectives


def load_flags(arguments: Any) -> dict[str, Any]:
    """Return the load flags of parsed arguments; InvalidInput: the load is incomplete or contradicts itself."""
    flags = {name: value for name in LOAD_FLAGS if (value := getattr(arguments, name, None)) is not None}
    flags |= parse_objectives(arguments.goodput or [])
    synthetic = [name for name in ("request_rate", "input_len", "output_len") if name in flags]
    if "trace" in flags and load_rules.may_hold_conversations(flags["trace"]):
        synthetic = [name for name in synthetic if name not in load_rules.RATES]
    if "trace" in flags and synthetic:
        raise InvalidInput(f"--trace has its own arrivals and lengths; remove --{synthetic[0].replace('_', '-')}.")
    if "trace" not in flags:
        if not load_rules.LOADS & set(flags):
            raise InvalidInput(
                "no workload is given; use --trace FILE, or --request-rate R or --max-concurrency C with "
                "--input-len and --output-len."
            )
        required = ("input_len", "output_len") if load_rules.distribution(flags) != "empirical" else ()
        missing = [name for name in required if name not in flags]
        if missing:
            raise InvalidInput(
                f"a synthetic workload needs --{', --'.join(name.replace('_', '-') for name in missing)}; set "
                "them, or use --trace FILE."
            )
    flags = load_rules.with_prompts(load_rules.with_finite_rate(flags))
    fault = load_rules.first_fault(flags)
    if fault:
        raise InvalidInput(". ".join(fault))
    return flags


def run(arguments: Any) -> None:
    """Simulate the scenario, print its summary, and save the run or its requests."""
    from kernelsight.sweeps.runs import Run

    if arguments.write_launch:
        deployment = deployment_flags(arguments)
        if arguments.replicas is not None:
            deployment["replicas"] = arguments.replicas
        launch_line(arguments, deployment)
        with open_session(arguments) as session:
            write_launch(session, arguments.write_launch, deployment, arguments.output)
        return
    target = check_ending(arguments.output, PAGE_ENDINGS)
    flags = deployment_flags(arguments) | load_flags(arguments)
    line = launch_line(arguments, flags)
    steps = "steps" in (arguments.keep or [])
    if steps and (target is None or target.suffix != ".duckdb"):
        note("--keep steps has no effect here: steps are a table of a saved run; add -o FILE.duckdb.")
    with open_session(arguments) as session:
        run = Run.of(session, flags, arguments.correction)
        with Waiting("simulating"):
            answer = run.summary
            if arguments.advise:
                answer["advice"] = run.advice().to_pylist()
        try:
            if target and target.suffix == ".duckdb":
                run.save(target, steps=steps)
            elif target and target.suffix != HTML:
                write_table(run.table("request_metrics"), target)
        except RunFailed:
            show(
                run.page, arguments.format, None, lambda: csv_of(run.table("scenario_summary")), line
            )  # a full disk must not lose a long simulation
            raise
        show(run.page, arguments.format, target, lambda: csv_of(run.table("scenario_summary")), line)
        if answer["completed"] == 0:
            from kernelsight.serving.runs.scenario_summary import NONE_SERVED

            raise InvalidInput(
                f"{NONE_SERVED}: the KV cache of a replica has {answer['kv_cache_tokens']:,} tokens, the model takes "
                f"{answer['settings']['max_model_len']:,}; shorten them. Table request_events says why of each."
            )
