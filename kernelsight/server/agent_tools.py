"""MCP server (Model Context Protocol) with KernelSight's verbs as read-only tools for agents, with bounded answers.

Nothing is written, and a query reads no local files. Traces, logs and configs are read if a call names them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from kernelsight.dataflow.rows import python_rows
from kernelsight.errors import KernelSightError, flags_in_errors
from kernelsight.scenario.deployment_flags import DEPLOYMENT, LIMITS, POLICIES, PREFILL, SPECULATION
from kernelsight.scenario.flag import Flag
from kernelsight.scenario.flags import FLAGS
from kernelsight.scenario.load_flags import LENGTHS, LOAD, POOLS, ROUTER, SITE
from kernelsight.session import Session, connect
from kernelsight.version import VERSION

MOST_ROWS = 200
INSTRUCTIONS = """Predicts LLM serving on GPUs: kernel latencies, forward steps, TTFT, TPOT, throughput, capacity.
Start with `size` (which GPUs, how many), `simulate` (latencies of one deployment under a load) or `predict` (one step,
kernel by kernel). Answers state a 90 % interval and what they assume: repeat both. Names of GPUs and models: tables
gpus and models, through `sql`."""
DEPLOYED = (*DEPLOYMENT, *LIMITS, *POLICIES, *SPECULATION)
LOADED = (*POOLS, *PREFILL, *LOAD, *LENGTHS, *ROUTER, *SITE)
TYPES = {"whole": int, "switch": bool, "yes": bool, "positive": float, "share": float, "not_negative": float}
TYPES |= {"span": float, "share_or_none": float}


def parameters(flags: Iterable[Flag]) -> list[inspect.Parameter]:
    """Return flags as optional keyword parameters with their help, from which MCP derives a tool's schema."""
    keyword_parameters = []
    for flag in flags:
        annotation = TYPES.get(flag.kind, str) | None
        field_options = {
            "description": flag.help or flag.name,
            **({"examples": list(flag.choices)} if flag.choices else {}),
        }
        annotated = Annotated[annotation, Field(**field_options)]
        keyword_parameters.append(
            inspect.Parameter(flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotated)
        )
    return keyword_parameters


def with_flags(function: Callable[..., Any], flags: Iterable[Flag]) -> Callable[..., Any]:
    """Return a tool that takes flags in addition to the parameters of a function ``(session, flags, parameters...)``.

    KernelSightError becomes ToolError, which an agent can read; every call has its own session.
    """
    parameters_of_tool = list(inspect.signature(function, eval_str=True).parameters.values())[2:]
    added = parameters(flags)

    def tool(**arguments: Any) -> dict[str, Any]:
        flag_values = {
            parameter.name: arguments[parameter.name]
            for parameter in added
            if arguments.get(parameter.name) is not None
        }
        try:
            with connect(files=False) as session, flags_in_errors(False):
                return function(
                    session,
                    flag_values,
                    **{
                        parameter.name: arguments[parameter.name]
                        for parameter in parameters_of_tool
                        if parameter.name in arguments
                    },
                )
        except KernelSightError as error:
            raise ToolError(str(error)) from None

    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters_of_tool]
    tool.__signature__ = inspect.Signature([*keywords, *added], return_annotation=dict[str, Any])
    tool.__name__, tool.__doc__ = function.__name__, function.__doc__
    return tool


def bounded(table: Any) -> dict[str, Any]:
    """Return the first MOST_ROWS rows of an Arrow table, its row count, and whether it is truncated."""
    return {
        "rows": python_rows(table.slice(0, MOST_ROWS)),
        "row_count": table.num_rows,
        "truncated": table.num_rows > MOST_ROWS,
    }


def tables(session: Session, _: dict[str, Any], table: str | None = None) -> dict[str, Any]:
    """List all tables with their grain and description, or the columns of one."""
    return bounded(session.columns(table) if table else session.tables())


def explain(session: Session, _: dict[str, Any], table: str) -> dict[str, Any]:
    """Show which queries and functions compute a table, in order."""
    return {"text": session.explain(table)}


