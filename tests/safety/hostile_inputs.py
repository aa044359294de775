"""Files that a stranger may hand in, of each form, by what is wrong with them: the same for every door."""

from __future__ import annotations

import gzip
import io
import json
import sqlite3
import zipfile
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.files.test_bounded_values import alias_bomb
from tests.special_files import SPECIAL, special_file

SECRET = "hunter2secret"
RTL, HALF = "\u202egnp.\u2066x", "\\ud800"
ENDLESS = "with recursive n(i) as (select 1 union all select i + 1 from n) select {} from n"
NSYS_COLUMNS = "i as deviceId, i as start, i + 1 as end, 1 as demangledName"
REQUEST = {"arrival_s": 1.0, "prompt_tokens": 9, "output_tokens": 3, "ttft_ms": 5.0, "e2e_ms": 9.0, "request_id": "a"}
SAVED = ("run_info", "scenarios", "scenario_summary", "steps", "requests")
NSYS = "CUPTI_ACTIVITY_KIND_KERNEL"


def requests(changes: list[dict[str, object]]) -> str:
    """Return JSON lines of requests, each with changes."""
    return "".join(json.dumps(REQUEST | change) + "\n" for change in changes)


def table(rows: list[dict[str, object]]) -> str:
    """Return a CSV of requests, each with changes."""
    header = ",".join(REQUEST)
    return "\n".join([header, *(",".join(map(str, (REQUEST | row).values())) for row in rows)]) + "\n"


def sparse(size: int) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(size)

    return make


def parquet(columns: pa.Table, **how: object) -> bytes:
    sink = io.BytesIO()
    pq.write_table(columns, sink, **how)
    return sink.getvalue()


def arrow(columns: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, columns.schema) as writer:
        writer.write_table(columns)
    return sink.getvalue()


def many_rows() -> bytes:
    """Return a Parquet file of 200 kB with 60 million equal rows."""
    sink, one = io.BytesIO(), np.ones(1_000_000)
    names = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_ms")
    rows = pa.table(dict.fromkeys(names, one))
    with pq.ParquetWriter(sink, rows.schema, compression="zstd", write_statistics=False) as writer:
        for _ in range(60):
            writer.write_table(rows)
    return sink.getvalue()


def long_texts() -> bytes:
    """Return a Parquet file of 20 kB whose every value is one text of 1 MiB."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(20_000, np.int32)), pa.array(["x" * (1 << 20)]))
    return parquet(pa.table({"model": texts, "gpu": texts}), compression="zstd")


def texts_in_lists() -> bytes:
    """Return a Parquet file of 10 kB whose lists hold 200,000 times one text of 1 MiB."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(200_000, np.int32)), pa.array(["x" * (1 << 20)]))
    lists = pa.ListArray.from_arrays(pa.array(np.arange(0, 200_001, 1000, dtype=np.int32)), texts)
    numbers = dict.fromkeys(("arrival_s", "prompt_tokens", "output_tokens"), np.ones(200))
    return parquet(pa.table({**numbers, "hash_ids": lists, "model": lists}), compression="zstd")


def nested() -> bytes:
    kind = pa.int64()
    for _ in range(60):
        kind = pa.struct([("a", kind)])
    return parquet(pa.table({"shape": pa.nulls(2, kind), "family": ["gemm", "gemm"]}))


def lying(content: bytes, claimed: int) -> bytes:
    """Return bytes with each number of 1,000, as Thrift and Arrow write it, replaced by another."""
    thrift, arrow_number = b"\xd0\x0f", (1000).to_bytes(8, "little")
    number, more = claimed * 2, bytearray()
    while number > 127:
        more.append(number & 127 | 128)
        number >>= 7
    more.append(number)
    return content.replace(thrift, bytes(more[:2])).replace(arrow_number, claimed.to_bytes(8, "little"))


def plain_rows() -> pa.Table:
    return pa.table({name: pa.array(np.arange(1000.0)) for name in ("arrival_s", "prompt_tokens", "output_tokens")})


def database(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with sqlite3.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)
        connection.close()

    return make


