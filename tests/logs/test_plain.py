"""Plain tables: names and units of the user, dates, statuses, values that are none."""

from __future__ import annotations

import io

import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from kernelsight.logs import read_logs, read_table
from kernelsight.logs.read_logs import read_requests
from tests.logs.asked import faults, refusal, rows
from tests.logs.written import lines, save

CSV = """request_id,arrival_s,sent_s,prompt_tokens,output_tokens,cached_tokens,ttft_ms,e2e_ms,ttft_clock,status,note
a,10.5,10.6,100,11,50,40,140,gateway,ok,"hello, world"
b,11.5,11.5,200,1,0,60,60,gateway,200,
c,12.5,12.5,300,0,,,,gateway,timeout,
"""


def test_every_container_holds_the_same(tmp_path):
    (tmp_path / "list").mkdir()
    expected = rows(read_logs(save(tmp_path / "a.csv", CSV)))
    table = pyarrow.csv.read_csv(io.BytesIO(CSV.encode()))
    pq.write_table(table, tmp_path / "a.parquet")
    paths = [
        tmp_path / "a.parquet",
        save(tmp_path / "a.csv.gz", CSV),
        save(tmp_path / "a.jsonl", lines(table.to_pylist())),
    ]
    paths.append(save(tmp_path / "list" / "a.json", table.to_pylist()))
    for path in paths:
        assert rows(read_logs(path)) == expected
    assert [row | {"log_id": "a"} for row in rows(read_table(table))] == expected
    polars_rows = [row | {"log_id": "a"} for row in rows(read_table(pl.from_arrow(table)))]
    assert polars_rows == expected


def test_names_and_units_of_the_user(tmp_path):
    text = "when,in,out,first,last\n0,100,11,0.04,140000\n1000,200,11,0.05,150000\n"
    columns = {
        **{"arrival_s": "when[ms]", "prompt_tokens": "in", "output_tokens": "out", "ttft_clock": "=server_arrival"},
        **{"ttft_ms": "first[s]", "e2e_ms": "last[us]"},
    }
    first, second = rows(read_logs(save(tmp_path / "a.csv", text), columns=columns))
    assert (second["arrival_s"], second["prompt_tokens"]) == (1.0, 200)
    assert (first["ttft_ms"], first["e2e_ms"], first["ttft_clock"]) == (40.0, 140.0, "server_arrival")


def test_fields_of_inner_objects_are_columns_by_their_path(tmp_path):
    objects = [{"at": at, "usage": {"in": 100, "d": {"out": 11}}, "took": 140} for at in (0, 1)]
    columns = {"arrival_s": "at", "prompt_tokens": "usage.in", "output_tokens": "usage.d.out", "e2e_ms": "took"}
    for path in (save(tmp_path / "a.jsonl", lines(objects)), save(tmp_path / "a.json", objects)):
        first, second = rows(read_logs(path, columns=columns))
        assert (second["arrival_s"], first["prompt_tokens"], first["output_tokens"]) == (1.0, 100, 11)


def test_lists(tmp_path):
    entry = {"arrival_s": 1, "prompt_tokens": 600, "output_tokens": 3, "ttft_ms": 9.0, "hash_ids": [7, 8]}
    entry |= {"hash_block_tokens": 512, "chunk_gaps_ms": [5.0, 6.0], "e2e_ms": 20.0}
    [row] = rows(read_logs(save(tmp_path / "a.jsonl", lines([entry]))))
    assert (row["hash_ids"], row["chunk_gaps_ms"], row["tokens_per_chunk"]) == ([7, 8], [5.0, 6.0], 1.0)


def test_times_in_milliseconds_that_would_be_read_as_seconds_are_refused(tmp_path):
    text = "arrival_s,prompt_tokens,output_tokens,e2e_ms\n1732000000000,1,2,3\n1732000000100,1,2,3\n"
    path = save(tmp_path / "a.csv", text)
    assert "has times of sending around 1,732,000,000,050 s, over 3,000 years. Name the unit" in refusal(path)
    found = rows(read_logs(path, columns={"arrival_s": "arrival_s[ms]"}))
    assert found[1]["arrival_s"] == pytest.approx(0.1, abs=1e-6)


def test_values_that_are_no_number_drop_their_row(tmp_path):
    text = CSV.replace("200,1,0", "many,1,0").replace("\nc,", "\nx,1\nc,")
    tables = read_logs(save(tmp_path / "a.csv", text))
    assert faults(tables) == {"unreadable_value": 1, "unreadable_line": 1, "failed": 1}
    assert [row["external_id"] for row in rows(tables)] == ["a", "c"]


@pytest.mark.parametrize(("closed", "lost"), [(None, 9), (6, 4)])
def test_a_quote_that_is_not_closed_loses_every_line_up_to_the_next(tmp_path, closed, lost):
    names = [f'"{n}' if n in (3, closed) else str(n) for n in range(12)]
    text = "".join(f"{name},{n},100,10,40\n" for n, name in enumerate(names))
    tables = read_logs(save(tmp_path / "a.csv", f"request_id,arrival_s,prompt_tokens,output_tokens,ttft_ms\n{text}"))
    assert faults(tables)["unreadable_line"] == lost and len(rows(tables)) == 12 - lost


