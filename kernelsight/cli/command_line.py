"""The parser of the command line, made from what ``verbs.json`` and the contracts of questions declare.

``verbs.json`` states each verb's help, its options in order, and what is shared: ``TABLE.GROUP`` stands for options of
a table's contract, a word for options that verbs share, an object for one option of its own. Options without a group
stand below the heading of those before them. A verb with neither options nor module is a group of verbs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from kernelsight import laboratory
from kernelsight.escape import visible
from kernelsight.files.numbers import read_number
from kernelsight.files.own import own_json, own_text
from kernelsight.scenario.flag import Flag, flag_of, options_of
from kernelsight.version import VERSION

_DECLARED = own_json(own_text(Path(__file__).parent / "verbs.json"))
VERBS: dict[str, dict[str, Any]] = _DECLARED["verbs"]
FORMATS = ("table", "json", "csv")
# tables whose options are checked where scenarios are planned, as those of a grid are
PLANNED = ("deployments", "scenarios")


def module_of(verb: str) -> str | None:
    """Return the module whose run() executes a verb; None: the verb is a group of the verbs that begin with its name.

    >>> module_of("calibrate fit"), module_of("calibrate")
    ('kernelsight.cli.calibrate.fit', None)
    """
    declared = VERBS[verb]
    own = f"kernelsight.cli.{verb.replace(' ', '.')}" if "options" in declared else None
    return declared.get("module", own)


def is_of_laboratory(verb: str) -> bool:
    """Return whether a verb's module lies in the laboratory, which only a checkout holds."""
    return (module_of(verb) or "").startswith(laboratory.__name__)


@cache
def flags_of_verb(verb: str) -> tuple[tuple[str, Flag], ...]:
    """Return the options of a verb in order, each with the table that declares it, or "" where none does."""
    return tuple(_flags(VERBS[verb].get("options", ())))


def _flags(items: Iterable[Any]) -> Iterator[tuple[str, Flag]]:
    for item in items:
        named = {"of": item} if isinstance(item, str) else item
        if "of" not in named:
            yield "", flag_of(named)
        elif "." not in named["of"]:
            yield from _flags(_DECLARED["shared"][named["of"]])
        else:
            table, _, group = named["of"].partition(".")
            for flag in options_of(table)[group]:
                if flag.name in named.get("only", (flag.name,)) and flag.name not in named.get("without", ()):
                    yield table, flag


class _Parser(argparse.ArgumentParser):
    def format_help(self) -> str:
        """Return the help; of a verb with flags that are not everyday ones, without these and with their number."""
        rare = [action for action in self._actions if not getattr(action, "everyday", True)]
        if not rare:
            return super().format_help()
        texts, usage = [action.help for action in rare], self.usage
        for action in rare:
            action.help = argparse.SUPPRESS
        self.usage = f"{self.prog} [flags]"
        try:
            return f"{super().format_help()}\n--help-all shows {len(rare)} more flags.\n"
        finally:
            self.usage = usage
            for action, text in zip(rare, texts, strict=True):
                action.help = text

    def format_help_of_all(self) -> str:
        """Return the help with all flags."""
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print one sentence for wrong arguments, and exit with status 2."""
        if self.prog.endswith(" compare") and message.endswith("required: --log"):
            message += " (kernels alone: `kernelsight predict --calls FILE --gpu NAME`)"
        print(f"kernelsight: {visible(message)}; `{self.prog} --help` shows the flags.", file=sys.stderr)
        sys.exit(2)


class _HelpOfAll(argparse.Action):
    """Prints the help of a verb with all of its flags, and ends."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        sys.stdout.write(cast(_Parser, parser).format_help_of_all())
        parser.exit()


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


class _Words(argparse.Action):
    """Joins the values of an option by semicolons."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, _: Any = None
    ) -> None:
        setattr(namespace, self.dest, ";".join(value))


def _whole_number(text: str) -> int:
    """Read a whole number, also as 16k (16,000) or 16K (16,384), as vLLM does."""
    number = read_number(text)
    if not isinstance(number, int):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}")
    return number


def parser(words: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line; with ``words`` of a command, only the verb that they name has arguments.

    No verb's module is imported, which keeps the start of a command short.
    """
    top = _Parser(
        prog="kernelsight",
        description="Predict the latency of every GPU kernel of an LLM forward pass, and simulate serving from it.",
        epilog="`kernelsight help VERB` shows the flags of a verb.",
    )
    top.add_argument("--version", action="version", version=f"kernelsight {VERSION}")
    verbs = {"": top.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)}
    command = None if words is None else [word for word in words if not word.startswith("-")]
    verb_words = command if words and not words[0].startswith("-") else None
    for name, declared in VERBS.items():
        if not _may_be_meant(name, verb_words or []) or (is_of_laboratory(name) and not laboratory.is_here()):
            continue
        group, _, short = name.rpartition(" ")
        text, module = declared["help"], module_of(name)
        how = {"help": text, "description": text[0].upper() + text[1:] + "."}
        if module is None:
            subverbs = verbs[group].add_parser(short, **how)
            verbs[name] = subverbs.add_subparsers(dest="part", metavar="PART", required=True, parser_class=_Parser)
            continue
        verb = verbs[group].add_parser(short, **how, epilog=declared.get("epilog"), allow_abbrev=False)
        verb.set_defaults(module=module, flags=verb)
        verbosity = verb.add_mutually_exclusive_group()
        verbosity.add_argument("-q", "--quiet", action="store_true", help="print results and errors alone")
        verbosity.add_argument("-v", "--verbose", action="store_true", help="report each computed table on stderr")
        if command is None or command[: len(name.split())] == name.split():
            _declare(verb, name)
    return top


