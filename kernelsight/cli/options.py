"""Options shared by several verbs, the session that they describe, and the printing of a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.errors import InvalidInput
from kernelsight.files.numbers import read_number
from kernelsight.scenario import flags
from kernelsight.scenario.flag import Flag
from kernelsight.scenario.flags import DEPLOYMENT_FLAGS, DRAFT_FLAGS, POOL_FLAGS, PREFILL_FLAGS, SHORTHANDS

if TYPE_CHECKING:
    import pyarrow as pa

    from kernelsight.scenario.launch.lines import LaunchLine
    from kernelsight.session import Session

FORMATS = ("table", "json", "csv")
TABLE_ENDINGS = (".parquet", ".csv", ".json")


def open_session(arguments: Any) -> Session:
    """Return an in-memory session with the rows of --gpus, --host-overheads and --pack."""
    from kernelsight.present.output import note, progress
    from kernelsight.scenario.given_facts import extend_gpus, give_host_overheads
    from kernelsight.session import connect

    session = connect(files=not getattr(arguments, "no_files", False))
    session.progress = progress
    if getattr(arguments, "gpus", None):
        path = Path(arguments.gpus)
        for name in extend_gpus(session, path):
            note(f"{path.name}: its row {name} replaces the catalogue GPU of that name")
    if getattr(arguments, "host_overheads", None):
        give_host_overheads(session, Path(arguments.host_overheads))
    if getattr(arguments, "pack", None):
        from kernelsight.kernels.pack import read_pack, with_assumed

        session.give("eta_coefficients", with_assumed(read_pack(Path(arguments.pack))))
    return session


def deployment_flags(arguments: Any) -> dict[str, Any]:
    """Return the deployment flags of parsed arguments that are set."""
    names = [*SHORTHANDS, *DEPLOYMENT_FLAGS, *DRAFT_FLAGS, *PREFILL_FLAGS, *POOL_FLAGS, "enable_expert_parallel"]
    return {name: value for name in names if (value := getattr(arguments, name, None)) is not None}


def launch_line(arguments: Any, flags_beside: Mapping[str, Any]) -> LaunchLine | None:
    """Return the launch line of --launch, or None; notes after the answer list how its words were read.

    ``flags_beside``: explicit flags, which override the line.
    """
    if getattr(arguments, "launch", None) is None:
        return None
    from kernelsight.present.output import is_verbose, note_afterwards
    from kernelsight.scenario.launch.lines import read_launch_line

    line = read_launch_line(arguments.launch, bool(arguments.read_launch_files)).overridden_by(flags_beside)
    note_afterwards(line.notes() if is_verbose() else line.short_notes())
    return line


class _Once(argparse.Action):
    """Stores the value of an option that may be given once; a second one is an error, not a replacement."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, _: Any = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{self.option_strings[0]} is given twice; give one line, which states one deployment")
        setattr(namespace, self.dest, value)