def sql(session: Session, _: dict[str, Any], query: str) -> dict[str, Any]:
    """Run one DuckDB SELECT over given and derived tables, such as gpus and models; it reads no files."""
    return bounded(session.query(query))


def predict(
    session: Session,
    flags: dict[str, Any],
    phase: str = "decode",
    batch_size: int | None = None,
    input_len: int | None = None,
    context_len: int | None = None,
) -> dict[str, Any]:
    """Predict one forward step, kernel by kernel: phase prefill (batch_size prompts of input_len new tokens), decode
    (batch_size sequences with context_len cached tokens) or mixed (both)."""
    step = session.predict(
        phase=phase, batch_size=batch_size, input_len=input_len, context_len=context_len, **flags
    ).as_dict()
    return step | {"kernels": step["kernels"][:MOST_ROWS]}


def simulate(session: Session, flags: dict[str, Any]) -> dict[str, Any]:
    """Simulate serving a load on a deployment: TTFT, TPOT, ITL, E2E, throughput, KV cache, where the GPU time goes."""
    return session.simulate(**flags).summary


def sweep(session: Session, _: dict[str, Any], grid: dict[str, Any], slo: list[str] | None = None) -> dict[str, Any]:
    """Simulate every scenario of a grid: keys are flags of simulate, values a scalar or a list (their product);
    slo such as ["ttft_p95:1000"] adds meets_slo."""
    return bounded(session.sweep(grid, slo=slo).table("scenario_summary"))


def size(
    session: Session,
    flags: dict[str, Any],
    gpus: list[str],
    slo: list[str],
    rate: float | None = None,
    requests_per_day: float | None = None,
    users: int | None = None,
    total_gpus: int | None = None,
    daily_peak: float | None = None,
    prices: dict[str, float] | None = None,
    max_gpus: int = 8,
) -> dict[str, Any]:
    """Find the cheapest deployment for a request rate within objectives such as ["ttft_p95:1000", "tpot_p99:40"];
    in place of a rate users (each with one request in flight), or total_gpus (what these can serve); daily_peak: the
    peak of a day over its mean; prices: dollars per GPU-hour by name. It takes a minute."""
    question = {"gpus": gpus, "slo": slo, "rate": rate, "requests_per_day": requests_per_day, "prices": prices}
    question |= {"users": users, "total_gpus": total_gpus, "daily_peak": daily_peak}
    answer = session.size(**question, max_gpus=max_gpus, **flags).as_dict()
    return answer | {"rows": answer["rows"][:MOST_ROWS]}


def compare(session: Session, flags: dict[str, Any], log: list[str], log_format: str = "auto") -> dict[str, Any]:
    """Replay a production or benchmark log on a deployment: how far measurement and prediction differ, and why."""
    return session.compare(log=log, log_format=log_format, **flags).summary


def step_time(session: Session, flags: dict[str, Any], batch: list[tuple[int, int]]) -> dict[str, Any]:
    """Return the time of one engine step from (new tokens, past tokens) of each sequence, with its 90 % interval, and
    the energy of all GPUs (null: unknown)."""
    step = session.step_times(**flags)(batch)._asdict()
    return {name: None if math.isnan(value) else value for name, value in step.items()}


# every tool, with the flags that it takes in addition to its own parameters
TOOLS = (
    *((tables, ()), (explain, ()), (sql, ()), (sweep, ())),
    *((predict, DEPLOYED), (step_time, DEPLOYED), (compare, DEPLOYED)),
    *((simulate, (*DEPLOYED, *LOADED)), (size, (*DEPLOYED, *LOADED))),
)


def agent_server() -> MCPServer:
    """Return the MCP server with all TOOLS."""
    server = MCPServer("kernelsight", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING")
    for function, flags in TOOLS:
        parameters_of_tool = inspect.signature(function).parameters
        tool_flags = [flag for flag in flags if flag.name not in parameters_of_tool and flag.name in FLAGS]
        annotations = ToolAnnotations(
            read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        )
        server.add_tool(with_flags(function, tool_flags), annotations=annotations)
    return server
