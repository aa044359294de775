"""Tools for coding agents: schemas from the flags, the verbs' own answers, refusals, and nothing that writes."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.asked import refusals

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError

from kernelsight.errors import InvalidInput, KernelSightError, RunFailed
from kernelsight.files import bounded_files
from kernelsight.scenario.flags import FLAGS
from kernelsight.server import tool_functions
from kernelsight.server.agent_tools import agent_server
from kernelsight.server.tool_functions import TOOL, TOOLS, answer_of
from kernelsight.server.tool_process import ALARM_AFTER_S, ToolProcess

ENDLESS = "select count(*) from range(1000000000000) a, range(1000) b"


class Here(ToolProcess):
    """Computes calls in the process of the test."""

    async def call(self, tool: str, flags: Any, arguments: Any) -> dict[str, Any]:
        return answer_of(tool, flags, arguments)


def call(name: str, **given: Any) -> dict[str, Any]:
    result = asyncio.run(agent_server(Here(Path(), 100.0)).call_tool(name, given))
    assert not result.is_error
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def test_every_tool_is_listed_as_read_only_with_its_flags() -> None:
    listed = {tool.name: tool for tool in asyncio.run(agent_server(Here(Path(), 100.0)).list_tools())}
    assert listed.keys() == {function.__name__ for function, _ in TOOLS}
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed.values())
    fields = listed["simulate"].input_schema["properties"]
    assert {"model", "gpu", "tensor_parallel_size", "request_rate", "launch"} <= fields.keys()
    assert fields["max_num_seqs"]["description"] == "maximum number of running requests"
    assert fields["max_num_seqs"]["type"] == "integer" and listed["size"].input_schema["properties"][
        "max_num_seqs"
    ] == {"type": "integer"}
    assert "gpu" not in listed["size"].input_schema["properties"]
    assert listed["predict"].input_schema["properties"]["tensor_parallel_size"]["description"]
    assert set(listed["size"].input_schema["required"]) == {"gpus", "slo"}
    assert sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in listed.values()) < 20_000
    others = {row["option"] for offset in (0, TOOL.rows) for row in call("options", offset=offset)["rows"]}
    assert others == {name for name, flag in FLAGS.items() if not flag.everyday} and "block_size" not in fields


def test_options_beside_the_schema_are_taken_and_unknown_ones_refused() -> None:
    deployed = {"model": "qwen3-0.6b", "gpu": "l4", "batch": [[1, 512]]}
    eager = call("step_time", **deployed, enforce_eager=True)
    assert eager["latency_us"] > call("step_time", **deployed)["latency_us"]
    for tool, name, words in (
        ("step_time", "enforce_eagr", "Did you mean enforce_eager"),
        ("predict", "request_rate", "unknown argument 'request_rate'"),
        ("tables", "tble", "unknown argument 'tble'. Did you mean table"),
    ):
        with pytest.raises(ToolError, match=words):
            call(tool, **{name: 2})


@pytest.mark.whole
def test_answers_are_those_of_the_verbs() -> None:
    step = call("predict", model="qwen3-0.6b", gpu="l4", batch_size=4, context_len=512)
    assert step["p05_us"] < step["total_us"] < step["p95_us"] and step["kernels"]
    batch = call("step_time", model="qwen3-0.6b", gpu="l4", batch=[[1, 512]] * 4)
    assert batch["latency_us"] == pytest.approx(step["total_us"], rel=0.02)
    load = {"max_concurrency": 2, "num_prompts": 4, "input_len": 64, "output_len": 8}
    assert call("simulate", model="qwen3-0.6b", gpu="l4", **load)["completed"] == 4
    rows = call("sweep", grid={"model": "qwen3-0.6b", "gpu": ["l4", "a100_sxm"], **load})["rows"]
    assert [row["completed"] for row in rows] == [4, 4]


def test_rows_are_bounded_and_the_next_ones_can_be_had() -> None:
    answer = call("sql", query="select range as n from range(1000)")
    assert (len(answer["rows"]), answer["row_count"], answer["truncated"]) == (TOOL.rows, 1000, True)
    assert answer["note"] == "800 more rows follow; ask again with offset 200 for the next ones."
    pages = [call("sql", query="select range as n from range(1000)", offset=offset) for offset in (200, 990, 1000)]
    assert [(len(page["rows"]), page["row_count"], page["truncated"]) for page in pages] == [
        *((200, 1000, True), (10, 1000, False), (0, 1000, False))
    ]
    assert pages[1]["rows"][0] == {"n": 990}
    whole, rest = call("tables"), call("tables", offset=100)
    assert len(rest["rows"]) == len(whole["rows"]) - 100 and rest["row_count"] == len(whole["rows"]) > 100
    assert call("tables", table="gpus")["truncated"] is False
    assert "gpus" in json.dumps(call("explain", table="kernel_latencies")["rows"])


def test_values_and_answers_are_bounded() -> None:
    """Whatever a query returns, its answer stays below TOOL.answer_bytes."""
    (row,) = call("sql", query="select repeat('x', 3000000) as text, range(300000) as list, 1 as n")["rows"]
    assert row["text"] == "x" * TOOL.characters + "… (3,000,000 characters)" and row["n"] == 1
    assert row["list"].startswith("[0, 1, 2") and row["list"].endswith("(2,288,890 characters)")
    wide = call("sql", query=f"select repeat('é', {TOOL.characters}) as a, repeat('y', 900) as b from range(150)")
    assert 0 < len(wide["rows"]) < 150 == wide["row_count"] and wide["truncated"]
    assert len(json.dumps(wide)) < TOOL.answer_bytes
    assert f"ask again with offset {len(wide['rows'])} " in wide["note"]
    columns = ", ".join(f"repeat('x', {TOOL.characters}) as c{number}" for number in range(60))
    none = call("sql", query=f"select {columns}")
    assert none["rows"] == [] and "row 0 alone has more bytes than an answer may have" in none["note"]
    odd = call("sql", query="select 'nan'::double as a, 'inf'::double as b, date '2020-01-02' as d, 1.5::decimal as e")
    assert odd["rows"] == [{"a": None, "b": None, "d": "2020-01-02", "e": 1.5}]


def test_an_answer_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tool_functions.FUNCTIONS, "simulate", lambda *_: {"text": "x" * TOOL.answer_bytes})
    with pytest.raises(InvalidInput, match="the answer has 100,012 bytes, more than 100,000; ask for less"):
        answer_of("simulate", {}, {})


def test_a_long_name_is_not_repeated() -> None:
    with pytest.raises(ToolError) as refused:
        call("predict", model="qwen3-0.6b", gpu="x" * 100_000, context_len=5)
    assert "unknown GPU 'xxxx" in str(refused.value) and len(str(refused.value)) < 300


def of_process(main: Any, root: Path, most_s: float = 100.0) -> Any:
    """Run a coroutine of a process that computes, and end that."""

    async def run() -> Any:
        process = ToolProcess(root, most_s)
        try:
            return await main(process)
        finally:
            await process.close()

    return asyncio.run(run())


def test_a_call_that_takes_too_long_or_is_cancelled_ends_its_process(tmp_path: Path) -> None:
    async def main(process: ToolProcess) -> list[Any]:
        assert (await process.call("sql", {}, {"query": "select 1 as one"}))["rows"] == [{"one": 1}]
        ended = [process._process]
        process.most_s = 1.0
        with pytest.raises(RunFailed, match="sql took longer than 1 s, the most for one call; ask for less"):
            await process.call("sql", {}, {"query": ENDLESS})
        process.most_s = 40.0
        task = asyncio.ensure_future(process.call("sql", {}, {"query": ENDLESS}))
        while process._process is None:
            await asyncio.sleep(0.01)
        ended.append(process._process)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(KernelSightError, match="unknown table"):
            await process.call("explain", {}, {"table": "none"})
        for each in ended:
            each.stdin.close()
            await asyncio.wait_for(each.communicate(), 40.0)
        return [each.returncode for each in ended]

    assert of_process(main, tmp_path) == [-signal.SIGKILL, -signal.SIGKILL]


@pytest.mark.parametrize("way", ["its parent is gone", "the alarm"])
def test_a_process_that_computes_does_not_outlive_its_parent(tmp_path: Path, way: str) -> None:
    async def main(process: ToolProcess) -> int:
        if way == "the alarm":
            process.most_s = 2.0 - ALARM_AFTER_S
        child = await process._start()
        assert child.stdin is not None
        child.stdin.write(json.dumps(["sql", {}, {"query": ENDLESS}]).encode() + b"\n")
        await child.stdin.drain()
        if way != "the alarm":
            child.stdin.close()
        await asyncio.wait_for(child.communicate(), 60.0)
        child.stdin.close()
        return child.returncode

    assert of_process(main, tmp_path) == (-signal.SIGALRM if way == "the alarm" else 0)


PATHS = (
    "/etc/passwd",
    "~/.netrc",
    "~root/.netrc",
    "../secret",
    "sub/../../secret",
    "@/etc/passwd",
    "@../secret",
    "link",
)


@pytest.fixture
def confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder below which alone files are read, with a link that leads out of it."""
    root = tmp_path / "root"
    root.mkdir()
    (tmp_path / "secret").write_text("db.example:5432:prod:admin:hunter2\n", encoding="utf-8")
    (root / "link").symlink_to(tmp_path / "secret")
    monkeypatch.setattr(bounded_files, "_ROOTS", [])
    monkeypatch.chdir(root)
    bounded_files.confine(root)
    return root


