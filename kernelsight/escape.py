"""Escaping of untrusted text for HTML, for scripts within HTML, for shells and for terminals.

Names come from files, logs and saved runs of others. Every writer escapes through these functions, so that a name can
neither become an element of a page, nor end its script, nor move the cursor of a terminal.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from kernelsight.number_format import number

# C0 and C1 controls; bidirectional marks and overrides (Unicode 16, UAX #9, table 4); line separators; surrogates
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_HIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTION}\u2028\u2029\ud800-\udfff]")
_HIDDEN_IN_LINES = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
# in the output of json.dumps these characters are within strings, except for the line ends of its indentation
_HIDDEN_IN_JSON = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", ""))
# HTML, 13.1.2: "restrictions for contents of script elements"
_MARKUP_IN_SCRIPT = re.compile("<(?=!--|/?script)", re.IGNORECASE)
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
_MARKUP_IN_JSON = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&"})


def visible(text: str) -> str:
    r"""Return a line of text for a terminal, control and bidirectional characters as Python escapes.

    >>> visible("h100\x1b[2J\n"), visible("\u202eh100"), visible("Ü × 名")
    ('h100\\x1b[2J\\n', '\\u202eh100', 'Ü × 名')
    """
    return _HIDDEN.sub(_as_python, text)


def visible_lines(text: str) -> str:
    r"""Return lines of text for a terminal, control and bidirectional characters as Python escapes, line ends kept.

    >>> visible_lines("two\nlines\x00")
    'two\nlines\\x00'
    """
    return _HIDDEN_IN_LINES.sub(_as_python, text)


def as_html(text: object) -> str:
    r"""Return text escaped for HTML, between tags or in a quoted attribute; control characters as Python escapes.

    >>> as_html("<b title='x'>&\x00"), as_html("two\nlines")
    ('&lt;b title=&#x27;x&#x27;&gt;&amp;\\x00', 'two\nlines')
    """
    return visible_lines(str(text)).translate(_HTML)


def html_table(sentence: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a sentence and a table as HTML, for notebooks; floats with four digits, None as an empty cell.

    >>> html_table("a < b", ["a"], [[1.23456]])
    '<p>a &lt; b</p><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1.235</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{as_html(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<p>{as_html(sentence)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def json_in_script(value: Any) -> str:
    r"""Return JSON for a script element, in which no string can begin or end an element; ValueError: NaN or infinity.

    >>> json_in_script({"gpu": "</script><!--\u2028"})
    '{"gpu": "\\u003c/script\\u003e\\u003c!--\\u2028"}'
    """
    return json.dumps(value, allow_nan=False).translate(_MARKUP_IN_JSON)


def script(text: str) -> str:
    r"""Return JavaScript for a script element, markup in its strings and patterns escaped.

    >>> script("x = '</SCRIPT><!--'; y = 1 <z")
    "x = '\\x3C/SCRIPT>\\x3C!--'; y = 1 <z"
    """
    return _MARKUP_IN_SCRIPT.sub(r"\\x3C", text)


def json_for_terminals(text: str) -> str:
    r"""Return equivalent JSON in which characters that a terminal interprets are escaped.

    >>> json_for_terminals('["\x9b2J \u202e Ü"]')
    '["\\u009b2J \\u202e Ü"]'
    """
    return _HIDDEN_IN_JSON.sub(_as_code_point, text)


def shell_line(words: Iterable[str]) -> str:
    r"""Return words as one shell line, quoted where needed: with $'...' for a word with control characters."""
    return " ".join(map(_shell_word, words))


def _shell_word(word: str) -> str:
    if not _HIDDEN.search(word):
        return shlex.quote(word)
    quoted = re.sub(r"[\\']", r"\\\g<0>", word)
    return f"$'{_HIDDEN.sub(_as_code_point, quoted)}'"


def _cell(value: Any) -> str:
    return number(value) if value is None or isinstance(value, float) else as_html(value)


def _as_code_point(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _as_python(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
