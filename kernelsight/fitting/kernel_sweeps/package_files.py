"""Finds and reads a package's sweep files, in a folder or a wheel: <gpu>/<family>/<engine>/<version>/<table>.parquet.

Only such files are read; nothing of a wheel is unpacked to disk, imported or run.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pyarrow as pa

from kernelsight.errors import InvalidInput
from kernelsight.files.bounded_files import check_file, read_bytes
from kernelsight.files.budget import ROWS
from kernelsight.files.parquet_files import check_parquet, unreadable

PATTERN = "*/*/*/*/*.parquet"
# parents of the folders of GPUs inside a package
ROOTS = ("systems/data", "data", "")
IN_WHEEL = re.compile(r"^(?:[^/]+/)?systems/data/([^/]+)/([^/]+)/([^/]+)/([^/]+)/([^/]+)\.parquet$")
# most bytes of a table (the largest of these sweeps has 40 MB)


class SweepFile(NamedTuple):
    """One table of a package: the folders it is in, and its file; or its wheel, and ``member``, its name in it."""

    gpu: str
    family: str
    engine: str
    version: str
    table: str
    path: Path
    member: str = ""

    @property
    def place(self) -> str:
        """The path in the package: <gpu>/<family>/<engine>/<version>/<table>.parquet."""
        return f"{self.gpu}/{self.family}/{self.engine}/{self.version}/{self.table}.parquet"

    def __str__(self) -> str:
        return f"{self.path}, {self.member}" if self.member else str(self.path)


def files_of(root: Path) -> dict[str, list[SweepFile]]:
    """Return the tables by GPU, below a package, its ``systems`` or its ``data``, or in a wheel (.whl, .zip).

    InvalidInput: there are none, or the wheel cannot be read.
    """
    sweep_files = _in_folder(root) if root.is_dir() else _in_wheel(root)
    if not sweep_files:
        raise InvalidInput(f"{root} has no sweep: no file matches <gpu>/<family>/<engine>/<version>/*.parquet.")
    files: dict[str, list[SweepFile]] = {}
    for file in sorted(sweep_files):
        files.setdefault(file.gpu, []).append(file)
    return files


def _in_folder(root: Path) -> list[SweepFile]:
    for inside in ROOTS:
        data = root / inside
        if files := [SweepFile(*_path_labels(file.relative_to(data).parts), file) for file in data.glob(PATTERN)]:
            return files
    return []


def _path_labels(folders: Sequence[str]) -> tuple[str, str, str, str, str]:
    """Return GPU, family, engine, version and table from the parts of a path."""
    gpu, family, engine, version, table = folders
    return gpu, family, engine, version, Path(table).stem


def _in_wheel(path: Path) -> list[SweepFile]:

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{path} {problem}; give the .whl file or the unpacked folder.")

    check_file(path, refuse)
    try:
        with zipfile.ZipFile(path) as wheel:
            members = [(member.filename, member.file_size) for member in wheel.infolist()]
    except (zipfile.BadZipFile, OSError) as error:
        raise refuse(f"cannot be read as a wheel ({error})") from None
    files = []
    for name, size in members:
        if match := IN_WHEEL.match(name):
            if size > ROWS.bytes:
                raise InvalidInput(f"{path}, {name} has {size:,} bytes, more than a sweep; the wheel is not read.")
            files.append(SweepFile(*match.groups(), path, name))
    return files


def read_table(file: SweepFile) -> pl.DataFrame:
    """Read one table; InvalidInput where it is not Parquet."""

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{file} {problem}; give a Parquet file.")

    try:
        if not file.member:
            content = read_bytes(file.path, refuse, ROWS)
        else:
            with zipfile.ZipFile(file.path) as wheel:
                content = wheel.read(file.member)
        check_parquet(pa.py_buffer(content), len(content), refuse)
        return pl.read_parquet(io.BytesIO(content))
    except (pl.exceptions.PolarsError, zipfile.BadZipFile, OSError) as error:
        raise InvalidInput(f"{file} {unreadable(error)}.") from None