@pytest.mark.parametrize("path", PATHS)
def test_files_outside_of_the_root_are_not_read(confined: Path, path: str) -> None:
    """By each argument that may be a path; the link is found by the reader of the file."""
    server = agent_server(Here(confined, 100.0))
    link = path == "link"
    calls: list[tuple[str, dict[str, Any]]] = [
        ("simulate", {"gpu": "l4", "model": "qwen3-0.6b", "trace": path}),
        ("simulate", {"gpu": "l4", "launch": f"@{path.removeprefix('@')}"}),
        ("compare", {"gpu": "l4", "model": "qwen3-0.6b", "log": [path]}),
        ("sweep", {"grid": {"gpu": "l4", "model": "qwen3-0.6b", "trace": ["none", path]}}),
        *([] if link else [("predict", {"gpu": "l4", "model": path, "context_len": 5})]),
    ]
    for name, given in calls:
        with pytest.raises(ToolError) as refused:
            asyncio.run(server.call_tool(name, given))
        assert "hunter2" not in str(refused.value)
        if not (link and name == "sweep"):  # its first trace does not exist
            assert f"lies outside of {confined}, below which files are read" in str(refused.value), name


def test_files_below_the_root_are_read(confined: Path) -> None:
    (confined / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,2\n", encoding="utf-8")
    given = {"model": "qwen3-0.6b", "gpu": "l4"}
    for path in ("trace.csv", "./trace.csv", str(confined / "trace.csv")):
        answer = asyncio.run(agent_server(Here(confined, 100.0)).call_tool("simulate", given | {"trace": path}))
        assert answer.structured_content["completed"] == 1


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "stdin", "cancelled"])
def test_the_command_and_its_work_end(tmp_path: Path, way: str) -> None:
    """During an endless query: a signal ends it with 128 plus its number, a closed stdin with 0; also if cancelled."""
    words = [sys.executable, "-m", "kernelsight", "mcp", "--root", str(tmp_path)]
    client = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None

        def send(method: str, number: int | None = None, **params: Any) -> None:
            message = {"jsonrpc": "2.0", "method": method, "params": params} | ({"id": number} if number else {})
            server.stdin.write(json.dumps(message).encode() + b"\n")
            server.stdin.flush()

        send("initialize", 1, **client)
        server.stdout.readline()
        send("notifications/initialized")
        send("tools/call", 2, name="sql", arguments={"query": ENDLESS})
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        while not (numbers := children.read_text().split()):
            time.sleep(0.05)
        if way == "stdin":
            server.stdin.close()
        elif way == "cancelled":
            send("notifications/cancelled", requestId=2)
            send("tools/call", 3, name="sql", arguments={"query": "select 41 + 1 as answer"})
            answer = json.loads(server.stdout.readline())
            assert answer["id"] == 3 and answer["result"]["structuredContent"]["rows"] == [{"answer": 42}]
            server.stdin.close()
        else:
            server.send_signal(getattr(signal, way))
        assert server.wait(60) == {"SIGTERM": 143, "SIGINT": 130}.get(way, 0)
    while Path(f"/proc/{numbers[0]}").exists() and " Z " not in Path(f"/proc/{numbers[0]}/stat").read_text():
        time.sleep(0.05)


