"""The session: giving, asking, forgetting what is stale, forking, saving, and its refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from kernelsight.dataflow.contract import load_contracts
from kernelsight.dataflow.graph import Graph
from kernelsight.errors import ContractBroken, InvalidInput, MissingTable, RunFailed, UnknownName
from kernelsight.kernels.families import LOWERED
from kernelsight.session import Session, connect
from tests.asked import refusals

FLOWS = Path(__file__).parent / "dataflow" / "flows"
ITEMS = pa.table({"item": ["tea", "cake"], "price": [2.0, 5.0]})
ORDERS = pa.table({"order_id": [1, 2, 3], "item": ["tea", "cake", "tea"], "pieces": [1, 1, 3]})
TOTALS = [{"item": "cake", "total": 5.0}, {"item": "tea", "total": 8.0}]

Open = Callable[..., Session]


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Return a function that opens a session over a little flow; every one is closed at the end."""
    monkeypatch.syspath_prepend(str(FLOWS))
    opened = []

    def open_session(name: str = "good", module: str = "flow_nodes", **options: object) -> Session:
        contracts = load_contracts(FLOWS / "schemas")
        opened.append(Session(Graph(contracts, FLOWS / name, module), **options))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


@pytest.fixture
def session(shop: Open) -> Session:
    """Return a session where items and orders are given."""
    session = shop()
    session.give("items", ITEMS)
    session.give("orders", ORDERS)
    return session


def ran(session: Session) -> list[str]:
    """Let the session note which nodes run from now on."""
    names: list[str] = []
    session.progress = lambda name, seconds: names.append(name) if seconds >= 0 else None
    return names


def test_asking_computes_what_is_needed_once(session: Session) -> None:
    names = ran(session)
    assert session.table("item_totals").to_pylist() == TOTALS
    assert names == ["order_totals", "item_totals"]
    assert session.table("report").to_pylist() == [{"line": "tea before cake"}]
    session.table("worst_item")
    assert names == ["order_totals", "item_totals", "best_item, worst_item", "report"]


def test_computed_tables_bear_their_contract(session: Session) -> None:
    schema = session.table("item_totals").schema
    assert schema.field("total").metadata == {b"doc": b"sum over its orders", b"unit": b"coins"}
    assert not schema.field("total").nullable


def test_sql_computes_the_tables_that_it_names(session: Session) -> None:
    names = ran(session)
    assert session.sql("select max(total) from item_totals").fetchall() == [(8.0,)]
    assert names == ["order_totals", "item_totals"]
    assert session.sql("pivot ITEM_TOTALS on item using sum(total)").fetchall() == [(5.0, 8.0)]
    assert session.query('select i."item" from item_totals as i order by all').column("item").to_pylist() == [
        "cake",
        "tea",
    ]
    assert names == ["order_totals", "item_totals"]


def test_a_column_that_bears_a_tables_name_computes_nothing(session: Session) -> None:
    assert session.sql("select 1 as weather, 2 as item_totals from items limit 1").fetchall() == [(1, 2)]


def test_giving_drops_what_is_downstream_and_nothing_else(session: Session) -> None:
    session.table("report")
    session.give("item_totals", pa.table({"item": ["tea", "cake"], "total": [1.0, 2.0]}))
    names = ran(session)
    assert session.table("order_totals").num_rows == 3
    assert session.sql("from report").fetchall() == [("cake before tea",)]
    assert names == ["best_item, worst_item", "report"]
    session.give("orders", ORDERS.slice(0, 1))
    assert session.table("item_totals").column("total").to_pylist() == [1.0, 2.0], "a given derived table stays"
    assert session.table("order_totals").num_rows == 1
    assert names == ["best_item, worst_item", "report", "order_totals"]


def test_one_of_a_nodes_tables_may_be_given_and_the_node_makes_the_other(session: Session) -> None:
    session.give("worst_item", pa.table({"item": ["soup"]}))
    assert session.table("report").to_pylist() == [{"line": "tea before soup"}]


def test_sql_sees_the_rows_of_the_last_give(session: Session) -> None:
    assert session.sql("select sum(total) from item_totals").fetchall() == [(13.0,)]
    session.give("items", ITEMS.set_column(1, "price", pa.array([1.0, 1.0])))
    assert session.sql("select sum(total) from item_totals").fetchall() == [(5.0,)]


def test_tables_go_out_and_come_in_as_pyarrow_polars_and_duckdb(session: Session, shop: Open) -> None:
    wanted = session.table("item_totals")
    for data in (wanted, pl.DataFrame(wanted), session.sql("from item_totals")):
        other = shop()
        other.give("item_totals", data)
        assert other.table("item_totals").equals(wanted)
        assert other.sql("from item_totals").pl().equals(pl.DataFrame(wanted))


