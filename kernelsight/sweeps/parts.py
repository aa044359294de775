"""The parts of a sweep where they lie: Parquet files in a folder, or at a URI that ``pyarrow.fs`` knows, such as s3://.

A part's name is a digest of the question that it answers: whoever computes it again writes the same bytes.
``sweep.json`` says first to which sweep they belong, ``manifest.json`` last which parts there are.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelsight.caches.durable import draft_of, locked, reason
from kernelsight.errors import InvalidInput, RunFailed
from kernelsight.files.bounded_values import parse_json
from kernelsight.files.budget import ROWS
from kernelsight.files.redaction import redacted_text

if TYPE_CHECKING:
    import pyarrow as pa

SWEEP_FILE, MANIFEST = "sweep.json", "manifest.json"
ENDING = ".parquet"


def is_uri(place: str) -> bool:
    """Return whether a place is a URI and no path."""
    return "://" in place


class Parts:
    """A place of finished parts; without its connections it can be sent to other processes."""

    def __init__(self, place: str | Path, name: str | None = None) -> None:
        self.name = name or str(place)
        # also for a process that runs in another folder
        self.place = str(place) if is_uri(str(place)) else str(Path(place).absolute())

    def __reduce__(self) -> tuple[Any, ...]:
        return Parts, (self.place, self.name)

    def __str__(self) -> str:
        return redacted_text(self.name.partition("?")[0])

    @cached_property
    def _found(self) -> tuple[Any, str]:
        """The file system, and the path in it. InvalidInput: there is none."""
        import pyarrow as pa
        import pyarrow.fs as pafs

        if not is_uri(self.place):
            return pafs.LocalFileSystem(), self.place
        try:
            return pafs.FileSystem.from_uri(self.place)
        except (pa.ArrowException, ValueError, OSError) as error:
            why = str(error).splitlines()[0].rstrip(".")
            raise InvalidInput(
                f"{self} cannot be opened ({redacted_text(why)}); give a folder, or a URI such as s3://BUCKET/FOLDER."
            ) from None

    @property
    def is_local(self) -> bool:
        """Whether the parts lie in a folder."""
        import pyarrow.fs as pafs

        return isinstance(self._found[0], pafs.LocalFileSystem)

    @property
    def _folder(self) -> Path:
        return Path(self._found[1])

    def locked(self) -> AbstractContextManager[None]:
        """Lock a folder against other processes; InvalidInput if another one runs this sweep.

        Two sweeps at one URI write the same bytes.
        """
        return locked(self._folder) if self.is_local else contextlib.nullcontext()

    def begin(self, facts: dict[str, Any], *, resume: bool) -> dict[str, Any]:
        """Begin a sweep here, or continue it; return its facts as it was begun.

        ``facts``: of this sweep. InvalidInput: parts are there without ``resume``, or of another sweep, with the facts
        that differ.
        """
        names = self._names()
        if self.is_local:
            for draft in (name for name in names if name.startswith(".")):
                self._folder.joinpath(draft).unlink()
        names = [name for name in names if not name.startswith(".")]
        if SWEEP_FILE not in names:
            if names:
                raise InvalidInput(f"{self} exists, but has no {SWEEP_FILE} of a sweep; remove it.")
            if self.is_local:
                self._do(lambda: self._folder.mkdir(exist_ok=True))
            self._write_json(SWEEP_FILE, facts)
            return facts
        if not resume:
            raise InvalidInput(f"{self} has parts of a sweep; continue it with --resume, or remove it.")
        again = f"remove {self} and start again."

        def refuse(problem: str) -> InvalidInput:
            return InvalidInput(f"{self}/{SWEEP_FILE} {problem}; {again}")

        begun = parse_json(self._read(SWEEP_FILE), refuse, ROWS)
        try:
            both = {name for name in (*facts, *begun) if name.endswith(("sha256", "version"))}
            differing = sorted(name for name in both if begun.get(name) != facts.get(name))
            begun["requests_per_partition"]
        except (KeyError, TypeError, AttributeError):
            raise refuse("is not of a sweep") from None
        if differing:
            words = ", ".join(name.removesuffix("_sha256").replace("_", " ") for name in differing)
            raise InvalidInput(f"{self} belongs to a sweep with another {words}; remove it, or use another -o.")
        return begun

    def finished(self) -> set[str]:
        """Return the keys of the finished parts."""
        return {name.removesuffix(ENDING) for name in self._names() if name.endswith(ENDING) and name[0] != "."}

    def write(self, key: str, table: pa.Table) -> None:
        """Write a part, whole or not at all."""
        import pyarrow.parquet as pq

        self._write(f"{key}{ENDING}", lambda file: pq.write_table(table, file))

    def require(self, keys: Collection[str]) -> None:
        """Raise RunFailed where parts are not there: another machine has written them elsewhere."""
        if lost := set(keys) - self.finished():
            raise RunFailed(f"{len(lost):,} parts are not in {self}; give a folder or a URI that all machines share.")

    def end(self, keys: Sequence[str], rows: int) -> None:
        """Write the manifest: the parts, and how many rows they have."""
        self._write_json(MANIFEST, {"rows": rows, "parts": [f"{key}{ENDING}" for key in keys]})

    def read(self, keys: Iterable[str], columns: list[str] | None = None) -> pa.Table:
        """Return the rows of several parts, concatenated; a column that a part lacks is null there."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        files, path = self._found
        try:
            tables = [pq.read_table(f"{path}/{key}{ENDING}", columns=columns, filesystem=files) for key in keys]
            return pa.concat_tables(tables, promote_options="default")
        except (pa.ArrowException, OSError) as error:
            why = str(error).splitlines()[0]
            raise InvalidInput(
                f"a part in {self} cannot be read ({why}); remove it, and continue with --resume."
            ) from None

    def remove(self) -> None:
        """Remove the parts of a folder, what says of whom they are last, and the folder."""
        for path in [*self._folder.glob(f"*{ENDING}"), *self._folder.glob(".*")]:
            path.unlink(missing_ok=True)
        for name in (MANIFEST, SWEEP_FILE):
            self._folder.joinpath(name).unlink(missing_ok=True)
        self._folder.rmdir()

    def _names(self) -> list[str]:
        import pyarrow.fs as pafs

        files, path = self._found
        found: list[Any] = []
        self._do(lambda: found.extend(files.get_file_info(pafs.FileSelector(path, allow_not_found=True))))
        return [info.base_name for info in found]

    def _read(self, name: str) -> str:
        files, path = self._found
        content: list[bytes] = []

        def read() -> None:
            with files.open_input_stream(f"{path}/{name}") as file:
                content.append(file.read(ROWS.bytes))

        self._do(read)
        return content[0].decode(errors="replace")

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        self._write(name, lambda file: file.write(json.dumps(content, indent=1).encode()))

    def _write(self, name: str, write: Callable[[Any], object]) -> None:
        self._do(lambda: self._write_whole(name, write))

    def _write_whole(self, name: str, write: Callable[[Any], object]) -> None:
        files, path = self._found
        # an object of a store is there once it is closed
        with self._draft(name) if self.is_local else files.open_output_stream(f"{path}/{name}") as file:
            write(file)

    @contextlib.contextmanager
    def _draft(self, name: str) -> Iterator[Any]:
        with draft_of(self._folder / name) as draft, draft.open("wb") as file:
            yield file
            file.flush()

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            why = redacted_text(reason(error))
            raise RunFailed(f"{self} could not be written: {why}; free space and continue with --resume.") from None


def digest_of(value: Any) -> str:
    """Return the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
