"""Files within limits: what is no regular file is refused before it is opened, packed ones are unpacked in steps."""

from __future__ import annotations

import gzip
import os
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernelsight.errors import InvalidInput
from kernelsight.files import bounded_files
from kernelsight.files.bounded_files import (
    check_file,
    pieces_of,
    read_bytes,
    read_text,
    unpacked,
    unpacked_file,
    within_ratio,
)
from kernelsight.files.budget import Budget
from kernelsight.files.sqlite_files import query_sqlite
from tests.conftest import random_worlds
from tests.special_files import SPECIAL, special_file


def refuse(found: str) -> InvalidInput:
    return InvalidInput(f"the file {found}.")


def refused(read: Callable[..., object], *given: object, **named: object) -> str:
    """Return what is wrong with a file."""
    with pytest.raises(InvalidInput) as caught:
        read(*given, **named)
    return str(caught.value).removeprefix("the file ").removesuffix(".")


@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("read", [check_file, read_bytes, read_text])
def test_what_is_no_regular_file_is_refused_without_waiting(
    read: Callable, kind: str, tmp_path: Path, in_time: None
) -> None:
    assert refused(read, special_file(tmp_path / "file", kind), refuse) == SPECIAL[kind]


def test_files_that_are_not_there_or_too_large(tmp_path: Path) -> None:
    assert refused(read_bytes, tmp_path / "none", refuse) == "does not exist"
    assert refused(read_bytes, tmp_path / "no\0name", refuse).startswith("cannot be read (")
    assert refused(read_bytes, tmp_path / ("a" * 5000), refuse) == "cannot be read (File name too long)"
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(1 << 40)
    assert refused(read_bytes, sparse, refuse) == "has more than 16 MiB"
    assert refused(check_file, sparse, refuse) == "has more than 65,536 MiB"


def test_bytes_up_to_the_limit_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for size in (0, 1, 70_000, 3_000_000):
        path.write_bytes(os.urandom(size))
        assert read_bytes(path, refuse, Budget(bytes=size)) == path.read_bytes()
        if size:
            assert refused(read_bytes, path, refuse, Budget(bytes=size - 1)) == f"has more than {size - 1 >> 20} MiB"


def test_a_file_that_grew_since_is_read_up_to_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a" * 3_000_000)
    monkeypatch.setattr(bounded_files, "check_file", lambda *given: 5)
    assert len(read_bytes(path, refuse)) == 3_000_000
    assert refused(read_bytes, path, refuse, Budget(bytes=2_999_999)) == "has more than 2 MiB"


def test_text_names_the_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert read_text(path, refuse) == "a\r\nb"
    path.write_bytes(b"a\nb\n\xff\n")
    assert refused(read_text, path, refuse) == "is not UTF-8 (line 3)"


def test_what_is_piped_in_is_read_where_that_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    def piped(content: bytes) -> str:
        end, start = os.pipe()
        os.write(start, content)
        os.close(start)
        return f"/dev/fd/{end}"

    assert read_bytes(piped(b"a" * 60_000), refuse, piped=True) == b"a" * 60_000
    assert refused(read_bytes, piped(b"a"), refuse) == "is a pipe"
    assert refused(read_bytes, piped(b"abc"), refuse, Budget(bytes=2), piped=True) == "has more than 0 MiB"
    with open("/dev/zero", "rb") as endless:
        assert refused(read_bytes, f"/dev/fd/{endless.fileno()}", refuse, piped=True) == "is a device"
    named = os.memfd_create("regular")
    os.write(named, b"from a file")
    assert read_bytes(f"/dev/fd/{named}", refuse, piped=True) == b"from a file"


def unpack(data: bytes) -> bytes:
    return b"".join(unpacked(pieces_of(data), len(data), refuse))


@random_worlds(100)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=5), st.integers(0, 3))
def test_members_are_unpacked_as_gzip_does(members: list[bytes], padding: int) -> None:
    data = b"".join(gzip.compress(member) + bytes(padding) for member in members)
    assert unpack(data) == gzip.decompress(data) == b"".join(members)


def test_members_of_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    content = os.urandom(200_000) + b"a" * 300_000
    data = gzip.compress(content) + gzip.compress(b"end")
    for size in (1, 17, 1 << 16):
        monkeypatch.setattr(bounded_files, "PIECE_BYTES", size)
        assert unpack(data) == content + b"end"


def test_damaged_members_are_no_whole_ones() -> None:
    data = gzip.compress(b"content" * 100)
    for size in (1, 10, len(data) - 1):
        with pytest.raises(EOFError):
            unpack(data[:size])
    with pytest.raises(zlib.error):
        unpack(data + b"more")
    with pytest.raises(zlib.error):
        unpack(data[:-5] + b"\0" + data[-4:])  # the sum of its content


def bomb(size: int) -> bytes:
    """Return a gzip member of spaces, a thousandth of its size."""
    return gzip.compress(b" " * size)


@pytest.mark.whole
def test_a_bomb_is_refused_long_before_it_is_unpacked(tmp_path: Path) -> None:
    data = bomb(250 << 20)
    assert len(data) < 1 << 18
    made = 0

    def counted() -> Iterator[bytes]:
        nonlocal made
        for piece in unpacked(pieces_of(data), len(data), refuse):
            made += len(piece)
            yield piece

    assert refused(lambda: list(counted())) == "unpacks to more than 100 times its size, unlike logs and traces"
    assert made <= 100 * len(data)
    path = tmp_path / "bomb.gz"
    path.write_bytes(data)
    assert refused(lambda: list(unpacked_file(path, refuse))).startswith("unpacks to more than 100 times")


def test_small_files_may_unpack_to_a_limit_of_their_own() -> None:
    assert len(unpack(bomb(16 << 20))) == 16 << 20
    assert refused(unpack, bomb((16 << 20) + 1)) == "unpacks to more than 16 MiB, unlike logs and traces"
    pieces = [b"a" * (1 << 20)] * 17
    assert refused(lambda: list(within_ratio(pieces, 10, refuse))).startswith("unpacks to more than 16 MiB")
    assert len(list(within_ratio(pieces, 1 << 20, refuse))) == 17


def test_a_query_of_a_file_ends_with_the_work_that_its_size_explains(tmp_path: Path, in_time: None) -> None:
    path = tmp_path / "profile.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("create table rows as with recursive n(i) as (select 1 union all select i + 1 from n "
                           "where i < 9999) select i from n")  # fmt: skip
        connection.execute("create view endless as with recursive n(i) as (select 1 union all select i + 1 from n) "
                           "select i from n")  # fmt: skip
    connection.close()
    assert query_sqlite(path, "select count(*) from rows", refuse) == [(9999,)]
    begin = time.process_time()
    assert refused(query_sqlite, path, "select count(*) from endless", refuse).startswith("needs far more work than")
    assert time.process_time() - begin < 20.0  # a tenth of a second, or without end
    assert refused(query_sqlite, path, "select * from none", refuse) == "cannot be asked (no such table: none)"
