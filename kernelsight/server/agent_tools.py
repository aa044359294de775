"""MCP server (Model Context Protocol) with KernelSight's verbs as read-only tools for agents.

Each call is computed in another process, within limits on its time, the size of its answer and the files it reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field

from kernelsight.dataflow.signals import ENDING
from kernelsight.errors import InvalidInput, KernelSightError, shown, unknown
from kernelsight.scenario.flag import Flag
from kernelsight.scenario.flags import ALIASES, FLAGS
from kernelsight.server.tool_functions import TOOLS
from kernelsight.server.tool_process import ToolProcess
from kernelsight.version import VERSION

INSTRUCTIONS = """Predicts LLM serving on GPUs: kernel latencies, forward steps, TTFT, TPOT, throughput, capacity.
Start with `size` (which GPUs, how many), `simulate` (latencies of one deployment under a load) or `predict` (one step,
kernel by kernel). Answers state a 90 % interval and what they assume: repeat both. Names of GPUs and models: tables
gpus and models, through `sql`. Schemas show everyday options, which `simulate` and `predict` describe; `options` lists
further ones, which these tools take as well."""
# names of a tool's arguments in an error
MOST_NAMED = 12
TYPES = {"whole": int, "number": float, "switch": bool, "yes": bool}
# the tools whose schemas describe the options; in others they have names and types alone
DESCRIBING = ("simulate", "predict")


def parameters(flags: Iterable[Flag], described: bool) -> list[inspect.Parameter]:
    """Return flags as optional keyword parameters, from which MCP derives a tool's schema; with help if described."""
    keyword_parameters = []
    for flag in flags:
        options: dict[str, Any] = {"description": flag.help or flag.name} if described else {}
        if described and flag.choices:
            options["examples"] = list(flag.choices)
        annotation = Annotated[TYPES.get(flag.kind, str) | None, Field(**options)]
        keyword_parameters.append(
            inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        )
    return keyword_parameters


def with_flags(function: Callable[..., Any], flags: Iterable[Flag], process: ToolProcess) -> Callable[..., Any]:
    """Return a tool that takes flags in addition to the parameters of a function ``(session, flags, parameters...)``.

    KernelSightError becomes ToolError, which an agent can read.
    """
    parameters_of_tool = list(inspect.signature(function, eval_str=True).parameters.values())[2:]
    added = parameters(flags, function.__name__ in DESCRIBING)

    async def tool(**arguments: Any) -> CallToolResult:
        given = {name: value for name, value in arguments.items() if value is not None}
        flag_values = {parameter.name: given.pop(parameter.name) for parameter in added if parameter.name in given}
        try:
            for name, value in (flag_values | given).items():
                if name != "query":
                    _check_paths(name, value, process.root)
            answer = await process.call(function.__name__, flag_values, given)
        except KernelSightError as error:
            raise ToolError(str(error)) from None
        # the library would indent the text, which doubles it
        return CallToolResult(content=[TextContent(text=json.dumps(answer))], structured_content=answer)

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters_of_tool]
    tool.__signature__ = inspect.Signature([*keywords, *added], return_annotation=dict[str, Any])
    tool.__name__, tool.__doc__ = function.__name__, inspect.cleandoc(function.__doc__ or "")
    return tool


def _check_paths(name: str, value: Any, root: Path) -> None:
    """Check that texts of an argument which are paths lie below a folder, whether or not there is such a file.

    A path relative to the folder may still be a link: its reader follows it, and checks again.
    """
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            _check_paths(name, each, root)
    if not isinstance(value, str):
        return
    path = Path(value.removeprefix("@"))
    if path.is_absolute() or ".." in path.parts or value.removeprefix("@").startswith("~"):
        place = Path(os.path.normpath(root / path.expanduser())) if "~" not in path.parts[0] else Path("/")
        if not place.is_relative_to(root):
            raise InvalidInput(f"{name} {shown(value)} lies outside of {root}, below which files are read.")


class _Server(MCPServer):
    """A server whose tools refuse arguments that they do not know, which the library would leave out."""

    async def call_tool(self, name: str, arguments: dict[str, Any], *context: Any) -> Any:
        """Return the result of a tool; ToolError: it does not know an argument, or refuses."""
        tool = self._tool_manager.get_tool(name)
        known = tool.fn_metadata.arg_model.model_fields if tool else arguments
        if wrong := next((argument for argument in arguments if argument not in known), None):
            own = ALIASES.get(wrong)
            own_names = ", ".join(list(known)[:MOST_NAMED])
            hint = f"It is {own} here." if own in known else f"Tool {name} takes {own_names}."
            raise ToolError(str(unknown("argument", wrong, () if own in known else known, hint)))
        try:
            return await super().call_tool(name, arguments, *context)
        except ToolError as error:
            first, *lines = str(error).splitlines()
            if "validation error" not in first or len(lines) < 2:
                raise
            needed = lines[1].partition("[type=")[0].strip()
            argument = lines[0].partition(".")[0]
            raise ToolError(f"argument {argument} of tool {name}: {needed[:1].lower()}{needed[1:]}.") from None


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool's input schema without what clients do not need: titles, null types, defaults of null, and options
    that are not everyday ones.

    >>> field = {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None, "title": "N", "description": "n"}
    >>> compact({"title": "t", "type": "object", "properties": {"n": field, "block_size": field}})
    {'type': 'object', 'properties': {'n': {'description': 'n', 'type': 'integer'}}}
    """
    fields = {}
    for name, field in schema.get("properties", {}).items():
        if name in FLAGS and not FLAGS[name].everyday:
            continue
        short = {key: value for key, value in field.items() if key not in ("title", "anyOf")}
        if short.get("default", 0) is None:
            del short["default"]
        types = [each for each in field.get("anyOf", []) if each != {"type": "null"}]
        fields[name] = short | types[0] if len(types) == 1 else short | ({"anyOf": types} if types else {})
    return {key: value for key, value in schema.items() if key != "title"} | {"properties": fields}


def agent_server(process: ToolProcess) -> MCPServer:
    """Return the MCP server with all TOOLS, computed in ``process``."""
    server = _Server("kernelsight", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING")
    for function, flags in TOOLS:
        parameters_of_tool = inspect.signature(function).parameters
        tool_flags = [flag for flag in flags if flag.name not in parameters_of_tool and flag.name in FLAGS]
        annotations = ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
        server.add_tool(with_flags(function, tool_flags, process), annotations=annotations)
        tool = server._tool_manager.get_tool(function.__name__)
        assert tool is not None
        tool.parameters = compact(tool.parameters)
    return server


def serve_agent(root: Path, most_s: float) -> None:
    """Serve a client on stdin and stdout until it disconnects; a signal ends the program with 128 plus its number."""
    asyncio.run(_serve(ToolProcess(root, most_s)))


async def _serve(process: ToolProcess) -> None:
    def stop(number: int) -> None:
        process.end()
        os._exit(128 + number)  # a thread that waits for stdin would hold up any other end

    for number in (signal.SIGINT, *ENDING):
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        await agent_server(process).run_stdio_async()
    finally:
        await process.close()
