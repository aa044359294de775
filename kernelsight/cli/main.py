"""The command line: parses arguments, runs one verb, prints one sentence per error. Heavy imports wait for the verb."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from typing import NoReturn

from kernelsight import __version__
from kernelsight.cli.calibrate import measure
from kernelsight.cli.options import add_flags, whole
from kernelsight.errors import InvalidInput, KernelSightError, unknown
from kernelsight.scenario import flags

FORMATS = ("table", "json", "csv")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Reject wrong arguments in one sentence, with exit status 2."""
        print(f"kernelsight: {message}; `{self.prog} --help` shows the flags.", file=sys.stderr)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    top = _Parser(
        prog="kernelsight",
        description="Predict the latency of every GPU kernel of an LLM forward pass, and simulate serving from it.",
    )
    top.add_argument("--version", action="version", version=f"kernelsight {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    _tables(verbs)
    _explain(verbs)
    _sql(verbs)
    _predict(verbs)
    _simulate(verbs)
    _sweep(verbs)
    _calibrate(verbs)
    _backtest(verbs)
    return top


def _verb(verbs: argparse._SubParsersAction, name: str, text: str, module: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", allow_abbrev=False)
    verb.set_defaults(module=module, flags=verb)
    return verb


def _out(verb: argparse.ArgumentParser, file_help: str, formats: tuple[str, ...] = FORMATS) -> None:
    verb.add_argument("--format", choices=formats, default=formats[0], help="output format on stdout")
    verb.add_argument("-o", "--output", metavar="FILE", help=file_help)


def _tables(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(verbs, "tables", "list all tables, or the columns of one", "kernelsight.cli.tables")
    verb.add_argument("table", nargs="?", metavar="TABLE", help="show its columns with type, unit and description")
    _out(verb, "also write the list: .parquet, .csv, .json")
    verb.set_defaults(action="tables")


def _explain(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(verbs, "explain", "show the steps that compute a table, in order", "kernelsight.cli.tables")
    verb.add_argument("table", metavar="TABLE", help="name of the table")
    verb.add_argument(
        "--format", choices=("text", "table", "json", "csv", "mermaid"), default="text", help="mermaid: a flow chart"
    )
    verb.add_argument("-o", "--output", metavar="FILE", help="also write the steps: .parquet, .csv, .json")
    verb.set_defaults(action="explain")


def _sql(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(verbs, "sql", "run a DuckDB query over input and derived tables", "kernelsight.cli.tables")
    verb.add_argument("query", metavar="QUERY", help="one query; derived tables in it are computed first")
    verb.add_argument("--db", metavar="FILE", help="saved run (.duckdb), opened read-only")
    _gpus(verb)
    _out(verb, "also write the rows: .parquet, .csv, .json")
    verb.set_defaults(action="sql")


def _deployment(verb: argparse.ArgumentParser) -> None:
    group = verb.add_argument_group("deployment (flag names as in vLLM; unset flags take the engine's defaults)")
    add_flags(group, flags.DEPLOYMENT)
    _kernel_model(group)
    add_flags(verb.add_argument_group("engine limits"), flags.LIMITS)
    add_flags(verb.add_argument_group("scheduling policies"), flags.POLICIES)
    add_flags(verb.add_argument_group("speculative decoding"), flags.SPECULATION)


def _gpus(verb: argparse._ActionsContainer) -> None:
    verb.add_argument("--gpus", metavar="FILE", help="CSV or JSON with additional GPUs, such as hypothetical hardware")


def _pack(verb: argparse._ActionsContainer) -> None:
    verb.add_argument(
        "--pack", metavar="FILE", help="fitted kernel model from `calibrate fit` (default: the one shipped)"
    )


def _kernel_model(verb: argparse._ActionsContainer) -> None:
    _gpus(verb)
    _pack(verb)
    verb.add_argument(
        "--host-overheads", metavar="FILE", help="CSV or JSON with host times of an engine (table host_overheads)"
    )


def _predict(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "predict",
        "predict one forward step, kernel by kernel, or a table of kernel calls",
        "kernelsight.cli.predict",
    )
    _deployment(verb)
    step = verb.add_argument_group("step")
    step.add_argument("--phase", choices=("prefill", "decode", "mixed"), help="kind of step (default: decode)")
    step.add_argument(
        "--batch-size",
        type=int,
        metavar="B",
        help="number of sequences (mixed: decodes next to one prefill chunk; default: 1)",
    )
    step.add_argument("--input-len", "--isl", type=whole, metavar="L", help="new tokens per prompt, or of the chunk")
    step.add_argument(
        "--context-len", type=whole, metavar="C", help="tokens already in the KV cache per sequence (decode needs it)"
    )
    step.add_argument("--calls", metavar="FILE", help="predict a Parquet table of kernel calls instead of a step")
    _out(verb, "also write the kernels: .parquet, .csv, .json, .duckdb")


def _simulate(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "simulate",
        "simulate serving a workload: latency, throughput, GPU-time breakdown",
        "kernelsight.cli.simulate",
    )
    _deployment(verb)
    pools = verb.add_argument_group("P/D disaggregation (the deployment flags then describe the decode replicas)")
    add_flags(pools, (*flags.POOLS, *flags.PREFILL))
    load = verb.add_argument_group("workload")
    add_flags(load, flags.LOAD)
    add_flags(verb.add_argument_group("lengths"), flags.LENGTHS)
    add_flags(verb.add_argument_group("router (in front of data-parallel replicas)"), flags.ROUTER)
    load.add_argument(
        "--goodput", nargs="+", metavar="METRIC:MS", help="objectives per request: ttft:MS tpot:MS e2el:MS"
    )
    load.add_argument("--keep", nargs="+", choices=("steps",), help="keep one row per engine step")
    _out(verb, "also save the run (.duckdb), or one row per request (.parquet, .csv, .json)")


def _sweep(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "sweep",
        "simulate every scenario of a grid: SLOs, Pareto front, highest request rates",
        "kernelsight.cli.sweep",
    )
    verb.add_argument(
        "grid",
        metavar="GRID",
        help="JSON file of axes (flags of simulate with underscores, each a scalar or a list), Parquet or CSV file of "
        "scenarios, or a SQL query; the column price_per_gpu_hour is optional",
    )
    add_flags(verb, flags.DEPLOYMENT[:1])
    _kernel_model(verb)
    verb.add_argument(
        "--goodput", nargs="+", metavar="METRIC:MS", help="objectives per request: ttft:MS tpot:MS e2el:MS"
    )
    verb.add_argument(
        "--slo", nargs="+", metavar="METRIC:MS", help="objectives per scenario, such as ttft_p99:MS tpot_mean:MS"
    )
    verb.add_argument("--resume", action="store_true", help="continue an interrupted sweep with the same -o FILE")
    verb.add_argument(
        "--workers", type=int, default=1, metavar="N", help="number of processes (default: threads of this process)"
    )
    verb.add_argument("--executor", choices=("local", "ray"), default="local", help="where partitions run")
    verb.add_argument("--partition-requests", type=int, metavar="N", help="requests simulated per partition")
    verb.add_argument("--find-rate", action="store_true", help="find the highest request rate per row that meets --slo")
    verb.add_argument(
        "--at-rate",
        type=float,
        metavar="R",
        help="with --find-rate and prices: the cheapest deployment for R requests per second",
    )
    _out(verb, "also write the rows: .parquet, .csv, .json, .duckdb")


def _calibrate(verbs: argparse._SubParsersAction) -> None:
    text = "measure kernels, import measurements, fit and evaluate the kernel model"
    group = verbs.add_parser("calibrate", help=text, description=text[0].upper() + text[1:] + ".")
    parts = group.add_subparsers(dest="part", metavar="PART", required=True, parser_class=_Parser)
    verb = _verb(
        parts,
        "import",
        "import published kernel sweeps (table sweep_points)",
        "kernelsight.cli.calibrate.import_sweeps",
    )
    verb.add_argument("source", metavar="SOURCE", help="aiconfigurator, neusight, vidur, llmservingsim or parquet")
    verb.add_argument(
        "path", nargs="?", metavar="PATH", help="file or folder of the data (default: the installed package)"
    )
    verb.add_argument("--gpus", metavar="A,B", help="only these GPUs (default: all)")
    _families(verb)
    _out(verb, "file to write the sweep to: .parquet")
    verb = _verb(
        parts, "measure", "measure the kernels of a suite on the local GPU", "kernelsight.cli.calibrate.measure"
    )
    measure.add_flags(verb)
    _out(verb, "file to write the sweep to: .parquet (required); its journal, for --resume, is kept next to it")
    verb = _verb(
        parts,
        "device",
        "show properties of the local GPU next to its catalogue row",
        "kernelsight.cli.calibrate.device",
    )
    measure.add_device_flags(verb)
    _out(verb, "also write the GPU as a row for --gpus: .json")
    verb = _verb(
        parts,
        "plan",
        "choose the measurements that reduce the expected error most in a given time",
        "kernelsight.cli.calibrate.plan",
    )
    verb.add_argument("--gpu", required=True, metavar="G", help="GPU to measure")
    verb.add_argument(
        "--minutes", type=float, default=5.0, metavar="MIN", help="time the measurements may take (default: 5)"
    )
    verb.add_argument("--models", metavar="A,B", help="models to cover (default: four of the catalogue)")
    verb.add_argument(
        "--attention",
        metavar="LIB",
        help="attention library on that GPU: flashinfer (default), flash_attention_vllm or torch_sdpa",
    )
    _gpus(verb)
    _pack(verb)
    _out(verb, "file to write the suite to: .json")
    verb = _verb(parts, "fit", "fit the kernel model to measured kernels", "kernelsight.cli.calibrate.fit")
    _sweeps(verb, "GPUs to fit on (default: all in the sweeps)")
    _gpus(verb)
    _out(verb, "file to write the fitted kernel model to: .parquet")
    verb = _verb(parts, "evaluate", "fit on some GPUs, score the model on others", "kernelsight.cli.calibrate.evaluate")
    _sweeps(verb, "GPUs to fit on (default: a100_sxm,l40s,h100_sxm,h200_sxm)")
    verb.add_argument("--test-gpus", metavar="C", required=True, help="GPUs to predict and score")
    verb.add_argument(
        "--tier",
        choices=("cross-generation", "target-measured"),
        help="kernel latency model to score (default: target-measured with --budget, else cross-generation)",
    )
    verb.add_argument(
        "--budget",
        type=float,
        metavar="SHARE",
        help="share of the test GPU's sites (distinct kernel shapes) used as measurements",
    )
    verb.add_argument("--final", action="store_true", help="also score the GPUs held out for the final evaluation")
    _out(verb, "also write the report: .json, .csv, .parquet")


def _sweeps(verb: argparse.ArgumentParser, train_help: str) -> None:
    verb.add_argument(
        "--sweep",
        nargs="+",
        required=True,
        metavar="S",
        help="Parquet files written by `calibrate import` or `calibrate measure`",
    )
    verb.add_argument("--train-gpus", metavar="A,B", help=train_help)
    _families(verb)


def _families(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--families", metavar="F,G", help="only these kernel families (default: all)")


def _backtest(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "backtest",
        "simulate measured end-to-end runs and score the predictions",
        "kernelsight.cli.backtest",
    )
    verb.add_argument(
        "--runs",
        required=True,
        metavar="FILE",
        help="aiconfigurator (the runs shipped in aiconfigurator-core), or a .csv or .parquet file of measured_runs",
    )
    verb.add_argument("--tier", choices=flags.TIERS, help="kernel latency model to use")
    _pack(verb)
    verb.add_argument(
        "--constants",
        default="shipped",
        metavar="LEVEL[,LEVEL]",
        help="host time: shipped (catalogue, default), none, or fitted on a fifth of the runs, which is then not "
        "scored: version (per engine version), group (per group of runs, plus a factor on its kernels), transfer (per "
        "group, from the other groups of its engine version); the first level is reported in full",
    )
    verb.add_argument("--against", choices=("aiconfigurator",), help="also score this tool on the same runs")
    verb.add_argument(
        "--plot", metavar="FILE", help="plots of predicted vs measured and error vs load: .svg .png .html"
    )
    _out(verb, "also write the report (.json), or one row per run (.parquet, .csv)")


def main(words: list[str] | None = None) -> int:
    """Run one command; return 0 on success, 1 if the run failed, 2 for wrong arguments or input."""
    arguments, strange = parser().parse_known_args(words)
    _open_streams()
    try:
        if strange:
            raise _unknown_words(arguments, strange)
        importlib.import_module(arguments.module).run(arguments)
        sys.stdout.flush()
    except KernelSightError as error:
        print(f"kernelsight: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _stopped()
    except RuntimeError as error:
        if str(error) != "Query interrupted":  # DuckDB's form of Ctrl-C
            raise
        return _stopped()
    except BrokenPipeError:
        _silence_stdout()  # the reader closed the pipe
        return 0
    except OSError as error:
        _silence_stdout()
        what = f"{error.filename} could not be read or written" if error.filename else "the output could not be written"
        print(f"kernelsight: {what}: {error.strerror}.", file=sys.stderr)
        return 1
    except MemoryError:
        print("kernelsight: out of memory; request fewer rows at once.", file=sys.stderr)
        return 1
    return 0


def _unknown_words(arguments: argparse.Namespace, strange: list[str]) -> KernelSightError:
    """Build the error for the first argument that the verb does not accept, with the nearest flags."""
    flag = next((word for word in strange if word.startswith("-")), strange[0]).partition("=")[0]
    known = [name for action in arguments.flags._actions for name in action.option_strings]
    kind = "flag" if flag.startswith("-") else "argument"
    engine_option = _engine_option(flag) if "--launch" in known else None
    if engine_option:
        return InvalidInput(engine_option)
    return unknown(kind, flag, known if kind == "flag" else (), f"`{arguments.flags.prog} --help` lists them.")


def _engine_option(flag: str) -> str | None:
    """Return what to do about an option of a serving engine that is no flag here, or None."""
    from kernelsight.scenario.engine_options import options, spelled

    found = next((option for engine in flags.ENGINES if (option := options(engine).get(spelled(flag)))), None)
    if found is None:
        return None
    if found.flag:
        own = flags.FLAGS[found.flag].options[-1]
        return (
            f"{flag} is an option of {found.engine}, called {own} here; use that, or give the whole line to --launch."
        )
    what = "does not change times" if found.effect == "none" else "is not predicted"
    return f"{flag} is an option of {found.engine} that {what}; leave it out, or give the whole line to --launch."


def _open_streams() -> None:
    """Make stdout and stderr usable if the shell closed them or their encoding lacks some characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the program ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _silence_stdout() -> None:
    # flushing Python's buffer at exit would fail again
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped() -> int:
    print("kernelsight: interrupted; no partial file was written.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