def test_a_fork_shares_what_is_there_and_leaves_the_session_untouched(session: Session) -> None:
    session.table("item_totals")
    fork = session.fork()
    names = ran(fork)
    assert fork.sql("from item_totals").to_arrow_table().num_rows == 2
    assert names == []
    fork.give("items", ITEMS.set_column(1, "price", pa.array([1.0, 1.0])))
    assert fork.sql("select sum(total) from item_totals").fetchall() == [(5.0,)]
    assert session.sql("select sum(total) from item_totals").fetchall() == [(13.0,)]
    assert session.table("items").equals(session.fork().table("items"))
    session.close()
    assert fork.sql("select sum(total) from item_totals").fetchall() == [(5.0,)]
    fork.close()


def test_facts_stand_in_until_given_and_can_be_extended(shop: Open) -> None:
    reads = []
    session = shop(facts={"items": lambda: reads.append(1) or ITEMS.append_column("note", pa.array(["hot", "sweet"]))})
    assert reads == []
    session.give("orders", ORDERS)
    assert session.table("item_totals").to_pylist() == TOTALS
    session.extend("items", pa.table({"item": ["tea", "soup"], "price": [1.0, 9.0]}))
    assert session.table("items").select(["item", "price"]).to_pylist() == [
        {"item": "cake", "price": 5.0},
        {"item": "tea", "price": 1.0},
        {"item": "soup", "price": 9.0},
    ]
    assert session.table("item_totals").column("total").to_pylist() == [5.0, 4.0]
    assert reads == [1]


def test_the_catalogue_is_a_table() -> None:
    with connect() as session:
        row = session.query("""select kind, grain, node, inputs from catalogue_tables where "table" = 'gpus'""")
        assert row.to_pylist() == [{"kind": "given", "grain": "one row per GPU model", "node": None, "inputs": []}]
        assert session.columns("gpus").column("column").to_pylist() == session.table("gpus").column_names
        assert "gpus" in session.tables().column("table").to_pylist()
        with pytest.raises(InvalidInput, match="catalogue_tables is computed from the contracts"):
            session.give("catalogue_tables", session.tables())


def test_the_project_refuses_a_reference_to_a_name_that_is_not_there() -> None:
    with connect() as session:
        rows = session.sql("select * replace ('nvlink9' as link_fabric) from gpus where gpu = 'h100_sxm'")
        with pytest.raises(UnknownName, match="gpus.link_fabric is 'nvlink9', which is not in fabrics.fabric"):
            session.extend("gpus", rows)


def test_a_reference_is_refused_when_given_and_when_the_other_table_changes(session: Session) -> None:
    with pytest.raises(UnknownName) as refusal:
        session.give("orders", pa.table({"order_id": [1], "item": ["cakes"], "pieces": [1]}))
    assert str(refusal.value) == "orders.item is 'cakes', which is not in items.item. Did you mean cake?"
    assert session.table("orders").num_rows == 3, "a refused table replaces nothing"
    session.give("items", ITEMS.slice(0, 1))
    with pytest.raises(UnknownName, match="orders.item is 'cake', which is not in items.item"):
        session.table("item_totals")
    session.give("orders", ORDERS.slice(0, 1))
    assert session.table("item_totals").num_rows == 1


@pytest.mark.parametrize(
    ("query", "kind", "words"),
    refusals("test_session::test_a_fault_of_the_users_query_is_one_sentence"),
)
def test_a_fault_of_the_users_query_is_one_sentence(session: Session, query: str, kind: type, words: str) -> None:
    with pytest.raises(kind) as refusal:
        session.query(query)
    assert words in str(refusal.value) and "\n" not in str(refusal.value)


GLOBAL_FRAME = pa.table({"x": [5]})


def test_frames_among_the_callers_variables_are_tables(session: Session) -> None:
    own, number = pa.table({"x": [1]}), 3
    assert session.sql("select * from own").fetchall() == [(1,)]
    assert session.sql("select own.x + global_frame.x from own, GLOBAL_FRAME").fetchall() == [(6,)]
    lazily = pl.DataFrame({"x": [2], "y": ["b"]})
    assert session.query("select * from lazily").to_pylist() == [{"x": 2, "y": "b"}]
    assert lazily.height == own.num_rows == 1
    items = pa.table({"x": [9]})  # a table of the session comes before a variable of its name
    assert "x" not in session.sql("select * from items").columns and items.num_rows == 1
    with pytest.raises(UnknownName, match="unknown table 'number'"):
        session.sql("select * from number")
    assert number == 3


