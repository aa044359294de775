"""The command line: parses arguments, runs one verb, prints one sentence per error; heavy imports are the verb's."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, cast

from kernelsight import laboratory
from kernelsight.cli.command_line import VERBS, check_options, is_of_laboratory, module_of, parser, python_call
from kernelsight.dataflow.signals import ending_signals
from kernelsight.errors import InvalidInput, KernelSightError, UnknownName, flags_in_errors, unknown
from kernelsight.escape import visible
from kernelsight.present.output import NORMAL, QUIET, VERBOSE, is_verbose, print_notes, set_verbosity

# what other tools, or words for the task, call a verb; without hyphens
KNOWN_AS = {"whatif": "sweep", "capacity": "size, or sweep --find-rate"}
# flags of other verbs and tools: what they are called here
SAME_FLAG = {
    **{"--users": ("--max-concurrency",), "--concurrency": ("--max-concurrency", "--users")},
    **{"--rate": ("--request-rate",), "--request-rate": ("--rate",), "--qps": ("--request-rate", "--rate")},
    **dict.fromkeys(("--goodput", "--ttft", "--tpot", "--itl", "--e2e"), ("--slo", "--goodput")),
    **dict.fromkeys(("--num-gpus", "--gpu-count"), ("--total-gpus", "--tensor-parallel-size")),
}


class _Undocumented:
    """Replaces Arrow's docstring parser, which it runs for 300 functions when it is imported."""

    @staticmethod
    def NumpyDocString(text: str) -> dict[str, Sequence[object]]:
        """Return no parameters."""
        return {"Parameters": ()}


class _Notes(logging.Handler):
    """Prints log records of the package as notes on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        print(visible(record.getMessage()), file=sys.stderr)


def main(words: list[str] | None = None) -> int:
    """Run one command; return 0 on success, 1 if the run failed, 2 for wrong arguments or input.

    A command that is ended by SIGTERM or SIGHUP returns 128 plus the signal's number.
    """
    if words is None:
        # matrix products of a command are small: BLAS threads on busy cores would wait longer than they compute
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # most objects of a command live to its end: collecting garbage every 700 of them takes a tenth of its time
        gc.set_threshold(100_000)
        sys.modules.setdefault("pyarrow.vendored.docscrape", cast(ModuleType, _Undocumented))
    with ending_signals() as ended, flags_in_errors():
        return ended.status(_run(sys.argv[1:] if words is None else words))


def _run(words: list[str]) -> int:
    """Run the command of ``words``, and return its exit status."""
    arguments = argparse.Namespace()
    if "_ARGCOMPLETE" in os.environ:
        importlib.import_module("kernelsight.cli.completion").complete()
    _open_streams()
    try:
        words = _with_help(words)
        if words[:1] == ["sweep"]:
            words = importlib.import_module("kernelsight.cli.grid_words").with_grid(words)
        arguments, unknown_words = parser(words).parse_known_args(words)
        log = logging.getLogger("kernelsight")
        log.handlers = [_Notes()]
        log.setLevel(logging.WARNING if arguments.quiet else logging.INFO)
        set_verbosity(QUIET if arguments.quiet else VERBOSE if arguments.verbose else NORMAL)
        if unknown_words:
            raise _unknown_words(arguments, unknown_words)
        _leave_pandas_out()
        _run_verb(arguments)
        sys.stdout.flush()
        print_notes()
    except KernelSightError as error:
        print_notes()
        hint = " (--verbose lists what is read)" if error.details and not is_verbose() else ""
        print(f"kernelsight: {error}{hint}", file=sys.stderr)
        if error.details and is_verbose():
            print(visible(error.details), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return _stopped(arguments)
    except BrokenPipeError:
        _silence_stdout()  # the reader closed the pipe
        return 0
    except OSError as error:
        _silence_stdout()
        problem = (
            f"{error.filename} could not be read or written" if error.filename else "the output could not be written"
        )
        print(f"kernelsight: {visible(problem)}: {error.strerror}.", file=sys.stderr)
        return 1
    except MemoryError:
        print("kernelsight: out of memory; request fewer rows at once.", file=sys.stderr)
        return 1
    return 0


def _run_verb(arguments: argparse.Namespace) -> None:
    """Run the verb of parsed arguments; KeyboardInterrupt: a signal ended it, whatever a library made of that."""
    try:
        check_options(arguments, arguments.flags.prog.partition(" ")[2])
        if (getattr(arguments, "output", None) or "").endswith(".html"):
            if arguments.module != "kernelsight.cli.report":  # which only reads and writes
                importlib.import_module("kernelsight.present.html.page").check_pages()  # before the work of the verb
            importlib.import_module("kernelsight.present.show").set_python(python_call(arguments))
        importlib.import_module(arguments.module).run(arguments)
    except Exception as error:
        from kernelsight.dataflow.databases import stop_if_interrupted

        stop_if_interrupted(error)
        raise


def _with_help(words: list[str]) -> list[str]:
    """Return the words of a command, ``help VERB`` rewritten as ``VERB --help``.

    UnknownName: there is no such verb. InvalidInput: a flag precedes the verb.

    >>> _with_help(["help", "calibrate", "fit"])
    ['calibrate', 'fit', '--help']
    """
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    flag = "".join(words[:1]).partition("=")[0]
    if flag.startswith("-") and flag not in ("-h", "--help", "--version"):
        raise InvalidInput(f"{flag} stands before the verb; give the verb first, such as `kernelsight simulate`.")
    verb_words = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    verb = " ".join(verb_words[:1])
    if verb in VERBS and module_of(verb) is None:
        verb = " ".join(verb_words[:2])  # of a group
    if verb and verb not in VERBS:
        raise _unknown_verb(verb)
    if verb and is_of_laboratory(verb):
        laboratory.check(f"`kernelsight {verb}`")
    return words


def _unknown_verb(verb: str) -> KernelSightError:
    """Build the error for a word that is no verb: a table, another name of a verb, or one with near names.

    >>> str(_unknown_verb("what-if"))
    "unknown verb 'what-if'. Use sweep."
    """
    from kernelsight.catalog.tables import contracts

    if known_as := KNOWN_AS.get(verb.replace("-", "").replace("_", "")):
        return UnknownName(f"unknown verb {verb!r}. Use {known_as}.")
    if verb in contracts():
        rows = f"Its rows: kernelsight sql 'from {verb}'."
        return UnknownName(f"unknown verb {verb!r}. It is a table: kernelsight tables {verb}. {rows}")
    return unknown("verb", verb, VERBS, "`kernelsight --help` lists them.")


class _NoPandas:
    """An import finder that makes pandas look as if it were not installed."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


