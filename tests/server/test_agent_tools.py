"""Tools for coding agents: schemas from the flags, the verbs' own answers, refusals, and nothing that writes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError

from kernelsight.server.agent_tools import MOST_ROWS, TOOLS, agent_server


def call(name: str, **given: Any) -> dict[str, Any]:
    result = asyncio.run(agent_server().call_tool(name, given))
    assert not result.is_error
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def test_every_tool_is_listed_as_read_only_with_its_flags() -> None:
    listed = {tool.name: tool for tool in asyncio.run(agent_server().list_tools())}
    assert listed.keys() == {function.__name__ for function, _ in TOOLS}
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed.values())
    fields = listed["simulate"].input_schema["properties"]
    assert {"model", "gpu", "tensor_parallel_size", "request_rate", "launch"} <= fields.keys()
    assert fields["max_num_seqs"]["description"] == "maximum number of sequences in a batch"
    assert set(listed["size"].input_schema["required"]) == {"gpus", "slo"}


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


def test_rows_are_bounded() -> None:
    answer = call("sql", query="select range as n from range(1000)")
    assert (len(answer["rows"]), answer["row_count"], answer["truncated"]) == (MOST_ROWS, 1000, True)
    assert call("tables", table="gpus")["truncated"] is False
    assert "gpus" in call("explain", table="kernel_latencies")["text"]


@pytest.mark.parametrize(
    "name, given, message",
    [
        ("predict", {"model": "qwen3-0.6b", "gpu": "h1000", "context_len": 5}, "unknown GPU 'h1000'"),
        ("predict", {"model": "qwen3-0.6b", "gpu": "l4"}, "phase decode needs context_len"),
        ("sql", {"query": "drop table gpus"}, "SELECT"),
        ("sql", {"query": "select * from read_csv('/etc/passwd')"}, "file"),
        ("sql", {"query": "copy gpus to '/tmp/gpus.csv'"}, "SELECT"),
        ("size", {"gpus": ["l4"]}, "slo"),
    ],
)
def test_refusals_say_what_to_do(name: str, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolError, match=message):
        asyncio.run(agent_server().call_tool(name, given))


@pytest.mark.whole
def test_the_official_client(tmp_path: Path) -> None:
    """The command as a client starts it, over stdin and stdout: tools with schemas, answers, refusals, no file."""
    command = StdioServerParameters(command=sys.executable, args=["-m", "kernelsight", "mcp"], cwd=tmp_path)
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
    assert len(answer["rows"]) == MOST_ROWS and answer["row_count"] > MOST_ROWS and answer["truncated"]
    assert read.is_error and "file" in read.content[0].text
    assert write.is_error and "SELECT" in write.content[0].text
    assert list(tmp_path.iterdir()) == []
