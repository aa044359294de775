"""What is read out of a table once: by the very table, and no longer than it lives."""

from __future__ import annotations

import gc

import pyarrow as pa

from kernelsight.caches.memory_cache import LruCache, memoised


def test_equal_tables_are_read_each_on_their_own_and_keys_apart():
    one, other = pa.table({"n": [1]}), pa.table({"n": [1]})
    calls = []

    def read(name: str) -> str:
        calls.append(name)
        return name

    assert memoised((one,), "key", lambda: read("first")) == "first"
    assert memoised((one,), "key", lambda: read("again")) == "first"
    assert memoised((one,), "other key", lambda: read("second")) == "second"
    assert memoised((other,), "key", lambda: read("third")) == "third"
    assert memoised((one, other), "key", lambda: read("both")) == "both"
    assert calls == ["first", "second", "third", "both"]


def test_a_table_that_takes_the_place_of_one_that_is_gone_is_read_anew():
    for number in range(200):
        table = pa.table({"n": [number]})
        assert memoised((table,), "value", lambda table=table: table["n"].to_pylist()) == [number]
        del table
        gc.collect(0)


def test_heavy_values_take_the_place_of_many_light_ones():
    last = LruCache[str](10, weigh=len)
    for word in ("four", "five.", "six"):
        last.put(word, word)
    assert [last.get(word) for word in ("four", "five.", "six")] == [None, "five.", "six"]
    last.put("six", "again")
    assert [last.get(word) for word in ("five.", "six")] == ["five.", "again"]
    last.put("long", "longer than all of it")
    assert last.get("long") is None