class _Joined(argparse.Action):
    """Joins the values of a repeatable option by a plus sign."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, _: Any = None
    ) -> None:
        earlier = getattr(namespace, self.dest)
        setattr(namespace, self.dest, value if earlier is None else f"{earlier}+{value}")


def whole_number(text: str) -> int:
    """Read a whole number, also as 16k (16,000) or 16K (16,384), as vLLM does."""
    number = read_number(text)
    if not isinstance(number, int):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


def add_flags(group: argparse._ActionsContainer, added: tuple[Flag, ...]) -> None:
    """Add flags to a parser as options; an unset one is None."""
    for flag in added:
        how: dict[str, Any] = {"dest": flag.name, "help": (flag.help or "").replace("%", "%%")}
        if flag.kind == "switch":
            how |= {"action": argparse.BooleanOptionalAction, "default": None}
        elif flag.kind == "yes":
            how |= {"action": "store_true", "default": None}
        else:
            how["metavar"] = flag.metavar
            if flag.kind == "whole":
                how["type"] = whole_number
            elif flag.choices:
                how["choices"] = flag.choices
            elif flag.kind == "tiers":
                how["action"] = _Joined
            elif flag.kind not in ("text", "version", "weights"):
                how["type"] = float
        if flag.name == "launch":
            how["action"] = _Once
        option = group.add_argument(*flag.options, **how)
        option.everyday = flag.everyday


def add_output(verb: argparse.ArgumentParser, file_help: str, formats: tuple[str, ...] = FORMATS) -> None:
    """Add --format and -o; the first of ``formats`` is the default."""
    verb.add_argument("--format", choices=formats, default=formats[0], help="output format on stdout")
    verb.add_argument("-o", "--output", metavar="FILE", help=file_help)


def add_deployment(verb: argparse.ArgumentParser) -> None:
    """Add the flags of one deployment, its limits and policies included."""
    group = verb.add_argument_group("deployment (flag names as in vLLM; unset flags take the engine's defaults)")
    add_flags(group, flags.DEPLOYMENT)
    add_kernel_model(group)
    add_flags(verb.add_argument_group("engine limits"), flags.LIMITS)
    add_flags(verb.add_argument_group("scheduling policies"), flags.POLICIES)
    add_flags(verb.add_argument_group("speculative decoding"), flags.SPECULATION)


def add_kernel_model(verb: argparse._ActionsContainer) -> None:
    """Add the files that replace shipped facts: --gpus, --pack, --host-overheads."""
    add_gpus(verb)
    add_pack(verb)
    verb.add_argument(
        "--host-overheads", metavar="FILE", help="CSV or JSON with host times of an engine (table host_overheads)"
    )


def add_gpus(verb: argparse._ActionsContainer) -> None:
    """Add --gpus."""
    verb.add_argument("--gpus", metavar="FILE", help="CSV or JSON with additional GPUs, such as hypothetical hardware")


def add_pack(verb: argparse._ActionsContainer) -> None:
    """Add --pack."""
    verb.add_argument(
        "--pack", metavar="FILE", help="fitted kernel model from `calibrate fit` (default: the one shipped)"
    )


def add_no_files(verb: argparse._ActionsContainer) -> None:
    """Add --no-files."""
    verb.add_argument("--no-files", action="store_true", help="a query may read no local files")


def add_goodput(verb: argparse._ActionsContainer) -> None:
    """Add --goodput."""
    verb.add_argument(
        "--goodput", nargs="+", metavar="METRIC:MS", help="objectives per request: ttft:MS tpot:MS e2el:MS"
    )


def add_correction(verb: argparse._ActionsContainer) -> None:
    """Add --correction."""
    verb.add_argument(
        "--correction", metavar="FILE", help="corrections (.parquet) that `compare` fitted to a log of this deployment"
    )


def add_sweeps(verb: argparse.ArgumentParser, train_help: str, few_help: str | None = None) -> None:
    """Add --sweep, --train-gpus and --families; with ``few_help`` also --few, an alternative to --sweep."""
    files = verb.add_mutually_exclusive_group(required=True) if few_help else verb
    requirement = {} if few_help else {"required": True}
    files.add_argument(
        "--sweep",
        nargs="+",
        metavar="S",
        help="Parquet files written by `calibrate import` or `calibrate measure`",
        **requirement,
    )
    if few_help:
        files.add_argument("--few", nargs="+", metavar="S", help=few_help)
    verb.add_argument("--train-gpus", metavar="A,B", help=train_help)
    add_families(verb)


def add_families(verb: argparse.ArgumentParser) -> None:
    """Add --families."""
    verb.add_argument("--families", metavar="F,G", help="only these kernel families (default: all)")


def add_device(verb: argparse.ArgumentParser) -> None:
    """Add the flags that select the local GPU."""
    verb.add_argument("--gpu", metavar="G", help="catalogue name of this GPU (default: detected)")
    verb.add_argument("--device", type=int, default=0, metavar="N", help="CUDA device index (default: 0)")


def show_table(table: pa.Table, arguments: argparse.Namespace, written: bool = False) -> None:
    """Print a table in the format of --format, and write it to -o unless it is already ``written``."""
    from kernelsight.dataflow.rows import python_rows
    from kernelsight.present.output import check_ending, print_rows, write_table

    target = None if written else check_ending(arguments.output, TABLE_ENDINGS)
    if target:
        write_table(table, target)
    form = arguments.format if arguments.format in ("json", "csv") else "table"
    print_rows(python_rows(table), table.column_names, form)


def open_saved(path: str) -> Session:
    """Return a session on a saved run, opened read-only; InvalidInput: no path, or no saved run there."""
    from kernelsight.session import connect

    if not path:
        raise InvalidInput("the path of the saved run is empty; give a .duckdb file.")
    return connect(path, read_only=True)
