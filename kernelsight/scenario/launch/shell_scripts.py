"""Reads a shell script as far as launches need it: variables, arrays, and files that it writes. Nothing is run."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kernelsight.errors import InvalidInput
from kernelsight.files.shell_words import MOST_CHARACTERS, split_commands
from kernelsight.scenario.launch.programs import program_of_words
from kernelsight.scenario.launch.variables import expanded, expanded_words

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_DECLARATIONS = ("export", "set", "declare", "local", "readonly", "typeset")
_KEYWORDS = ("if", "then", "else", "elif", "fi", "case", "esac", "do", "{", "!")
_ARRAY_START = re.compile(r"^\s*(?:(?:export|declare|local|readonly|typeset)\s+(?:-\w+\s+)*)?\w+\+?=\(")
_ALL_ITEMS = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_ONE_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_TARGET = re.compile(r">>?\s*[\"']?([^\s\"'<>|;&]+)|\btee\s+(?:-a\s+)?[\"']?([^\s\"'<>|;&]+)")
_ARITHMETIC = re.compile(r"\$\(\([^()\n]{1,100}\)\)")
_SET_DEFAULT = re.compile(r"\$\{(\w+):?=([^{}$]{1,300})\}")
_COMMENT = re.compile(r"(^|\s)#.*")


class Script:
    """The state of a script while its commands are read.

    ``environment``: variables that its programs see; ``variables``: all of them; ``written``: the files that it writes,
    and whether variables are filled in; ``conditional``: assignments within conditions, which are taken to hold.
    """

    def __init__(self, environment: Mapping[str, str], variables: Mapping[str, str]) -> None:
        self.environment = dict(environment)
        self.variables = {**variables, **environment}
        self.arrays: dict[str, list[str]] = {}
        self.conditions = 0  # number of them around the command
        self.conditional: list[str] = []
        self.written: dict[str, tuple[str, bool]] = {}

    @property
    def files(self) -> dict[str, str]:
        """The texts that the script writes, by the name of the file."""
        return {
            name: expanded(text, self.variables) if filled else text for name, (text, filled) in self.written.items()
        }

    def commands(self, text: str) -> Iterator[list[str]]:
        """Yield the words of each command, variables filled in; InvalidInput: no shell text, or it becomes too long."""
        characters = MOST_CHARACTERS
        if len(text) <= MOST_CHARACTERS:  # otherwise it is refused below
            text = self._plain_lines(text)
        for words in split_commands(text):
            while words and words[0] in _KEYWORDS:
                self.conditions += {"if": 1, "case": 1, "fi": -1, "esac": -1}.get(words[0], 0)
                words = words[1:]
            for name, value in _SET_DEFAULT.findall(" ".join(words)):
                self.variables.setdefault(name, value)
            words = self._filled(words, characters)
            characters -= sum(map(len, words))
            if words:
                yield words

    def assigned(self, words: list[str]) -> tuple[dict[str, str], list[str]]:
        """Return (variables set before the program, the words from it on); a command that only sets is kept."""
        exported = words[0] in ("export", "declare", "typeset")
        if words[0] in _DECLARATIONS:
            words = list(itertools.dropwhile(lambda word: word.startswith("-"), words[1:]))
        if self.conditions and words and _ASSIGNMENT.match(words[0]):
            self.conditional.append(" ".join(words)[:80])
        if words and (match := _ASSIGNMENT.match(words[0])) and words[0][match.end() :].startswith("("):
            items = [words[0][match.end() + 1 :], *words[1:]]
            items[-1] = items[-1].removesuffix(")")
            before = self.arrays.get(match[1], []) if match[2] else []
            self.arrays[match[1]] = [*before, *filter(None, items)]
            return {}, []
        assigned, words = self.leading(words, self.variables)
        if not words:
            self.variables |= assigned
            names = [name for name in assigned if exported or name in self.environment]
            self.environment |= {name: assigned[name] for name in names}
        return assigned, words

    @staticmethod
    def leading(words: Sequence[str], before: Mapping[str, str] | None = None) -> tuple[dict[str, str], list[str]]:
        """Return (the variables that the first words set, the rest); ``before``: values that += adds to."""
        assigned: dict[str, str] = {}
        for count, word in enumerate(words):
            match = _ASSIGNMENT.match(word)
            if match is None:
                return assigned, list(words[count:])
            assigned[match[1]] = ((before or {}).get(match[1], "") if match[2] else "") + word[match.end() :]
        return assigned, []

    def _filled(self, words: Sequence[str], most: int) -> list[str]:
        """Return words with variables and arrays filled in; a variable of several options becomes several words."""
        found: list[str] = []
        for word in words:
            items, one = _ALL_ITEMS.fullmatch(word), _ONE_VARIABLE.fullmatch(word)
            value = self.variables.get(one[1], "") if one else ""
            if items and items[1] in self.arrays:
                found += self.arrays[items[1]]
            elif " " in value.strip() and (value.startswith("-") or program_of_words(value.split())):
                found += [inner for command in split_commands(value) for inner in command]
            else:
                found.append(_ALL_ITEMS.sub(lambda match: " ".join(self.arrays.get(match[1], [match[0]])), word))
            if len(found) + len(found[-1]) > most:
                raise InvalidInput("the arrays of the launch line make it too long; give its words alone.")
        return expanded_words(found, self.variables, most)

    def _plain_lines(self, text: str) -> str:
        """Return a script whose arrays are on one line each, without the files that it writes."""
        text = _ARITHMETIC.sub(lambda match: match[0].replace(" ", ""), text.replace("\r\n", "\n"))
        lines, kept, index = text.split("\n"), [], 0
        last = {line.strip(): number for number, line in enumerate(lines)}
        while index < len(lines):
            line, index = lines[index], index + 1
            heredoc, target = _HEREDOC.search(line), _TARGET.search(_HEREDOC.sub("", line))
            if heredoc and target and last.get(heredoc[2], -1) >= index:
                end = next(n for n in range(index, len(lines)) if lines[n].strip() == heredoc[2])
                name = Path(target[1] or target[2]).name
                self.written[name] = "\n".join(lines[index:end]) + "\n", not heredoc[1]
                index = end + 1
                continue
            if _ARRAY_START.match(line):
                parts = [_COMMENT.sub("", line).rstrip().removesuffix("\\")]
                while not parts[-1].rstrip().endswith(")") and index < len(lines):
                    parts.append(_COMMENT.sub("", lines[index]).rstrip().removesuffix("\\"))
                    index += 1
                line = " ".join(parts)
            kept.append(line)
        return "\n".join(kept)