def _may_be_meant(verb: str, words: Sequence[str]) -> bool:
    """Return whether words begin with a verb or with its group; without words, any verb may be meant."""
    return all(verb_word == word for verb_word, word in zip(verb.split(), words, strict=False))


def _declare(verb: argparse.ArgumentParser, name: str) -> None:
    """Add the options of a verb to its parser, those of the laboratory too."""
    declared = VERBS[name]
    headings = _DECLARED["headings"] | declared.get("headings", {})
    groups: dict[str, Any] = {"options": verb}
    exclusive: Any = None
    group: Any = verb
    for table, flag in (*flags_of_verb(name), *(("", flag_of(option)) for option in laboratory.options(name))):
        if flag.kind == "yes" and table not in PLANNED:
            flag = flag._replace(default=False)
        if flag.group:
            heading = headings.get(flag.group, flag.group)
            group = groups.get(heading) or groups.setdefault(heading, verb.add_argument_group(heading))
        if flag.either and exclusive is None:
            exclusive = group.add_mutually_exclusive_group(required=flag.either == "required")
        add_flags(exclusive if flag.either else group, (flag,))
    if "output" in declared:
        add_output(verb, declared["output"], declared.get("formats", FORMATS), declared.get("format_help"))
    if name in laboratory.OPTIONS and not laboratory.is_here():
        defaults = laboratory.OPTIONS[name].items()
        verb.set_defaults(**{flag.strip("-").replace("-", "_"): value for flag, value in defaults})
    if any(not getattr(action, "everyday", True) for action in verb._actions):
        verb.add_argument("--help-all", action=_HelpOfAll, nargs=0, help="show all flags and exit")


def add_flags(group: Any, added: Iterable[Flag]) -> None:
    """Add flags to a parser as options; one that is not given has its default, or is None."""
    for flag in added:
        how: dict[str, Any] = {"help": (flag.help or "").replace("%", "%%"), "default": flag.default}
        if flag.kind == "switch":
            how["action"] = argparse.BooleanOptionalAction
        elif flag.kind == "yes":
            how["action"] = "store_true"
        else:
            how |= {"metavar": flag.metavar, "type": {"whole": _whole_number, "number": float}.get(flag.kind)}
            how |= {"choices": flag.choices} if flag.choices and flag.kind != "whole" else {}
            how |= {"nargs": "*" if flag.required is False else "+"} if flag.many else {}
            how |= {"nargs": "?"} if flag.positional and flag.required is False and not flag.many else {}
            if flag.kind == "words":
                how |= {"nargs": "+", "action": _Words}
            elif flag.kind == "tiers" or flag.name == "launch" or flag.repeated:
                how["action"] = _Joined if flag.kind == "tiers" else "append" if flag.repeated else _Once
        if flag.positional:
            option = group.add_argument(flag.name, **how)
        else:
            option = group.add_argument(*flag.options, dest=flag.name, required=bool(flag.required), **how)
        option.everyday = flag.everyday


def add_output(
    verb: argparse.ArgumentParser, file_help: str, formats: Sequence[str] = FORMATS, format_help: str | None = None
) -> None:
    """Add -o, and --format where there are ``formats``, of which the first is the default."""
    if formats:
        text = format_help or "output format on stdout"
        verb.add_argument("--format", choices=tuple(formats), default=formats[0], help=text)
    verb.add_argument("-o", "--output", metavar="FILE", help=file_help)


def asked(arguments: argparse.Namespace, table: str) -> dict[str, Any]:
    """Return the values of the options that a table's contract declares, by their names; without those not given."""
    flags = [flag for group in options_of(table).values() for flag in group]
    return {flag.name: value for flag in flags if (value := getattr(arguments, flag.name, None)) is not None}


# verbs that are a method of a session, with the options that are its parameters though no table declares them
METHODS = {"simulate": (), "size": (), "upgrade": (), "compare": ()}
METHODS["predict"] = ("phase", "batch_size", "input_len", "context_len")
# options that say what to write, not what to compute
OF_OUTPUT = ("keep", "advise", "write_launch", "metrics_out")


def python_call(arguments: argparse.Namespace) -> str:
    """Return Python code that computes what a command did; "" where the verb, or an option given, has no keyword."""
    verb, given = arguments.flags.prog.partition(" ")[2], {}
    for table, flag in flags_of_verb(verb) if verb in METHODS else ():
        value = getattr(arguments, flag.name, None)
        if value in (None, False, flag.default) or flag.name in OF_OUTPUT:
            continue
        if not table and flag.name not in METHODS[verb]:
            return ""
        given[flag.name] = value
    keywords = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return f"import kernelsight as ks\n\nanswer = ks.connect().{verb}({keywords})" if given else ""


def check_options(arguments: argparse.Namespace, verb: str) -> None:
    """Raise InvalidInput for an option of a verb out of its range; those of scenarios are checked with their plan."""
    from kernelsight.scenario.flag_values import checked_value, has_range

    for table, flag in flags_of_verb(verb):
        value = getattr(arguments, flag.name, None)
        if value is not None and has_range(flag) and table not in PLANNED:
            checked_value(flag, value, flag.options[0])