def test_a_table_of_ones_own_has_any_other_name(session: Session, tmp_path: Path) -> None:
    session.give("prices", pl.DataFrame({"item": ["bolt"], "price": [2.0]}))
    session.give("notes", [{"item": "bolt", "note": "cheap"}])
    joined = session.sql("select price, note from prices join notes using (item)").fetchall()
    assert joined == [(2.0, "cheap")] and session.table("prices").num_rows == 1
    assert session.fork().table("notes").num_rows == 1
    with pytest.raises(InvalidInput, match="'No Table' cannot name a table; use lower-case letters"):
        session.give("No Table", ITEMS)
    with pytest.raises(InvalidInput, match="table 'strange' cannot be read from a int"):
        session.give("strange", 3)

    class Frame:
        def __arrow_c_stream__(self, requested_schema: object = None) -> None:
            raise pa.ArrowInvalid("Could not convert 'x'", "Conversion failed for column a")

    for mixed in ([{"a": 1}, {"a": "x"}], [{"a": 1}, {"a": object()}], [{"a": 2**70}], Frame()):
        with pytest.raises(InvalidInput, match="table 'mixed' cannot be read .*; give each column values of one type"):
            session.give("mixed", mixed)


def test_a_session_belongs_to_its_thread(session: Session) -> None:
    def elsewhere() -> None:
        assert session.fork().table("items").num_rows >= 0
        with pytest.raises(InvalidInput, match="this session belongs to the thread that opened it"):
            session.table("items")

    with ThreadPoolExecutor(1) as thread:
        thread.submit(elsewhere).result()


def test_unknown_and_missing_tables_are_told_apart(session: Session) -> None:
    with pytest.raises(UnknownName, match="unknown table 'itms'. Did you mean items"):
        session.table("itms")
    with pytest.raises(MissingTable, match="missing input table 'weather'"):
        session.table("forecast")


def test_a_node_that_breaks_its_contract_or_fails_is_named(shop: Open) -> None:
    for flow, kind, words in (
        (
            "breaks_contract",
            ContractBroken,
            "table 'order_totals' (from breaks_contract/order_totals.sql) violates its",
        ),
        ("fails_at_run", RunFailed, "fails_at_run/order_totals.sql failed: Binder Error"),
    ):
        session = shop(flow)
        session.give("items", ITEMS)
        session.give("orders", ORDERS)
        with pytest.raises(kind) as refusal:
            session.table("order_totals")
        assert words in str(refusal.value)
    session = shop("good", "forgetful_nodes")
    session.give("items", ITEMS)
    with pytest.raises(RunFailed, match="extremes returned best_item, expected best_item, worst_item"):
        session.table("worst_item")


def test_a_saved_file_reopens_with_everything_and_computes_nothing_again(
    session: Session, shop: Open, tmp_path: Path
) -> None:
    session.table("item_totals")
    session.save(tmp_path / "run.duckdb")
    assert [path.name for path in tmp_path.iterdir()] == ["run.duckdb"]
    saved = shop(path=tmp_path / "run.duckdb", read_only=True)
    names = ran(saved)
    assert saved.table("item_totals").equals(session.table("item_totals"))
    assert saved.sql("from orders").fetchall() == session.sql("from orders").fetchall()
    assert names == []
    saved.fork().give("items", ITEMS.slice(0, 1))
    assert saved.table("items").num_rows == 2
    assert saved.table("report").num_rows == 1
    assert names == ["best_item, worst_item", "report"]


def test_a_saved_file_bears_comments_and_an_old_storage_version(session: Session, tmp_path: Path) -> None:
    session.save(tmp_path / "run.duckdb", ["item_totals"])
    with duckdb.connect(tmp_path / "run.duckdb", read_only=True) as connection:
        assert connection.execute("select table_name, comment from duckdb_tables()").fetchall() == [
            ("item_totals", "What an item earned. Grain: one item.")
        ]
        comments = "select comment, is_nullable from duckdb_columns() where column_name = 'total'"
        assert connection.execute(comments).fetchall() == [("sum over its orders [coins]", False)]
        version = "select tags['storage_version'] from duckdb_databases() where database_name = 'run'"
        assert connection.execute(version).fetchall()[0][0].startswith("v1.5.0")


@pytest.mark.parametrize(("value", "kind"), [(0.375, "FLOAT[]"), (0.1, "DOUBLE[]")])
def test_arrays_of_single_precision_take_half_the_bytes(tmp_path: Path, value: float, kind: str) -> None:
    with connect() as session:
        rows = session.table("eta_coefficients").slice(0, 2).drop_columns(["array"])
        arrays = pa.array([[value, 2.0], None], pa.list_(pa.float64()))
        session.give("eta_coefficients", rows.append_column("array", arrays))
        session.save(tmp_path / "run.duckdb", ["eta_coefficients"])
        given = session.table("eta_coefficients")
    with duckdb.connect(tmp_path / "run.duckdb", read_only=True) as connection:
        query = "select data_type from duckdb_columns() where column_name = 'array'"
        assert connection.execute(query).fetchall() == [(kind,)]
    with connect(tmp_path / "run.duckdb", read_only=True) as saved:
        assert saved.table("eta_coefficients").equals(given)