@pytest.mark.parametrize(
    "name, given, message",
    refusals("server/test_agent_tools::test_refusals_say_what_to_do"),
)
def test_refusals_say_what_to_do(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        asyncio.run(agent_server(Here(Path(), 100.0)).call_tool(name, given))


@pytest.mark.whole
def test_the_official_client(tmp_path: Path) -> None:
    """The command as a client starts it, over stdin and stdout: tools with schemas, answers, refusals, no file."""
    (tmp_path / "json.py").write_text("print('taken')\n")  # a folder of anyone: no module of it is imported
    words = ["-P", "-m", "kernelsight", "mcp"]
    command = StdioServerParameters(command=sys.executable, args=words, cwd=tmp_path)
    copied = tmp_path / "gpus.csv"

    async def ask() -> tuple[Any, Any, Any, Any]:
        async with Client(stdio_client(command)) as client:
            tools = (await client.list_tools()).tools
            rows = await client.call_tool("sql", {"query": "select gpu from gpus cross join range(1000) order by gpu"})
            read = await client.call_tool("sql", {"query": "select * from read_text('/etc/passwd')"})
            write = await client.call_tool("sql", {"query": f"copy gpus to '{copied}'"})
            return tools, rows, read, write

    tools, rows, read, write = asyncio.run(ask())
    assert {tool.name for tool in tools} == {function.__name__ for function, _ in TOOLS}
    assert all(tool.annotations.read_only_hint and tool.input_schema["type"] == "object" for tool in tools)
    answer = rows.structured_content
    assert len(answer["rows"]) == TOOL.rows and answer["row_count"] > TOOL.rows and answer["truncated"]
    assert read.is_error and "file" in read.content[0].text
    assert write.is_error and "SELECT" in write.content[0].text
    assert [path.name for path in tmp_path.iterdir()] == ["json.py"]