def saved(*statements: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        with duckdb.connect(path) as connection:
            for statement in statements:
                connection.execute(statement)

    return make


def packed(content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", content)
    return sink.getvalue()


def linked(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


# ending, and the content or what makes the file; "": the ending of whatever the door takes
INPUTS: dict[str, tuple[str, bytes | str | Callable[[Path], object]]] = {
    "nothing": ("", b""),
    "one zero": ("", b"\0"),
    "zeros": ("", b"\0" * (1 << 16)),
    "blanks": (".json", b" " * (1 << 20)),
    "lines": (".csv", b"\n" * (2 << 20)),
    "a byte order mark": (".json", b"\xef\xbb\xbf"),
    "UTF-16": (".json", json.dumps(REQUEST).encode("utf-16")),
    "Latin-1": (".csv", "arrival_s,gpu\n1,\xe9\n".encode("latin-1")),
    "random bytes": ("", np.random.default_rng(7).bytes(1 << 16)),
    "4 TiB": ("", sparse(1 << 42)),
    "deep lists": (".json", b"[" * 200_000),
    "deep objects": (".json", b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep YAML": (".yaml", b"a: " + b"[" * 100_000),
    "deep blocks of YAML": (".yaml", "".join(" " * n + "a:\n" for n in range(2000)).encode()),
    "a cyclic list": (".yaml", b"apiVersion: v1\nx: &a [*a]\n"),
    "a cyclic mapping": (".yaml", b"apiVersion: v1\nx: &a {b: *a}\n"),
    "a billion lists": (".yaml", "apiVersion: v1\n" + alias_bomb("lists", 10)),
    "a billion mappings": (".yaml", "apiVersion: v1\n" + alias_bomb("maps", 10)),
    "a billion merges": (".yaml", "apiVersion: v1\n" + alias_bomb("merges", 10)),
    "an object of Python": (".yaml", b"!!python/object/apply:os.system [touch pwned]\n"),
    "cut JSON": (".json", json.dumps({"model": "qwen3-0.6b", "gpu": ["l4"]})[:-3]),
    "a number": (".json", b"7"),
    "a text": (".json", b'"vllm serve"'),
    "null": (".json", b"null"),
    "true": (".json", b"true"),
    "an empty object": (".json", b"{}"),
    "an empty list": (".json", b"[]"),
    "a list of scalars": (".json", b'[1, "a", null, true, [], {}]'),
    "a list of lists": (".json", b"[[1, 2], [3]]"),
    "NaN": (".json", b'{"model": NaN, "gpu": [NaN, Infinity, -Infinity], "arrival_s": NaN}'),
    "a number of 400 digits": (".json", b'{"gpu": "mine", "like": "l4", "tdp_w": ' + b"9" * 400 + b"}"),
    "a number of 5,000 digits": (".json", b'{"gpu": ' + b"9" * 5000 + b"}"),
    "half of a surrogate pair": (".json", f'{{"gpu": "{HALF}", "{HALF}": "{HALF}", "like": "l4"}}'),
    "text from right to left": (".json", json.dumps({"gpu": RTL, RTL: RTL, "model": "\x1b[2J\0"}, ensure_ascii=False)),
    "a repeated name": (".json", b'{"gpu": "l4", "gpu": "t4"}'),
    "12 million values": (".json", b"[" + b"0," * 6_000_000 + b"0]"),
    "a million names": (".json", json.dumps(dict.fromkeys(map(str, range(600_000)), 0))),
    "a text of 12 MB": (".json", json.dumps({"gpu": "x" * 12_000_000})),
    "a line of 20 MB": (".jsonl", b"x" * 20_000_000),
    "100,000 columns": (".csv", ",".join(f"c{n}" for n in range(100_000)) + "\n" + "1," * 99_999 + "1\n"),
    "an open quotation": (".csv", b'arrival_s,gpu\n1,"l4\n' + b"2,t4\n" * 1000),
    "ragged rows": (".csv", b"gpu,like\nl4\nt4,l4,x,y\n"),
    "negative times": (".jsonl", requests([{"arrival_s": -5.0}, {"ttft_ms": -1.0}, {}])),
    "unsorted times": (".jsonl", requests([{"arrival_s": 9.0}, {"arrival_s": 2.0}, {"arrival_s": 5.0}])),
    "time zones": (".csv", table([{"arrival_s": "2026-03-29T02:30:00+02:00"}, {"arrival_s": "2026-03-29T00:30:00Z"}])),
    "repeated identifiers": (".jsonl", requests([{}, {}, {"arrival_s": 2.0}])),
    "2 ** 62 tokens": (".jsonl", requests([{"prompt_tokens": 2**62}, {"output_tokens": 2**62}, {"arrival_s": 2e18}])),
    "infinite times": (".csv", table([{"arrival_s": "inf"}, {"ttft_ms": "nan"}, {"e2e_ms": "1e999"}])),
    "values of other types": (".jsonl", requests([{"arrival_s": [1]}, {"prompt_tokens": "x"}, {"ttft_ms": {"a": 1}}])),
    "gzip of nothing": (".csv.gz", gzip.compress(b"")),
    "cut gzip": (".csv.gz", gzip.compress(table([{}] * 1000).encode())[:-9]),
    "a gzip bomb": (".jsonl.gz", lambda path: path.write_bytes(gzip.compress(requests([{}]).encode() * 400_000))),
    "gzip with something behind": (".csv.gz", gzip.compress(table([{}]).encode()) + b"x" * 99),
    "Parquet of random bytes": (".parquet", b"PAR1" + np.random.default_rng(7).bytes(4096) + b"PAR1"),
    "a footer beyond the file": (".parquet", b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1"),
    "a footer that lies": (".parquet", lying(parquet(plain_rows()), 8000)),
    "60 million rows": (".parquet", lambda path: path.write_bytes(many_rows())),
    "long texts": (".parquet", lambda path: path.write_bytes(long_texts())),
    "texts in lists": (".parquet", lambda path: path.write_bytes(texts_in_lists())),
    "30 million rows of nothing": (
        ".parquet",
        lambda path: path.write_bytes(parquet(pa.table(dict.fromkeys(list(REQUEST)[:3], pa.nulls(30_000_000))))),
    ),
    "no columns": (".parquet", parquet(pa.table({}))),
    "nested columns": (".parquet", lambda path: path.write_bytes(nested())),
    "Arrow": (".parquet", arrow(plain_rows())),
    "Arrow that lies": (".arrow", lying(arrow(plain_rows()), 2**40)),
    "an endless view": (".sqlite", database(
        "create table StringIds as select 1 as id, 'k' as value",
        f'create view {NSYS} as {ENDLESS.format(NSYS_COLUMNS)}')),
    "an empty database": (".sqlite", database("create table a (b)")),
    "SQLite's first bytes": (".sqlite", b"SQLite format 3\0" + b"\xff" * 4096),
    "a saved run of views": (".duckdb", saved("create view scenarios as select * from range(10) t(scenario_id)")),
    "a saved run that is endless": (
        ".duckdb",
        saved(*(f"create view {name} as select range as scenario_id from range(1000000000000)" for name in SAVED)),
    ),
    "a zip bomb": (".whl", lambda path: path.write_bytes(packed(b"0" * (1 << 28)))),
    "a script": (".sh", b"#!/bin/sh\ntouch pwned; $(touch pwned) `touch pwned`\nvllm serve $(touch pwned)\n"),
    "6,000 options": (".sh", b"vllm serve qwen3-0.6b" + b" --max-num-seqs 4" * 6000),
    "a program": (".py", b"import os\nos.system('touch pwned')\n"),
    "a page": (".html", b"<html><script>alert(1)</script></html>"),
    "an executable": ("", b"\x7fELF" + b"\0" * 999),
    ".pgpass": ("", f"db.example:5432:prod:admin:{SECRET}\n"),
    ".netrc": ("", f"machine api.example login me password {SECRET}\n"),
    ".env": ("", f"TOKEN={SECRET}\nOTHER={SECRET}\n"),
    "a token": ("", f"{SECRET}\n"),
    "a token twice": (".csv", f"{SECRET},{SECRET}\n{SECRET},1\n"),
    "a table of users": (".csv", f"github.com,me,{SECRET}\n" * 2),
    "secrets in JSON": (".json", json.dumps({"auths": {"registry.example": {"auth": SECRET}}, "list": [SECRET]})),
    "secrets as names": (".json", json.dumps({SECRET: {SECRET: 1}})),
    "a list of secrets": (".json", json.dumps([SECRET])),
    "/etc/shadow": ("", linked("/etc/shadow")),
    "/proc/self/mem": ("", linked("/proc/self/mem")),
    "/proc/kmsg": ("", linked("/proc/kmsg")),
    "a link to nothing": ("", linked("nowhere")),
    "a link to itself": ("", lambda path: path.symlink_to(path.name)),
    **{kind: ("", lambda path, kind=kind: special_file(path, kind)) for kind in SPECIAL},
}  # fmt: skip


def made(name: str, folder: Path, ending: str) -> Path:
    """Write an input below a folder, and return its path; ``ending``: of an input that has none of its own."""
    own, content = INPUTS[name]
    path = folder / f"file{own or ending}"
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path
