"""Files that are cut off, garbled or not what they seem: a sentence or counted faults, never a traceback."""

from __future__ import annotations

import gzip
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.catalog.tables import contracts
from kernelsight.dataflow.contract import conform
from kernelsight.errors import KernelSightError
from kernelsight.logs import read_logs
from kernelsight.logs.files import open_log
from kernelsight.logs.registry import formats_of
from tests.conftest import random_worlds
from tests.logs.written import DATA, MADE, nsys, save

JUNK = [b"null", b"1e999", b"-1", b'"x"', b"[]", b"{}", b"NaN", b"99999999999999999999"]


def originals() -> dict[str, tuple[bytes, str]]:
    """Return the decompressed content of one file per format, and its role."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [save(Path(folder) / name, content) for name, content in MADE.items()]
        paths += [nsys(Path(folder) / "nsys")] + [path for path in sorted(DATA.rglob("*.*")) if path.suffix != ".md"]
        found = {}
        for path in paths:
            file = open_log(path)
            [log_format] = formats_of(file)
            found[path.name] = (file.read(), log_format.role)
        return found


ORIGINALS = originals()


def read(content: bytes, role: str) -> None:
    """Read a file of a role, which may be refused; what is read holds its contracts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(content)
        words = {"requests": "paths"}.get(role, role)
        try:
            tables = read_logs(**{words: path})
        except KernelSightError as refused:
            assert len(str(refused)) < 4000 and "\n" not in str(refused)
            return
    for name, table in tables.items():
        conform(table, contracts()[name])


@pytest.mark.parametrize("name", ORIGINALS)
@random_worlds(100, few=12)
@given(data=st.data())
def test_damaged_files(name, data):
    content, role = ORIGINALS[name]
    start = data.draw(st.integers(0, len(content)))
    kind = data.draw(st.sampled_from(["cut", "hole", "noise", "digit", "packed"]))
    if kind == "cut":
        content = content[:start]
    elif kind == "hole":
        content = content[:start] + content[start + data.draw(st.integers(1, 200)) :]
    elif kind == "noise":
        content = content[:start] + data.draw(st.binary(min_size=1, max_size=30)) + content[start:]
    elif kind == "digit":
        junk = data.draw(st.sampled_from(JUNK))
        places = [place for place, letter in enumerate(content) if chr(letter).isdigit()]
        if places:
            place = places[start % len(places)]
            content = content[:place] + junk + content[place + 1 :]
    else:
        content = gzip.compress(content)[: max(start, 1)]
    read(content, role)


@random_worlds(100, few=12)
@given(content=st.binary(max_size=300), role=st.sampled_from(["requests", "steps", "metrics", "kernels"]))
def test_any_bytes(content, role):
    read(content, role)