def test_a_save_that_fails_leaves_the_old_file(session: Session, tmp_path: Path) -> None:
    session.save(tmp_path / "run.duckdb")
    before = (tmp_path / "run.duckdb").read_bytes()
    with pytest.raises(MissingTable):
        session.save(tmp_path / "run.duckdb", ["items", "forecast"])
    assert (tmp_path / "run.duckdb").read_bytes() == before
    with pytest.raises(InvalidInput, match="cannot be written: folder"):
        session.save(tmp_path / "nowhere" / "run.duckdb")


def test_a_session_on_a_path_keeps_what_is_given_and_drops_what_is_stale(shop: Open, tmp_path: Path) -> None:
    path = tmp_path / "plan.duckdb"
    with shop(path=path) as first:
        first.give("items", ITEMS)
        first.give("orders", ORDERS)
        first.table("item_totals")
        first.save(path)
        first.give("items", ITEMS.set_column(1, "price", pa.array([1.0, 1.0])))
    with shop(path=path) as second:
        assert second.table("orders").num_rows == 3
        names = ran(second)
        assert second.table("item_totals").column("total").to_pylist() == [1.0, 4.0]
        assert names == ["order_totals", "item_totals"]
        fork = second.fork()
        second.give("orders", ORDERS.slice(0, 1))
        assert fork.table("orders").num_rows == 3
    with shop(path=path, read_only=True) as third:
        assert third.table("orders").num_rows == 1


def test_files_that_cannot_be_used_are_refused(session: Session, shop: Open, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"file .*run.duckdb does not exist"):
        shop(path=tmp_path / "run.duckdb", read_only=True)
    (tmp_path / "text.duckdb").write_text("no database" * 1000)
    with pytest.raises(InvalidInput, match=r"text.duckdb cannot be opened as a DuckDB file"):
        shop(path=tmp_path / "text.duckdb")
    with pytest.raises(InvalidInput, match="read_only needs the path of a saved run"):
        connect(read_only=True)
    session.save(tmp_path / "items.duckdb", ["items"])
    with pytest.raises(MissingTable, match="items.duckdb has no table report and cannot compute it: .*orders"):
        shop(path=tmp_path / "items.duckdb", read_only=True).table("report")


def test_a_table_in_a_file_that_breaks_its_contract_is_refused_and_a_strangers_table_is_read(
    shop: Open, tmp_path: Path
) -> None:
    with duckdb.connect(tmp_path / "made.duckdb") as connection:
        connection.execute("create table items as select 'tea' as item, -1.0 as price")
        connection.execute("create table guests as select 7 as seats")
    session = shop(path=tmp_path / "made.duckdb", read_only=True)
    with pytest.raises(ContractBroken, match=r"table 'items' .from .*made.duckdb. violates its contract: column price"):
        session.table("items")
    assert session.sql("select seats from guests").fetchall() == [(7,)]


def test_importing_the_session_and_explaining_load_nothing_heavy() -> None:
    heavy = ("jax", "polars", "numba", "jsonschema", "pandas")
    program = (
        "import sys, kernelsight.session as s; c = s.connect(); c.explain('gpus'); c.table('fabrics'); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", ["qwen3-0.6b", "mixtral-8x7b-v0.1", "deepseek-v3", "qwen3-next-80b-a3b"])
def test_families_that_are_not_asked_for_launch_nothing(model: str) -> None:
    """What is left out, because no deployment launches it, is what its query does not find."""
    row = {
        "deployment_id": "d",
        "model": model,
        "gpu": "h200_sxm",
        "tp": 8,
        "pp": 1,
        "dp": 1,
        "ep": 1,
        "engine": "vllm",
    }
    shape = {"deployment_id": "d", "step_shape_id": 0, "part": "whole", "x": 0.0, "y": 0.0, "tokens": 68, "sampled": 5}
    shape |= {"decode_requests": 4, "decode_context": 100, "decode_window_context": 100}
    shape |= {"prefill_requests": 1, "prefill_tokens": 64, "prefill_cached": 0}
    with connect() as session:
        session.give("deployments", [row])
        session.give("step_shapes", [shape])
        calls = set(session.table("kernel_calls")["family"].to_pylist())
        for family in LOWERED:
            found = session.query(session.graph.node(f"{family}_calls").text).num_rows
            assert session.table(f"{family}_calls").num_rows == session.table(f"{family}_latencies").num_rows == found
            assert (found > 0) == (family in calls)
