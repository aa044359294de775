"""The on-disk cache of a language model's answers, by prompt and sample; each is durable before the next request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kernelsight.caches.durable import durable_file, locked
from kernelsight.caches.journal import Journal, journal_path, read_journal
from kernelsight.searching.llm.forecaster import answer_table

KIND = "cache of answers"
Key = tuple[str, int]


class AnswerCache(dict[Key, dict[str, Any]]):
    """Rows of ``llm_answers`` by prompt hash and sample; a new one is appended to the journal, where there is one."""

    journal: Journal | None = None

    def __setitem__(self, key: Key, row: dict[str, Any]) -> None:
        if self.journal is not None:
            self.journal.append(row)
        super().__setitem__(key, row)


@contextmanager
def answer_cache(file: Path | None, read: Callable[[Path], pa.Table]) -> Iterator[AnswerCache]:
    """Yield the cached answers of a Parquet file and of a killed run's journal; at the end, write all to the file.

    ``read`` returns the rows of the file. Without a file nothing is written. InvalidInput: another process writes it.
    """
    cache = AnswerCache()
    if file is None:
        yield cache
        return
    with locked(file):
        path = journal_path(file)
        rows = read(file).to_pylist() if file.exists() else []
        earlier = read_journal(path, KIND).records if path.exists() else []
        cache.update({(row["prompt_hash"], row["sample"]): row for row in [*rows, *earlier]})
        cache.journal = Journal(path, KIND, file.name, earlier)
        try:
            yield cache
        finally:
            cache.journal.close()
            with durable_file(file) as draft:
                pq.write_table(answer_table(cache), draft)
            path.unlink()
