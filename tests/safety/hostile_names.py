"""One name that attacks every way out, and how a browser reads a page that shows it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import NamedTuple

# elements, the end of a script and then its double-escaped state (an end after that would end it), quotes, line ends,
# controls of terminals, direction of text
_PARTS = ("<img src=x onerror=alert(1)>", "</script>", "<!--<script ", "\"'`", "\\", "\nFORGED\r\n\tFORGED")
HOSTILE = "".join(
    (*_PARTS, "\0\x1b[2J\x9b31m\x7f", "\u202e\u2066\u200f", "\u2028FORGED\u2029\x85", ",;={{}}$x%s", "x" * 600)
)
# as the name of a file or a folder; DuckDB takes a backslash for another slash, a comma ends a name in --gpus
FILE_NAME = "".join(sign for sign in HOSTILE if sign not in "/\\\0,")[:120]
# C0 and C1 controls, marks of direction, separators of lines
HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
SCRIPT = re.compile(r"<script(?=[\t\n\f\r />])([^>]*)>", re.IGNORECASE)
# what the tokeniser of scripts looks for (HTML, 13.2.5.15 to 13.2.5.31)
_STEP = re.compile(r"<!--|-->|</?script(?=[\t\n\f\r />])", re.IGNORECASE)
TAGS = {
    *("html", "head", "meta", "link", "title", "style", "body", "main", "script", "h1", "h2", "p", "div", "section"),
    *("span", "b", "table", "thead", "tbody", "tr", "th", "td", "button", "details", "summary", "pre"),
}
ATTRIBUTES = {"lang", "charset", "http-equiv", "content", "name", "rel", "class", "id", "type", "data-v", "tabindex"}


class Page(NamedTuple):
    """What a browser makes of a page: elements with their attributes, scripts by type, and the text between."""

    elements: list[tuple[str, dict[str, str | None]]]
    scripts: list[tuple[str, str]]
    text: str


def read_page(text: str) -> Page:
    """Return the elements, scripts and text of a page, its scripts ended where a browser ends them."""
    scripts, outside, place = [], [], 0
    while start := SCRIPT.search(text, place):
        end = _script_end(text, start.end())
        kind = re.search('type="([^"]*)"', start[1])
        scripts.append((kind[1] if kind else "", text[start.end() : end]))
        outside.append(text[place : start.end()])
        place = end
    reader = _Reader()
    reader.feed("".join(outside) + text[place:])
    reader.close()
    return Page(reader.elements, scripts, "".join(reader.texts))


def _script_end(text: str, place: int) -> int:
    """Return where the end tag of a script begins; in the double-escaped state an end tag ends that state alone."""
    state = "data"
    while found := _STEP.search(text, place):
        step, place = found[0].lower(), found.end()
        if step == "<!--" and state == "data":
            state, place = "escaped", place - 2  # <!--> ends it at once
        elif step == "-->":
            state = "data"
        elif step == "<script" and state == "escaped":
            state = "double escaped"
        elif step == "</script" and state == "double escaped":
            state = "escaped"
        elif step == "</script":
            return found.start()
    return len(text)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data[:80]!r}")


def check_elements(page: Page) -> None:
    """Hold the elements of a page against those that the writers use: none of a name's, and nothing that runs."""
    for tag, attributes in page.elements:
        assert tag in TAGS, tag
        if tag == "link":
            assert attributes == {"rel": "icon", "href": "data:,"}
        else:
            assert attributes.keys() <= ATTRIBUTES, (tag, attributes)
    assert not HIDDEN.search(re.sub(r"[\n\t]", "", page.text))


def in_html(name: str) -> str:
    """Return a name as the text of a page has it: tabs and line ends are white space there, the rest is visible."""
    return re.sub(r"[^\n\t]", lambda sign: in_terminal(sign[0]), name)


def in_terminal(name: str) -> str:
    """Return a name as a line of a terminal has it."""
    return HIDDEN.sub(lambda sign: repr(sign[0])[1:-1], name)


def check_lines(text: str) -> None:
    """Hold what a command prints against what a terminal may get: lines of visible text, none begun by a name."""
    found = HIDDEN.search(text.replace("\n", ""))
    assert not found, repr(text[max(found.start() - 60, 0) : found.end() + 60])
    assert not [line for line in text.split("\n") if line.lstrip().startswith("FORGED")], text
