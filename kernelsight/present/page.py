"""The model of a page: what was asked, the answer, its figures and tables, its evidence, and how to repeat it.

A page is made once for each verb (``present/pages``), and has three faces: a terminal's text, HTML and JSON
(``present/show.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from kernelsight.dataflow.session import Session

Rows = Sequence[Mapping[str, Any]]
# rows that a page shows; a sweep has its own limit
MOST_ROWS = 2_000


class Table(NamedTuple):
    """Rows under short heads with units, or sentences: ``lines``; ``below``: a sentence after them.

    ``expendable``: columns that a narrow terminal leaves out, in this order; ``most``: rows that a terminal shows (0:
    only ``below``, which HTML then leaves out), and ``more``: what it says of the others; ``count``: number of
    rows, where ``rows`` are only the first; ``drawn``: a figure shows the
    same, so that HTML leaves the table out; ``first``: HTML shows it before the figures.
    """

    title: str = ""
    rows: Rows = ()
    lines: Sequence[str] = ()
    below: str = ""
    expendable: Sequence[str] = ()
    most: int | None = None
    more: str = "more"
    count: int = 0
    drawn: bool = False
    first: bool = False


class Figure(NamedTuple):
    """A chart of rows, or a table if ``spec`` is None; ``note``: one sentence on how to read it.

    ``sql``: the query of the rows; ``wide``: over the page's width; ``most_rows``: maximum number of rows of a table.
    """

    title: str
    note: str
    sql: str = ""
    spec: Mapping[str, Any] | None = None
    wide: bool = False
    most_rows: int = MOST_ROWS
    rows: Rows = ()


class Page(NamedTuple):
    """What a verb answers, for terminal, HTML and JSON.

    ``answer``: the keys of JSON; ``asked``: lines on the question; ``tiles``: figures by label, None left out;
    ``figures``: made only for HTML.
    """

    title: str
    answer: Mapping[str, Any]
    asked: Sequence[str] = ()
    tiles: Mapping[str, Any] = {}
    sentences: Sequence[str] = ()
    figures: Callable[[], Sequence[Figure]] = tuple
    tables: Sequence[Table] = ()
    evidence: Sequence[Table] = ()
    assumed: Sequence[str] = ()
    repeat: Sequence[str] = ()


def queried(session: Session, figures: Iterable[Figure]) -> list[Figure]:
    """Return figures with the rows of their queries."""
    return [figure._replace(rows=session.query(figure.sql).to_pylist()) for figure in figures]


def pairs(values: Mapping[str, Any], heads: tuple[str, str] = ("setting", "value")) -> list[dict[str, Any]]:
    """Return a mapping as rows of a table, without unknown values."""
    return [dict(zip(heads, item, strict=True)) for item in values.items() if item[1] is not None]