def test_a_clock_that_is_not_stated_is_noted(tmp_path):
    text = CSV.replace("ttft_clock", "other")
    assert faults(read_logs(save(tmp_path / "a.csv", text)))["ttft_clock_unknown"] == 2


def test_missing_columns_are_all_named(tmp_path):
    path = save(tmp_path / "a.csv", "when,prompt,out\n1,2,3\n")
    sentence = refusal(path, format="table")
    assert "has no column arrival_s, prompt_tokens, output_tokens, one of ttft_ms, tpot_ms, e2e_ms" in sentence
    assert "it has out, prompt, when" in sentence
    sentence = refusal(path, columns={"arrival_s": "wen"})
    assert "has no column 'wen' for arrival_s" in sentence and "It has when" in sentence
    assert "unknown column 'ttft'" in refusal(path, columns={"ttft": "out"})
    assert "names no column" in refusal(path, columns={"ttft_ms": ""})


@pytest.mark.parametrize(
    ("column", "value", "sentence"),
    [
        ("power_w", "-3", "column power_w: 1 row fails 'power_w >= 0' (row 2: -3.0 W)"),
        ("hash_block_tokens", "0", "column hash_block_tokens: 1 row fails 'hash_block_tokens > 0'"),
        ("tokens_from", "guess", "column tokens_from: 1 row fails"),
        ("ttft_clock", "sundial", "column ttft_clock: 1 row fails"),
    ],
)
def test_a_value_that_the_contract_refuses_is_its_row_s(column, value, sentence, tmp_path):
    """Rows count as in the file: this log is not sorted, and its last row has no prompt."""
    text = f"arrival_s,prompt_tokens,output_tokens,e2e_ms,ttft_ms,{column}\n"
    path = save(tmp_path / "a.csv", f"{text}9,10,5,60,9,\n3,10,5,60,9,{value}\n5,0,5,60,9,\n")
    tables = read_logs(path)
    assert tables["production_requests"]["arrival_s"].to_pylist() == [0.0]
    (fault,) = [row for row in tables["log_faults"].to_pylist() if row["rule"] == "impossible_value"]
    assert (fault["n"], fault["example"]) == (1, "row 2") and sentence in fault["explanation"]
    requests, faults = read_requests(path, "auto", None)
    assert requests.height == 1 and faults.counted["impossible_value"][:2] == (1, "row 2")
    # where no row is left the file is at fault, and the row is the file's
    save(path, f"{text}5,0,5,60,9,\n9,10,5,60,9,{value}\n3,10,5,60,9,{value}\n")
    found = refusal(path)
    assert found.startswith(f"table 'production_requests' (from {path}) violates its contract: column {column}")
    assert "(row 3: " in found


@pytest.mark.parametrize(
    ("column", "value"),
    [("power_w", "inf"), ("power_w", "nan"), ("chunk_gaps_ms", '"[1.0,nan]"'), ("hash_ids", '"[1,null]"')],
)
def test_a_value_that_is_no_finite_number_is_unset(column, value, tmp_path):
    text = f"arrival_s,prompt_tokens,output_tokens,e2e_ms,ttft_ms,{column}\n"
    tables = read_logs(save(tmp_path / "a.csv", f"{text}9,10,5,60,9,{value}\n3,10,5,60,9,\n"))
    assert tables["production_requests"][column].null_count == 2
    (fault,) = [row for row in tables["log_faults"].to_pylist() if row["rule"] == "unset_value"]
    assert (fault["n"], fault["example"]) == (1, "row 1")


@pytest.mark.parametrize(
    ("start", "other"),
    [(1.7e9, "-1.0"), (1.7e9, "0"), (1.7e9, "1e300"), (5.0, "-1.0"), (5.0, "1.7e9"), (5.0, "2e11")],
)
def test_a_time_of_another_clock_is_its_row_s(start, other, tmp_path):
    """Such a row would be the start of the log, or its end, and the time between them decades."""
    text = "arrival_s,prompt_tokens,output_tokens,ttft_ms,e2e_ms\n"
    rows = "".join(f"{start + number},10,5,9,60\n" for number in range(4))
    tables = read_logs(save(tmp_path / "a.csv", f"{text}{rows}{other},10,5,9,60\n{start + 4},10,5,9,60\n"))
    assert tables["production_requests"]["arrival_s"].to_pylist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert tables["production_logs"]["clock"].to_pylist() == ["unix" if start > 1e8 else "monotonic"]
    (fault,) = [row for row in tables["log_faults"].to_pylist() if row["rule"] == "other_clock"]
    assert (fault["n"], fault["rows"], fault["example"]) == (1, "dropped", "row 5")


def test_columns_without_a_value_share_one_memory(tmp_path) -> None:
    """A plain table has six of more than thirty columns: the others would take more than half of the memory."""
    rows = [{"arrival_s": i / 4, "prompt_tokens": 64, "output_tokens": 9, "e2e_ms": 40.0} for i in range(500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "log.parquet")
    table = read_logs(tmp_path / "log.parquet")["production_requests"]
    table.validate(full=True)
    empty = [column.chunk(0).buffers()[1].address for column in table.columns if column.null_count == len(rows)]
    assert len(empty) > 10 and len(set(empty)) == 1
    assert table["queue_ms"].to_pylist() == table["replica"].to_pylist() == table["hash_ids"].to_pylist()
