"""read_trace: every format and container, and each refusal by its sentence."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernelsight.catalog.tables import contracts
from kernelsight.errors import InvalidInput
from kernelsight.serving.load import trace_files
from kernelsight.serving.load.recorded_loads import read_load, read_trace
from kernelsight.serving.load.requests import draw_loads
from kernelsight.serving.load.traces import TRACE_SCHEMA
from tests.calls_made import calls_made
from tests.made_traces import arrivals, azure_csv, conversations

PUBLISHED = Path(__file__).parents[4] / "shared" / "data" / "traces"
AZURE = PUBLISHED / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv.gz"
MOONCAKE = PUBLISHED / "mooncake-fast25" / "conversation_trace.jsonl.gz"
needs_published = pytest.mark.skipif(not PUBLISHED.is_dir(), reason="the published traces are not beside the checkout")

OWN = "arrival_s,prompt_tokens,output_tokens\n"
MOONCAKE_LINE = '{"timestamp": 0, "input_length": 513, "output_length": 2, "hash_ids": [7, 8]}\n'


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a trace file and returns its path; the ending says nothing on purpose."""

    def write(content: str | bytes, name: str = "load.data") -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def test_columns_are_those_of_the_requests_contract():
    # what a load adds, and no trace states
    added = {"load_id", "request_id"}
    types = {c.name: c.type for c in contracts()["load_requests"].columns if c.name not in added}
    spelled = {"double": "float64", "list<item: int64>": "list<int64>"}
    assert {f.name: spelled.get(str(f.type), str(f.type)) for f in TRACE_SCHEMA} == types


def test_azure_2023_keeps_every_row_and_its_hundred_nanoseconds(written):
    sent = arrivals(700)
    table = read_trace(written(gzip.compress(azure_csv(sent))))
    assert table.num_rows == 700 and table.schema == TRACE_SCHEMA
    assert table["prompt_tokens"].to_pylist() == [one.prompt for one in sent]
    assert table["output_tokens"].to_pylist() == [one.output for one in sent]
    assert set(table["hash_ids"].to_pylist()) == set(table["priority"].to_pylist()) == {None}
    found = table["arrival_s"].to_numpy()
    # ticks are told from each other, and two requests of one tick come together
    assert np.rint(found * 1e7).astype(int).tolist() == [one.arrival for one in sent]
    assert found == pytest.approx(np.array([one.arrival for one in sent]) / 1e7, abs=1e-9)
    assert {0, 1} < set(np.diff([one.arrival for one in sent]).tolist())


def test_mooncake_equals_a_plain_reading(written):
    asked = conversations(300)
    table = read_trace(written(gzip.compress("".join(one.as_line() for one in asked).encode())))
    assert table["arrival_s"].to_pylist() == [one.arrival_ms / 1000 for one in asked]
    assert table["prompt_tokens"].to_pylist() == [one.prompt for one in asked]
    assert table["output_tokens"].to_pylist() == [one.output for one in asked]
    assert table["hash_ids"].to_pylist() == [one.hashes for one in asked]
    assert set(table["hash_block_tokens"].to_pylist()) == {512}


@needs_published
def test_the_published_azure_file_where_it_is_beside_the_checkout():
    table = read_trace(AZURE)
    assert table.num_rows == 8819 and table.schema == TRACE_SCHEMA
    lines = gzip.decompress(AZURE.read_bytes()).decode().split()
    fields = [line.rsplit(",", 2) for line in lines if line.count(",") == 2 and not line.startswith("TIMESTAMP")]
    assert table["prompt_tokens"].to_pylist() == [int(f[1]) for f in fields]
    # 18:17:03.97996 to 19:14:19.928016
    assert table["arrival_s"][-1].as_py() == pytest.approx(57 * 60 + 15.948056, abs=1e-9)


