"""The command line: words in, one verb run, one sentence on a fault. Nothing heavy is imported before a verb runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from typing import NoReturn

from kernelsight import __version__
from kernelsight.cli.calibrate import measure
from kernelsight.cli.options import add_flags
from kernelsight.errors import KernelSightError, unknown
from kernelsight.scenario import flags

FORMATS = ("table", "json", "csv")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Refuse wrong words in one sentence, with exit status 2."""
        print(f"kernelsight: {message}; `{self.prog} --help` shows the flags.", file=sys.stderr)
        sys.exit(2)


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    top = _Parser(
        prog="kernelsight",
        description="Latency of every GPU kernel of an LLM forward pass, and serving simulated from it.",
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
    verb.add_argument("--format", choices=formats, default=formats[0], help="what is printed on stdout")
    verb.add_argument("-o", "--output", metavar="FILE", help=file_help)


def _tables(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(verbs, "tables", "list every table, or the columns of one", "kernelsight.cli.tables")
    verb.add_argument("table", nargs="?", metavar="TABLE", help="show its columns with type, unit and description")
    _out(verb, "also write what is listed: .parquet, .csv, .json")
    verb.set_defaults(action="tables")


def _explain(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(verbs, "explain", "show the nodes that would run for a table, in order", "kernelsight.cli.tables")
    verb.add_argument("table", metavar="TABLE")
    verb.add_argument(
        "--format", choices=("text", "table", "json", "csv", "mermaid"), default="text", help="mermaid draws the graph"
    )
    verb.add_argument("-o", "--output", metavar="FILE", help="also write the nodes: .parquet, .csv, .json")
    verb.set_defaults(action="explain")


def _sql(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(verbs, "sql", "run a DuckDB query over given and derived tables", "kernelsight.cli.tables")
    verb.add_argument("query", metavar="QUERY", help="one query; the derived tables that it names are computed")
    verb.add_argument("--db", metavar="FILE", help="a saved run, opened read-only")
    verb.add_argument("--gpus", metavar="FILE", help="CSV or JSON with GPUs beside the catalogue's")
    _out(verb, "also write the rows: .parquet, .csv, .json")
    verb.set_defaults(action="sql")


def _deployment(verb: argparse.ArgumentParser, required: tuple[str, ...]) -> None:
    group = verb.add_argument_group(
        "deployment (flags as vLLM spells them; what is left open takes the engine's default)"
    )
    add_flags(group, flags.DEPLOYMENT, required)
    _kernel_model(group)
    add_flags(verb.add_argument_group("engine limits"), flags.LIMITS)
    add_flags(verb.add_argument_group("scheduling policies"), flags.POLICIES)
    add_flags(verb.add_argument_group("speculative decoding"), flags.SPECULATION)


def _kernel_model(verb: argparse._ActionsContainer) -> None:
    verb.add_argument(
        "--gpus", metavar="FILE", help="CSV or JSON with GPUs beside the catalogue's: hypothetical hardware is a row"
    )
    verb.add_argument("--pack", metavar="FILE", help="kernel model of calibrate fit; left open: the one that ships")
    verb.add_argument("--host-overheads", metavar="FILE", help="CSV or JSON with rows of host_overheads for an engine")


def _predict(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "predict",
        "predict one forward step, kernel by kernel, or a table of kernel calls",
        "kernelsight.cli.predict",
    )
    _deployment(verb, required=("gpu",))
    step = verb.add_argument_group("step")
    step.add_argument("--phase", choices=("prefill", "decode", "mixed"), help="left open: decode")
    step.add_argument(
        "--batch-size", type=int, metavar="B", help="sequences (mixed: decodes beside one chunk); left open: 1"
    )
    step.add_argument("--input-len", "--isl", type=int, metavar="L", help="new tokens of each prompt, or of the chunk")
    step.add_argument(
        "--context-len", type=int, metavar="C", help="tokens in the cache of each sequence; a decode needs it"
    )
    step.add_argument("--calls", metavar="FILE", help="instead of a step: a Parquet table of kernel calls")
    _out(verb, "also write the kernels: .parquet, .csv, .json, .duckdb")


def _simulate(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "simulate",
        "serve a load, and tell what a benchmark client would see and where the GPU time went",
        "kernelsight.cli.simulate",
    )
    _deployment(verb, required=("model", "gpu"))
    pools = verb.add_argument_group("disaggregated serving (the flags above are those of engines that decode)")
    add_flags(pools, (*flags.POOLS, *flags.PREFILL))
    load = verb.add_argument_group("load")
    add_flags(load, flags.LOAD)
    add_flags(verb.add_argument_group("lengths"), flags.LENGTHS)
    add_flags(verb.add_argument_group("router (in front of data-parallel replicas)"), flags.ROUTER)
    load.add_argument("--goodput", nargs="+", metavar="METRIC:MS", help="objectives: ttft:MS tpot:MS e2el:MS")
    load.add_argument("--keep", nargs="+", choices=("steps",), help="keep one row per engine iteration")
    _out(verb, "also keep the run (.duckdb), or its request_metrics (.parquet, .csv, .json)")


def _sweep(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "sweep",
        "simulate every scenario of a grid; SLOs, Pareto front, highest rates",
        "kernelsight.cli.sweep",
    )
    verb.add_argument(
        "grid",
        metavar="GRID",
        help="JSON file of axes (flags of simulate with underscores, each a scalar or a list), Parquet or CSV table of "
        "scenarios, or a SQL query; price_per_gpu_hour may stand beside the flags",
    )
    _kernel_model(verb)
    verb.add_argument(
        "--goodput", nargs="+", metavar="METRIC:MS", help="objectives of requests: ttft:MS tpot:MS e2el:MS"
    )
    verb.add_argument(
        "--slo", nargs="+", metavar="METRIC:MS", help="objectives of scenarios, such as ttft_p99:MS tpot_mean:MS"
    )
    verb.add_argument("--resume", action="store_true", help="go on with the finished partitions beside -o FILE")
    verb.add_argument("--workers", type=int, default=1, metavar="N", help="processes; left open: threads of this one")
    verb.add_argument("--executor", choices=("local", "ray"), default="local")
    verb.add_argument("--partition-requests", type=int, metavar="N", help="requests that are served and kept at once")
    verb.add_argument("--find-rate", action="store_true", help="the highest request rate of each row that keeps --slo")
    verb.add_argument(
        "--at-rate", type=float, metavar="R", help="with --find-rate and prices: the cheapest for R requests per second"
    )
    _out(verb, "also keep the rows: .parquet, .csv, .json, .duckdb")


def _calibrate(verbs: argparse._SubParsersAction) -> None:
    group = verbs.add_parser("calibrate", help="measured kernels: import them, fit the kernel model to them, score it")
    parts = group.add_subparsers(dest="part", metavar="PART", required=True, parser_class=_Parser)
    verb = _verb(
        parts, "import", "read published sweeps into the table sweep_points", "kernelsight.cli.calibrate.import_sweeps"
    )
    verb.add_argument("source", metavar="SOURCE", help="aiconfigurator, neusight, vidur, llmservingsim or parquet")
    verb.add_argument("path", nargs="?", metavar="PATH", help="left open: the installed package of the source")
    verb.add_argument("--gpus", metavar="A,B", help="only these GPUs; left open: all")
    verb.add_argument("--families", metavar="F,G", help="only these kernel families; left open: all")
    _out(verb, "the sweep: .parquet")
    verb = _verb(
        parts,
        "measure",
        "time kernels of a suite on the running GPU, into sweep_points",
        "kernelsight.cli.calibrate.measure",
    )
    measure.add_flags(verb)
    _out(verb, "the sweep: .parquet (needed); its journal, to resume by, is kept beside it")
    verb = _verb(
        parts,
        "device",
        "show what the running GPU tells of itself, beside the catalogue",
        "kernelsight.cli.calibrate.device",
    )
    measure.add_device_flags(verb)
    _out(verb, "a row for --gpus: .json")
    verb = _verb(
        parts,
        "plan",
        "write the suite that lowers the expected error most in some minutes",
        "kernelsight.cli.calibrate.plan",
    )
    verb.add_argument("--gpu", required=True, metavar="G", help="the GPU that will be measured")
    verb.add_argument("--minutes", type=float, default=5.0, metavar="MIN", help="time of the suite; left open: 5")
    verb.add_argument("--models", metavar="A,B", help="models whose kernels count; left open: four of the catalogue")
    verb.add_argument(
        "--attention",
        metavar="LIB",
        help="flashinfer, flash_attention_vllm or torch_sdpa, as installed on that GPU; left open: flashinfer",
    )
    verb.add_argument("--gpus", metavar="FILE", help="CSV or JSON with GPUs beside the catalogue's")
    verb.add_argument("--pack", metavar="FILE", help="kernel model of calibrate fit; left open: the one that ships")
    _out(verb, "the suite: .json")
    verb = _verb(parts, "fit", "fit the kernel model to measured kernels", "kernelsight.cli.calibrate.fit")
    _sweeps(verb, "GPUs to fit on; left open: every one that the sweeps hold")
    verb.add_argument("--gpus", metavar="FILE", help="CSV or JSON with GPUs beside the catalogue's")
    _out(verb, "the pack: .parquet")
    verb = _verb(
        parts, "evaluate", "fit without some GPUs and score the model on them", "kernelsight.cli.calibrate.evaluate"
    )
    _sweeps(verb, "GPUs to fit on; left open: a100_sxm,l40s,h100_sxm,h200_sxm")
    verb.add_argument("--test-gpus", metavar="C", required=True, help="GPUs that are predicted and scored")
    verb.add_argument(
        "--tier",
        choices=("cross-generation", "target-measured"),
        help="left open: target-measured where a budget is given",
    )
    verb.add_argument(
        "--budget", type=float, metavar="SHARE", help="share of the test GPU's shape sites that is measured"
    )
    verb.add_argument("--final", action="store_true", help="score GPUs that are held back for one final check")
    _out(verb, "also write the report: .json, .csv, .parquet")


def _sweeps(verb: argparse.ArgumentParser, train_help: str) -> None:
    verb.add_argument(
        "--sweep", nargs="+", required=True, metavar="S", help="Parquet files as calibrate import and measure write"
    )
    verb.add_argument("--train-gpus", metavar="A,B", help=train_help)
    verb.add_argument("--families", metavar="F,G", help="only these kernel families; left open: all")


def _backtest(verbs: argparse._SubParsersAction) -> None:
    verb = _verb(
        verbs,
        "backtest",
        "simulate measured end-to-end runs as they were run; score them",
        "kernelsight.cli.backtest",
    )
    verb.add_argument(
        "--runs",
        required=True,
        metavar="FILE",
        help="aiconfigurator (those of the installed aiconfigurator-core), or a .csv or .parquet of measured_runs",
    )
    verb.add_argument("--tier", choices=flags.TIERS, help="which kernel model answers")
    verb.add_argument("--pack", metavar="FILE", help="kernel model of calibrate fit; left open: the one that ships")
    verb.add_argument(
        "--constants",
        default="shipped",
        metavar="LEVEL[,LEVEL]",
        help="host time: shipped (as the catalogue has it), none, or fitted now on a fifth of the runs, which is not "
        "scored: version (by row of host_overheads), group (its own, with a factor on its kernels), transfer (on the "
        "other groups of its version); of several, the first is reported in full",
    )
    verb.add_argument("--against", choices=("aiconfigurator",), help="score that tool on the same runs, beside")
    verb.add_argument("--plot", metavar="FILE", help="predicted against measured, error against load: .svg .png .html")
    _out(verb, "also write the report (.json), or one row a run (.parquet, .csv)")


def main(words: list[str] | None = None) -> int:
    """Run one command; return 0 done, 1 the run failed, 2 the words or the input were wrong."""
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
        if str(error) != "Query interrupted":  # so DuckDB passes Ctrl-C on
            raise
        return _stopped()
    except BrokenPipeError:
        _silence_stdout()  # its reader has what it wanted
        return 0
    except OSError as error:
        _silence_stdout()
        what = f"{error.filename} could not be read or written" if error.filename else "the answer could not be written"
        print(f"kernelsight: {what}: {error.strerror}.", file=sys.stderr)
        return 1
    except MemoryError:
        print("kernelsight: the memory is full; ask for fewer rows at once.", file=sys.stderr)
        return 1
    return 0


def _unknown_words(arguments: argparse.Namespace, strange: list[str]) -> KernelSightError:
    """Build the refusal of the first word that the verb does not take, with the nearest flags."""
    flag = next((word for word in strange if word.startswith("-")), strange[0]).partition("=")[0]
    known = [name for action in arguments.flags._actions for name in action.option_strings]
    kind = "flag" if flag.startswith("-") else "argument"
    return unknown(kind, flag, known if kind == "flag" else (), f"`{arguments.flags.prog} --help` lists what it takes.")


def _open_streams() -> None:
    """Make stdout and stderr usable where the shell closed them, and where they cannot spell every letter."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the program ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _silence_stdout() -> None:
    # what Python still holds for stdout would fail again at exit
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped() -> int:
    print("kernelsight: stopped; no file was left half written.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
