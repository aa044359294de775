"""Names and texts of others on their way out: into HTML, into a script of a page, onto a terminal.

Names come from files, logs and saved runs of others. Every writer escapes through these functions, so that a name can
neither become an element of a page, nor end its script, nor move the cursor of a terminal.
"""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

from kernelsight.number_format import number

# C0 and C1 controls; marks and overrides of direction (Unicode 16, UAX #9, table 4); separators of lines; surrogates
_DIRECTION = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
_HIDDEN = re.compile(f"[\x00-\x1f\x7f-\x9f{_DIRECTION}\u2028\u2029\ud800-\udfff]")
_HIDDEN_IN_LINES = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))
# in JSON that json.dumps wrote, these are within strings, except for the line ends of its indentation
_HIDDEN_IN_JSON = re.compile(_HIDDEN.pattern.replace("\x00-\x1f", ""))
# HTML, 13.1.2: "restrictions for contents of script elements"
_MARKUP_IN_SCRIPT = re.compile("<(?=!--|/?script)", re.IGNORECASE)
_MARKUP_IN_JSON = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&"})


def visible(text: str) -> str:
    r"""Return a line of text for a terminal: control characters and marks of direction as Python writes them.

    >>> visible("h100\x1b[2J\n"), visible("\u202eh100"), visible("Ü × 名")
    ('h100\\x1b[2J\\n', '\\u202eh100', 'Ü × 名')
    """
    return _HIDDEN.sub(_as_python, text)


def visible_lines(text: str) -> str:
    r"""Return lines of text: control characters and marks of direction as Python writes them, line ends kept.

    >>> visible_lines("two\nlines\x00")
    'two\nlines\\x00'
    """
    return _HIDDEN_IN_LINES.sub(_as_python, text)


def as_html(text: object) -> str:
    r"""Return a text for HTML, between tags or in a quoted attribute; control characters are made visible.

    >>> as_html("<b title='x'>&\x00"), as_html("two\nlines")
    ('&lt;b title=&#x27;x&#x27;&gt;&amp;\\x00', 'two\nlines')
    """
    return html.escape(visible_lines(str(text)))


def html_table(sentence: str, names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a sentence and a table as HTML, for notebooks; fractions with four digits, None as an empty cell.

    >>> html_table("a < b", ["a"], [[1.23456]])
    '<p>a &lt; b</p><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1.235</td></tr></tbody></table>'
    """
    head = "".join(f"<th>{as_html(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    return f"<p>{as_html(sentence)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def json_in_script(value: Any) -> str:
    r"""Return JSON for a script element, where no text can begin or end an element; ValueError: NaN or infinity.

    >>> json_in_script({"gpu": "</script><!--\u2028"})
    '{"gpu": "\\u003c/script\\u003e\\u003c!--\\u2028"}'
    """
    return json.dumps(value, allow_nan=False).translate(_MARKUP_IN_JSON)


def script(text: str) -> str:
    r"""Return JavaScript for a script element; what looks like markup is in its strings and patterns alone.

    >>> script("x = '</SCRIPT><!--'; y = 1 <z")
    "x = '\\x3C/SCRIPT>\\x3C!--'; y = 1 <z"
    """
    return _MARKUP_IN_SCRIPT.sub(r"\\x3C", text)


def json_for_terminals(text: str) -> str:
    r"""Return JSON with the same meaning, in which characters that a terminal acts on are escaped.

    >>> json_for_terminals('["\x9b2J \u202e Ü"]')
    '["\\u009b2J \\u202e Ü"]'
    """
    return _HIDDEN_IN_JSON.sub(_as_code_point, text)


def shell_line(words: Iterable[str]) -> str:
    r"""Return words as one line of a shell, quoted where they need it: with $'...' where one has control characters.

    >>> shell_line(["vllm", "serve", "my model", "it's\nbad"])
    "vllm serve 'my model' $'it\\'s\\u000abad'"
    """
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
