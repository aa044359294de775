"""Files of a package of sweeps, in a folder or inside a wheel: <gpu>/<family>/<engine>/<version>/<table>.parquet.

Only such files are read; nothing of a wheel is unpacked, imported or run.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from kernelsight.dataflow.bounded_files import check_file
from kernelsight.dataflow.parquet_files import unreadable
from kernelsight.errors import InvalidInput

PATTERN = "*/*/*/*/*.parquet"
# where the folders of GPUs lie inside a package
ROOTS = ("systems/data", "data", "")
IN_WHEEL = re.compile(r"^(?:[^/]+/)?systems/data/([^/]+)/([^/]+)/([^/]+)/([^/]+)/([^/]+)\.parquet$")
# a table larger than this is none of these sweeps (the largest has 40 MB)
MOST_BYTES = 2**30


class SweepFile(NamedTuple):
    """One table: where it comes from in the package, and the file, or the wheel and the name in it."""

    gpu: str
    family: str
    engine: str
    version: str
    table: str
    path: Path
    member: str = ""

    @property
    def place(self) -> str:
        """<gpu>/<family>/<engine>/<version>/<table>.parquet."""
        return f"{self.gpu}/{self.family}/{self.engine}/{self.version}/{self.table}.parquet"

    def __str__(self) -> str:
        return f"{self.path}, {self.member}" if self.member else str(self.path)


def files_of(root: Path) -> dict[str, list[SweepFile]]:
    """Return the tables of each GPU below a package, its ``systems`` or its ``data``, or in a wheel (.whl, .zip).

    InvalidInput: there are none, or the wheel cannot be read.
    """
    sweep_files = _in_folder(root) if root.is_dir() else _in_wheel(root)
    if not sweep_files:
        raise InvalidInput(f"{root} has no sweep: no file matches <gpu>/<family>/<engine>/<version>/*.parquet.")
    files: dict[str, list[SweepFile]] = {}
    for one in sorted(sweep_files):
        files.setdefault(one.gpu, []).append(one)
    return files


def _in_folder(root: Path) -> list[SweepFile]:
    for inside in ROOTS:
        data = root / inside
        if files := [SweepFile(*_named(file.relative_to(data).parts), file) for file in data.glob(PATTERN)]:
            return files
    return []


def _named(parts: Sequence[str]) -> tuple[str, str, str, str, str]:
    gpu, family, engine, version, table = parts
    return gpu, family, engine, version, Path(table).stem


def _in_wheel(path: Path) -> list[SweepFile]:

    def refuse(problem: str) -> InvalidInput:
        return InvalidInput(f"{path} {problem}; give the .whl file or the unpacked folder.")

    check_file(path, refuse)
    try:
        with zipfile.ZipFile(path) as wheel:
            members = [(one.filename, one.file_size) for one in wheel.infolist()]
    except (zipfile.BadZipFile, OSError) as error:
        raise refuse(f"cannot be read as a wheel ({error})") from None
    files = []
    for name, size in members:
        if match := IN_WHEEL.match(name):
            if size > MOST_BYTES:
                raise InvalidInput(f"{path}, {name} has {size:,} bytes, more than a sweep; the wheel is not read.")
            files.append(SweepFile(*match.groups(), path, name))
    return files


def read_table(file: SweepFile) -> pl.DataFrame:
    """Read one table; InvalidInput where it is no Parquet."""
    try:
        if not file.member:
            check_file(file.path, lambda problem: InvalidInput(f"{file} {problem}; give a Parquet file."))
            return pl.read_parquet(file.path, glob=False)
        with zipfile.ZipFile(file.path) as wheel:
            return pl.read_parquet(io.BytesIO(wheel.read(file.member)))
    except (pl.exceptions.PolarsError, zipfile.BadZipFile, OSError) as error:
        raise InvalidInput(f"{file} {unreadable(error)}.") from None