class _NoMaskedArrays(ModuleType):
    """Stands for ``numpy.ma`` until that is imported: until then, no array is masked.

    Arrow and ``np.unique`` ask whether one is, which would import the module and, with it, the tokenizer.
    """

    MaskedArray = type("MaskedArray", (), {})
    is_masked = staticmethod(lambda values: False)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("numpy.ma"), name)


def _leave_pandas_out() -> None:
    """Keep Arrow from importing pandas, which no verb uses: its first array tries to, once."""
    import numpy as np
    import pyarrow as pa

    if "numpy.ma" not in sys.modules:
        np.__dict__["ma"] = _NoMaskedArrays("numpy.ma")

    if importlib.util.find_spec("dateutil") is None:
        # Arrow looks for it at each conversion of an array; this says that it is absent without a search of all folders
        sys.modules.setdefault("dateutil", cast(ModuleType, None))
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def _unknown_words(arguments: argparse.Namespace, words: list[str]) -> KernelSightError:
    """Build the error for the first argument that the verb does not accept, with the nearest flags."""
    flag = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
    options = [name for action in arguments.flags._actions for name in action.option_strings]
    kind = "flag" if flag.startswith("-") else "argument"
    if flag in laboratory.OPTIONS.get(arguments.flags.prog.partition(" ")[2], ()):
        laboratory.check(f"{flag} of `{arguments.flags.prog}`")
    engine_option = _engine_option(flag, getattr(arguments, "engine", None)) if "--launch" in options else None
    if engine_option:
        return InvalidInput(engine_option)
    if own := next((name for name in SAME_FLAG.get(flag, ()) if name in options), None):
        verbs = " and ".join(_verbs_with(flag))
        of = f"It is a flag of {verbs}; here it" if verbs else "Here it"
        return UnknownName(f"unknown flag {flag!r}. {of} is {own}.")
    return unknown(kind, flag, options if kind == "flag" else (), f"`{arguments.flags.prog} --help` lists them.")


def _verbs_with(flag: str) -> list[str]:
    """Return the verbs that take a flag."""
    (verbs,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    return [name for name, verb in verbs.choices.items() if flag in verb._option_string_actions]


def _engine_option(flag: str, engine: str | None) -> str | None:
    """Return advice on an option of a serving engine, that of the deployment first, which is no flag here, or None."""
    from kernelsight.scenario.flags import ENGINES, FLAGS, ON_COMMAND_LINE
    from kernelsight.scenario.launch.engine_options import options, spelled

    engines = sorted(ENGINES, key=lambda name: name != engine)
    option = next((option for name in engines if (option := options(name).get(spelled(flag)))), None)
    if option is None:
        return None
    if option.flag:
        own_option = FLAGS[ON_COMMAND_LINE.get(option.flag, option.flag)].options[-1]
        return (
            f"{flag} is an option of {option.engine}, called {own_option} here; use that, or give the whole line to "
            "--launch."
        )
    effect = "does not change times" if option.effect == "none" else "is not predicted"
    return f"{flag} is an option of {option.engine} that {effect}; leave it out, or give the whole line to --launch."


def _open_streams() -> None:
    """Make stdout and stderr usable where the shell closed them or their encoding lacks characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until the program ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def _silence_stdout() -> None:
    """Send further output nowhere: flushing Python's buffer at exit would fail again."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stopped(arguments: argparse.Namespace) -> int:
    """Print a sentence on the interruption, and how to resume where finished parts are kept; return exit status 1."""
    how = "no partial file was written"
    if getattr(arguments, "resume", None) is not None and getattr(arguments, "output", None):
        how = "what is finished is kept; the same command with --resume goes on"
    print(f"kernelsight: interrupted; {how}.", file=sys.stderr)
    # a library that was interrupted in Python code of its own has marked the interpreter to die of SIGINT at its end,
    # whatever is returned; to run any code that way takes the mark back
    importlib.import_module("ctypes").pythonapi.PyRun_SimpleString(b"")
    return 1


if __name__ == "__main__":
    sys.exit(main())
