"""Splits shell text into the words of its commands, and joins them back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from kernelsight.errors import InvalidInput

# most characters of a text; an argument of a Linux command has at most 131,072 bytes (execve(2): MAX_ARG_STRLEN)
MOST_CHARACTERS = 2**18
_COMMENT = re.compile(r"(^|\s)#(\s|!|$).*")
_COMMENT_LINE = re.compile(r"^([ \t]*#[ \t!].*?)\\+$", re.MULTILINE)
_NAME_EQUALS = re.compile(r"(--?[A-Za-z][\w.+-]*|[A-Za-z_]\w*)=")  # an option or variable, up to its value
_STREAM = re.compile(r"(?<=\s)\d(?=>)")  # the 2 of 2>&1


def split_commands(text: str) -> Iterator[list[str]]:
    """Split a shell text into its simple commands, each a list of words, without redirections.

    InvalidInput: a quotation is not closed, or the text is too long.
    """
    if len(text) > MOST_CHARACTERS:
        raise InvalidInput(
            f"the launch line has {len(text):,} characters; give the command of the server alone, {MOST_CHARACTERS:,} "
            "at most."
        )
    text = _COMMENT_LINE.sub(r"\1", text.replace("\r\n", "\n"))  # no backslash continues a comment
    lines = text.replace("\\\n", " ").split("\n")
    lexer = shlex.shlex(
        "\n".join(_STREAM.sub("", _COMMENT.sub("", line)) for line in lines), posix=True, punctuation_chars=";&|<>\n"
    )
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    words: list[str] = []
    skip = False
    try:
        for word in lexer:
            if word and set(word) <= set(";&|<>\n"):
                skip = bool(set(word) & set("<>"))
                if not skip:
                    yield words
                    words = []
            elif skip:
                skip = False
            else:
                words.append(word)
    except ValueError as error:  # no closing quotation, or nothing after the last backslash
        raise InvalidInput(f"the launch line cannot be split into words: {str(error).lower()}; close it.") from None
    yield words


def join_commands(commands: Iterable[Sequence[str]]) -> str:
    """Join commands to one line of quoted shell text, which splits into the same words."""
    return "; ".join(" ".join(map(_quoted, words)) for words in commands if words)


def _quoted(word: str) -> str:
    match = _NAME_EQUALS.match(word)
    end = match.end() if match else 0
    return word[:end] + shlex.quote(word[end:])
