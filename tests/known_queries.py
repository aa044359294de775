"""What queries of nodes gave is kept for the next tests of a process: the same text over the same rows runs once.

Most of the time of commands over few rows is DuckDB's, which plans thirty queries for each of them. Tests whose subject
is that a query gives the same again, or leaves nothing behind, are without (``asked_anew``).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from kernelsight.dataflow.cache import Recent
from kernelsight.dataflow.graph import Node
from kernelsight.dataflow.kept import content_digest
from kernelsight.dataflow.session import Session

HERE = Path(__file__).resolve().parent
ANEW = ("dataflow", "invariants", "safety/test_growth.py", "sweeps/test_memory.py")
# tables beyond this, other than facts, take longer to compare than a query to plan
MOST_BYTES = 1 << 20


class KnownQueries:
    """Answers queries of nodes with what they gave before, unless ``anew``."""

    def __init__(self) -> None:
        self.anew = False
        self._answers: Recent[dict[str, pa.Table]] = Recent(1000)
        self._run = Session._run_query

    def start(self) -> None:
        """Answer the queries of all sessions of this process."""
        Session._run_query = lambda session, node: self.answer(session, node)  # type: ignore[method-assign]

    def answer(self, session: Session, node: Node) -> dict[str, pa.Table]:
        """Return the table of a query."""
        rows = {name: session._fetch(name) for name in node.inputs}
        made = [table for name, table in rows.items() if name not in session._facts or name in session._given]
        if self.anew or any(table.nbytes > MOST_BYTES for table in made):
            return self._run(session, node)
        question = (session.graph.macros, node.text, node.inputs, *map(content_digest, rows.values()))
        found = self._answers.get(question)
        if found is None:
            found = self._run(session, node)
            if all(table.nbytes <= MOST_BYTES for table in found.values()):
                self._answers.put(question, found)
        return found


def asked_anew(path: Path) -> bool:
    """Tell whether the tests of a file ask every query anew."""
    return path.is_relative_to(HERE) and any(path.is_relative_to(HERE / name) for name in ANEW)