@needs_published
def test_the_published_mooncake_file_where_it_is_beside_the_checkout():
    table = read_trace(MOONCAKE)
    plain = [json.loads(line) for line in gzip.decompress(MOONCAKE.read_bytes()).splitlines()]
    assert table.num_rows == len(plain) == 12031
    assert table["arrival_s"].to_pylist() == [r["timestamp"] / 1000 for r in plain]
    assert table["output_tokens"].to_pylist() == [r["output_length"] for r in plain]
    assert table["hash_ids"].to_pylist() == [r["hash_ids"] for r in plain]
    assert set(table["hash_block_tokens"].to_pylist()) == {512}
    assert all(len(r["hash_ids"]) == -(-r["input_length"] // 512) for r in plain)


def test_azure_2024_has_an_offset_and_sometimes_no_fraction(written):
    rows = [
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01+00:00,2399,6",
        "2024-05-10 02:00:02+02:00,1,1",
    ]
    table = read_trace(written("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows)))
    assert table["arrival_s"].to_pylist() == [0.0, 0.99007, 1.99007]


def test_burstgpt_with_and_without_session_columns(written):
    old = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n"
    )
    new = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    new += "5.5,,0.2,GPT-4,472,18,490,API log\n"
    for text in (old, new):
        table = read_trace(written(text))
        assert table.select(["arrival_s", "prompt_tokens", "output_tokens"]).to_pylist() == [
            {"arrival_s": 0.0, "prompt_tokens": 472, "output_tokens": 18}
        ]


requests = st.lists(
    st.fixed_dictionaries(
        {
            "request_id": st.from_regex(r"[a-z]{1,5}-[0-9]{1,3}", fullmatch=True),
            "gap_s": st.floats(0, 1e4).map(lambda x: round(x, 3)),
            "prompt_tokens": st.integers(1, 300),
            "output_tokens": st.integers(1, 2**53),
            "shared": st.booleans(),
            "priority": st.none() | st.integers(-3, 3),
        }
    ),
    min_size=1,
    max_size=12,
)


def own_columns(drawn: list[dict]) -> dict[str, list]:
    """Lay drawn requests out in the project's own format, with hashes for the shared ones."""
    arrivals = np.cumsum([r["gap_s"] for r in drawn]).tolist()
    shared = [list(range(-1, -(-r["prompt_tokens"] // 16) - 1)) if r["shared"] else None for r in drawn]
    names = ("request_id", "prompt_tokens", "output_tokens")
    return {name: [r[name] for r in drawn] for name in names} | {
        "arrival_s": arrivals,
        "hash_ids": shared,
        "hash_block_tokens": [16 if r["shared"] else None for r in drawn],
        "priority": [r["priority"] for r in drawn],
        "warmup": [0] * len(drawn),
    }


def as_csv(columns: dict[str, list]) -> bytes:
    cells = [[str(v).replace(",", ";") if v is not None else "" for v in column] for column in columns.values()]
    return "\r\n".join([",".join(columns), *map(",".join, zip(*cells, strict=True))]).encode()


def as_json_lines(columns: dict[str, list]) -> bytes:
    rows = zip(*columns.values(), strict=True)
    return "\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in rows).encode()


def as_parquet(columns: dict[str, list]) -> bytes:
    sink = pa.BufferOutputStream()
    large = pa.array(columns["hash_ids"], pa.large_list(pa.int32()))  # as polars writes lists
    pa.parquet.write_table(pa.table(columns | {"hash_ids": large}), sink)
    return sink.getvalue().to_pybytes()


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


@settings(max_examples=15, deadline=None)
@given(requests)
def test_every_container_gives_the_same_table(tmp_path_factory, drawn):
    columns, folder = own_columns(drawn), tmp_path_factory.mktemp("containers")
    expected = pa.table(
        {
            "external_id": columns["request_id"],
            "arrival_s": np.array(columns["arrival_s"]) - columns["arrival_s"][0],
            **{name: columns.get(name, [None] * len(drawn)) for name in TRACE_SCHEMA.names[2:-1]},
            "warmup": [False] * len(drawn),
        },
        schema=TRACE_SCHEMA,
    )
    for write in (as_csv, as_json_lines, as_parquet):
        content = write(columns)
        for compress in (bytes, gzip.compress, zstd):
            path = folder / "load"
            path.write_bytes(compress(content))
            assert read_trace(path).equals(expected), (write, compress)


@settings(max_examples=40, deadline=None)
@given(requests)
def test_line_by_line_reading_equals_arrow(drawn):
    data = as_json_lines(own_columns(drawn))
    fast = trace_files._read_json_lines(Path("x"), data, None)
    slow = trace_files._read_json_line_by_line(Path("x"), data, fast.format)
    assert slow.columns.equals(fast.columns.select(slow.columns.column_names))
    assert [slow.place(i) for i in range(len(drawn))] == [fast.place(i) for i in range(len(drawn))]


def test_identifiers_may_be_numbers_and_fields_in_any_order(written):
    text = '{"output_tokens": 2, "arrival_s": 1, "request_id": 17, "prompt_tokens": 3.0, "user": {"a": [1]}}\n\n'
    text += '{"output_tokens": 2, "arrival_s": 1.5, "prompt_tokens": 3}\n'
    assert read_trace(written(text)).to_pylist() == [
        {"external_id": "17", "arrival_s": 0.0, "prompt_tokens": 3, "output_tokens": 2}
        | {"hash_ids": None, "hash_block_tokens": None, "priority": None, "adapter": None, "warmup": False},
        {"external_id": None, "arrival_s": 0.5, "prompt_tokens": 3, "output_tokens": 2}
        | {"hash_ids": None, "hash_block_tokens": None, "priority": None, "adapter": None, "warmup": False},
    ]


def test_priorities_are_whole_numbers_where_there_are_any(written, left_out):
    header = "arrival_s,prompt_tokens,output_tokens,priority\n"
    assert read_trace(written(f"{header}0,3,2,-1\n1,3,2,\n"))["priority"].to_pylist() == [-1, None]
    sentence = ", line 3: priority is 'soon', but must be a whole number"
    assert left_out(written(f"{header}0,3,2,1\n1,3,2,soon\n")) == sentence


def test_warm_ups_come_first_and_wait_for_no_other(written, left_out):
    header = "arrival_s,prompt_tokens,output_tokens,warmup,request_id,after\n"
    path = written(f"{header}0,3,2,1,a,\n0,4,2,,b,\n1,5,2,0,c,\n")
    assert read_trace(path)["warmup"].to_pylist() == [True, False, False]
    load = {"load_id": "l", "trace": str(path), "num_prompts": 1, "num_warmups": 2}
    sent = draw_loads(pa.Table.from_pylist([load])).load_requests
    # copies of the first request, the trace's own, and then as many as asked for
    assert list(zip(sent["prompt_tokens"].to_pylist(), sent["warmup"].to_pylist(), strict=True)) == [
        *[(3, True)] * 3,
        (4, False),
    ]
    late, waiting = "it is a warm-up after a measured request", "it is a warm-up, and waits for another request"
    assert left_out(written(f"{header}0,3,2,0,a,\n1,3,2,1,b,\n")) == f", line 3: {late}"
    assert left_out(written(f"{header}0,3,2,1,a,b\n0,3,2,1,b,\n1,3,2,,c,\n")) == f", line 2: {waiting}"
    assert left_out(written(f"{header}0,3,2,2,a,\n1,3,2,,b,\n")) == ", line 2: warmup is '2', but must be 0 or 1"
    with pytest.raises(InvalidInput, match="all of its requests are warm-ups"):
        read_trace(written(f"{header}0,3,2,1,a,\n"))


def test_adapters_are_numbered_in_order_of_appearance(written):
    lines = "arrival_s,prompt_tokens,output_tokens,adapter\n0,3,2,sql\n1,3,2,\n2,3,2,law\n3,3,2,sql\n"
    assert read_trace(written(lines))["adapter"].to_pylist() == [0, None, 1, 0]


@pytest.fixture
def left_out(caplog) -> Callable[[Path], str]:
    """Return what is said of the one row of a trace that cannot be used, while the others are."""
    caplog.set_level("INFO")

    def said(path: Path) -> str:
        rows = read_trace(path).num_rows
        assert caplog.messages[-1].startswith(f"trace {path}: 1 of {rows + 1} requests cannot be used and are left out")
        return "," + caplog.messages[-1].partition(";")[2]

    return said


def refused(path: Path, **options) -> str:
    """Return the sentence that reading the file is refused with, without the path."""
    with pytest.raises(InvalidInput) as caught:
        read_trace(path, **options)
    sentence = str(caught.value)
    assert (
        sentence.startswith(f"trace {path}")
        and "\n" not in sentence
        and (sentence.endswith(".") or "--columns" in sentence)
    )
    return re.sub(r"^trace [^:,]*", "", sentence)


# a line each: what a file holds, and the sentence that refuses it or says which of its rows is left out
REFUSED = [json.loads(line) for line in (Path(__file__).parent / "refused_traces.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["case"])
def test_files_and_rows_that_cannot_be_used_are_refused_or_left_out(written, left_out, case):
    content = case["text"].encode(errors="surrogateescape")
    if "left_out" in case:
        assert left_out(written(content)) == case["left_out"]
    else:
        assert refused(written(content)) == refused(written(gzip.compress(content))) == case["refused"]


def test_an_unknown_format_names_what_was_found_and_what_is_known(written):
    sentence = refused(written("when,arrival_ms\n1,2\n"))
    advice = "Map them: --columns arrival_s=… prompt_tokens=… output_tokens=…"
    assert sentence == f": unknown format with 2 fields: 'arrival_ms'. {advice}"
    with pytest.raises(InvalidInput) as caught:
        read_trace(written("when,arrival_ms\n1,2\n"))
    for name in ("Mooncake (timestamp, ", "Azure LLM inference (TIMESTAMP, ", "BurstGPT (Timestamp, "):
        assert name in caught.value.details
    assert "unknown format" in refused(written(bytes(range(128, 256)) * 2000))


def test_files_that_cannot_be_opened(written, tmp_path):
    assert refused(tmp_path / "none.csv") == ": the file does not exist. Give the path to a readable trace file."
    assert "the folder has no file that ends with .json" in refused(tmp_path)
    whole = {gzip.compress: 20, zstd: 12}
    for compress, kept in whole.items():
        damaged = compress((OWN + "0,1,1\n" * 1000).encode())[:-kept]
        assert "it cannot be decompressed" in refused(written(damaged))
    assert "the file cannot be read as Parquet" in refused(written(as_parquet(own_columns([]))[:-9]))


SIZE = "but must be a whole number of tokens, at least 1"


def test_an_order_is_the_files(written):
    sentence = ", line 3: arrival_s is '4.5', but the previous request arrived later. Sort the trace by arrival_s."
    assert refused(written(OWN + "5,1,1\n4.5,1,1\n6,1,1\n")) == sentence


def test_rows_are_left_out_by_reason_and_those_that_wait_for_them_too(written, caplog):
    caplog.set_level("INFO")
    header = "arrival_s,prompt_tokens,output_tokens,after,request_id\n"
    rows = ["0,1,1,,a", "1,0,1,,b", "2,1,1,b,c", "3,1,1,c,d", "4,1,1,a,e", "5,1", "6,1,1,,a", "7,1,x,,g", "8,0,2,,h"]
    sentence = refused(written(header + "\n".join(rows)))
    assert sentence.endswith("Of 9 requests 7 cannot be used: give a trace of a known form.")
    rows += [f"9,1,1,,good{number}" for number in range(5)]
    load = read_load(written(header + "\n".join(rows)))
    assert load.requests["external_id"].to_pylist()[:2] == ["a", "e"] and load.dependencies.after.tolist() == [0]
    assert caplog.messages[-1].partition(": ")[2] == (
        "7 of 14 requests cannot be used and are left out; line 3: prompt_tokens is '0', but must be a whole number of "
        "tokens, at least 1 (2 requests); line 7: 2 fields instead of 5; line 8: request_id is 'a', that of an earlier "
        "request as well; line 9: output_tokens is 'x', but must be a whole number of tokens, at least 1; line 4: "
        "after is 'b', but no request has this request_id; …"
    )


def test_unix_times_in_milliseconds_are_refused_with_the_way_out(written):
    assert refused(written(OWN + "1732000000000,1,1\n1732000000100,1,1\n")) == (
        ", line 2: arrival_s is '1732000000000', but must be in seconds, and these are over 3,000 years. Divide all of "
        "them by 1e3 if they are milliseconds, by 1e9 if nanoseconds."
    )
    seconds = read_trace(written(OWN + "1732000000.0,1,1\n1732000000.1,1,1\n"))
    assert seconds["arrival_s"].to_pylist() == pytest.approx([0.0, 0.1])


def test_blank_lines_are_counted(written, left_out):
    assert left_out(written(OWN + "\n0,1,1\n\n\n1,1,0\n")).startswith(", line 6: output_tokens is '0'")
    assert left_out(written(OWN + "0,1,1\n\n1,1\n")).startswith(", line 4: 2 fields")
    for bad in ("0", '"x"'):
        json_lines = MOONCAKE_LINE + "\n" + MOONCAKE_LINE.replace("513", bad)
        assert left_out(written(json_lines)).startswith(", line 3: input_length is ")
    assert refused(written(OWN + "\n0,1,0\n\n1,0,1\n")).startswith(", line 3: output_tokens is '0', but must be")


def test_failed_requests_of_burstgpt_are_left_out_and_counted(written, caplog):
    caplog.set_level("INFO")
    path = written("Timestamp,Model,Request tokens,Response tokens\n5,GPT-4,3,4\n6,GPT-4,3,0\n7,GPT-4,9,1\n")
    assert read_trace(path)["arrival_s"].to_pylist() == [0.0, 2.0]
    assert "1 of 3 requests cannot be used and are left out; line 3: it failed (0 Resp" in caplog.messages[-1]
    for rows in ("5,3,0\n", "5,3,0\n6,0,2\n"):
        sentence = refused(written("Timestamp,Request tokens,Response tokens\n" + rows))
        assert sentence.startswith(", line 2: it failed (0 Response tokens)")


BLOCKS = {"published": ([(1100, 3)], 512), "found": ([(40, 3), (99, 6)], 16), "no power of two": ([(1000, 41)], 24)}


@pytest.mark.parametrize("prompts, block", BLOCKS.values(), ids=BLOCKS)
def test_the_size_of_blocks_is_found_from_the_numbers_of_ids(written, prompts, block):
    row = {"timestamp": 1, "output_length": 2}
    lines = [json.dumps(row | {"input_length": n, "hash_ids": list(range(ids))}) for n, ids in prompts]
    assert read_trace(written("\n".join(lines) + "\n"))["hash_block_tokens"][0].as_py() == block


def test_a_chat_trace_in_seconds_and_a_task_without_times(written):
    row = {"parent_chat_id": -1, "input_length": 32, "output_length": 5, "hash_ids": [1, 2]}
    lines = [json.dumps(row | {"chat_id": chat, "timestamp": time}) for chat, time in ((4, 0.5), (5, 2.5))]
    trace = read_trace(written("\n".join(lines)))
    assert trace.select(["external_id", "arrival_s", "hash_block_tokens"]).to_pylist()[1] == {
        **{"external_id": "5", "arrival_s": 2.0, "hash_block_tokens": 16}}  # fmt: skip
    task = '{"request_id": 0, "type": "text", "input_length": 61, "output_length": 2370, "duration": 14000}'
    assert not read_load(written(task)).timed


COLUMNS = "arrival_s=when (ms)[ms];prompt_tokens=tok in;output_tokens=out"


def test_columns_of_other_names_are_mapped_and_proposed(written):
    path = written("when (ms),tok in,out\n1000,7,8\n3000,9,10\n")
    assert read_load(path, columns=COLUMNS).requests["arrival_s"].to_pylist() == [0.0, 2.0]
    dates = written("at,tok in,out\n2026-05-10T00:00:00Z,7,8\n2026-05-10T00:00:01.5Z,9,10\n")
    dated = read_load(dates, columns="arrival_s=at;prompt_tokens=tok in;output_tokens=out").requests
    assert dated["arrival_s"].to_pylist() == [0.0, 1.5]
    for columns, words in (
        ("when=at", "unknown column 'when'"),
        ("arrival_s=att;prompt_tokens=tok in;output_tokens=out", "it has no column 'att' for arrival_s. It has at."),
        ("arrival_s=at", "--columns leaves out prompt_tokens, output_tokens"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(words)):
            read_load(dates, columns=columns)
    proposed = refused(written("ts,in_tok,out_tok\n1,2,3\n"))
    assert proposed.endswith("Try --columns arrival_s=ts prompt_tokens=in_tok output_tokens=out_tok")


SHAREGPT = [{"id": "a", "conversations": [
    {"from": "human", "value": "How do I reverse a list in Python, and what does it cost?"},
    {"from": "gpt", "value": "Use reversed(xs) or xs[::-1]."}, {"from": "human", "value": "And in place?"},
    {"from": "gpt", "value": "xs.reverse() works in place."}]}]  # fmt: skip
BATCH = {"custom_id": "r", "body": {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}}


def test_texts_of_chats_become_requests_that_wait_for_the_answer_before(written, caplog):
    caplog.set_level("INFO")
    load = read_load(written(json.dumps(SHAREGPT)))
    assert load.requests["output_tokens"].to_pylist() == [8, 7] and not load.timed
    first, second = load.requests["hash_ids"].to_pylist()
    assert second[: len(first)] == first and len(second) > len(first) > 0
    assert (load.dependencies.request.tolist(), load.dependencies.after.tolist()) == ([1], [0])
    assert "2 requests of texts, whose tokens are estimated, four bytes a token" in caplog.messages[-1]
    batch = json.dumps(BATCH | {"body": BATCH["body"] | {"max_tokens": 64}})
    assert read_load(written(batch + "\n" + json.dumps(BATCH))).requests["output_tokens"].to_pylist() == [64]
    assert caplog.messages[-1].endswith("; 1 messages without an answer are left out")
    prompts = '{"prompt": "one two three", "completion": "four five"}\n'
    assert read_load(written(prompts)).requests["output_tokens"].to_pylist() == [3]
    for content, words in (
        (json.dumps(BATCH), "none of its 1 messages has an answer or max_tokens"),
        ('{"messages": [}\n', "line 1: not a JSON object (Expecting"),
        ('[{"messages": []}, 5]', "entry 2: it is no object"),
        ('{"prompt": "\\ud800", "completion": "x"}', "it has half of a surrogate pair"),
    ):
        assert words in refused(written(content))


def test_a_date_that_is_none(written):
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    sentence = ", line 2: TIMESTAMP is 'noon', but must be a date and time such as 2024-05-10 00:00:00.25+00:00. "
    assert refused(written(header + "noon,1,1\n")) == sentence + "Correct or remove it."
    unsorted = header + "2023-11-16 18:17:04.0000001,1,1\n2023-11-16 18:17:04.0000000,1,1\n"
    assert refused(written(unsorted)).endswith("the previous request arrived later. Sort the trace by TIMESTAMP.")


def test_hashes_of_the_own_format_need_their_block(written, left_out):
    header = "arrival_s,prompt_tokens,output_tokens,hash_ids"
    advice = "Add hash_block_tokens, or remove hash_ids."
    found = "hash_ids is set without hash_block_tokens, the number of tokens per hash"
    assert left_out(written(f"{header}\n0,9,1,\n0,9,1,5 6\n")) == f", line 3: {found}"
    assert refused(written(f"{header}\n0,9,1,5 6\n")) == f", line 2: {found}. {advice}"
    header += ",hash_block_tokens"
    assert left_out(written(f"{header}\n0,9,1,4,16\n0,9,1,5,\n")) == f", line 3: {found}"
    assert left_out(written(f"{header}\n0,9,1,4,16\n0,9,1,5,0\n")) == f", line 3: hash_block_tokens is '0', {SIZE}"
    assert refused(written(f"{header}\n0,9,1,4 x,8\n")).startswith(", line 2: hash_ids is '4 x', but must be 64-bit")
    table = read_trace(written(f'{header}\n0,9,1,"[4, 5]",8\n0,9,1,,\n'))
    assert table["hash_ids"].to_pylist() == [[4, 5], None]


def test_parquet_rows_and_types(tmp_path, left_out):
    def sentence(said=refused, **columns) -> str:
        columns = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 2], "output_tokens": [1, 2]} | columns
        pa.parquet.write_table(pa.table(columns), tmp_path / "x.bin")
        return said(tmp_path / "x.bin")

    assert sentence(left_out, prompt_tokens=[1, 0]) == f", row 2: prompt_tokens is 0, {SIZE}"
    assert sentence(prompt_tokens=[True, True]) == f", row 1: prompt_tokens is True, {SIZE}. Correct or remove it."
    assert sentence(left_out, prompt_tokens=[1, None]) == f", row 2: prompt_tokens is missing, {SIZE}"
    assert sentence(request_id=[[1], [2]]).startswith(": request_id has values of type list<")
    assert sentence(hash_ids=[1.5, 2.5]) == ": hash_ids has values of type double. Write lists of 64-bit whole numbers."
    assert sentence(left_out, arrival_s=[1.0, float("inf")]).startswith(
        ", row 2: arrival_s is inf, but must be a finite number"
    )
    times = pa.array([1, 2], pa.time64("ns"))
    assert sentence(arrival_s=times).startswith(", row 1: arrival_s is '00:00:00.000000001', but must be a finite")


def test_a_date_that_nanoseconds_cannot_count_is_left_out(tmp_path, left_out):
    far = {"TIMESTAMP": pa.array([0, 2**60], pa.timestamp("ms")), "ContextTokens": [1, 2], "GeneratedTokens": [1, 2]}
    pa.parquet.write_table(pa.table(far), tmp_path / "far.parquet")
    assert "must be within 30 years of the first request" in left_out(tmp_path / "far.parquet")


def test_a_quarter_million_lines_are_read_in_bulk(written):
    n = 250_000
    path = written(OWN + "\n".join(f"{i / 8},{i % 4000 + 1},{i % 90 + 1}" for i in range(n)))
    table, calls = calls_made(lambda: read_trace(path))
    assert calls < n / 10
    assert table.num_rows == n and table["arrival_s"][-1].as_py() == (n - 1) / 8


def test_text_that_is_not_utf8_is_no_name(written, left_out):
    line = b'{"request_id": "a\xff", "arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1}\n'
    assert left_out(written(line.replace(b"\xff", b"") + line)).startswith(", line 2: not a JSON object ('utf-8' codec")


def test_byte_order_marks_and_iso_dates_are_understood(written):
    text = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10T00:00:00Z,1,2\n2024-05-10T00:00:00.5Z,3,4\n"
    assert read_trace(written(text))["arrival_s"].to_pylist() == [0.0, 0.5]
    assert read_trace(written("\ufeff" + MOONCAKE_LINE)).num_rows == 1
