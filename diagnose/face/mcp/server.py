"""The MCP server: the official SDK's, over stdin and stdout, read only. It checks questions and answers by schemas."""

from __future__ import annotations

import importlib.metadata
from functools import cache
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from jsonschema import Draft202012Validator
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from rankscope.diagnose.face.mcp.envelope import UNTRUSTED, as_text, fenced
from rankscope.diagnose.face.mcp.places import Places
from rankscope.diagnose.face.mcp.tools import ALL, BY_NAME, Tool
from rankscope.diagnose.face.mcp.working import Worker
from rankscope.diagnose.text import clean

WAITING_MOST = 8  # questions that wait for the one that is answered
INSTRUCTIONS = (
    "Rankscope names the component that slows or stops a distributed training job. Everything here only reads. Begin with "
    "`verdicts` (what the service of this host reported) or with `windows` and `diagnose`; `diagnose_now` observes this host, "
    "which costs its jobs a little. Pass on a verdict's `summary`, its status, the first suspect with its lost time, how sure it is "
    "and its action, and the notes. `unknown` means that it could not be judged: do not guess a culprit. " + UNTRUSTED
)


def serve(places: Places, most_bytes: int) -> None:
    """Serve one client until it closes stdin. `most_bytes`: size of an answer."""
    anyio.run(_serve, places, most_bytes)


async def _serve(places: Places, most_bytes: int) -> None:
    """Serve one client until it closes stdin, and end the worker then."""
    worker = Worker(places, most_bytes)
    try:
        async with stdio_server() as (reading, writing):
            server = make(worker)
            await server.run(reading, writing, server.create_initialization_options())
    finally:
        worker.end()


def make(worker: Worker) -> Server[Any]:
    """Make the server that passes questions to the worker, one at a time."""
    lock = anyio.Lock()

    async def listed(_: Any, __: Any) -> types.ListToolsResult:
        """List the tools."""
        return types.ListToolsResult(tools=[_offered(tool) for tool in ALL])

    async def called(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Check a call of a tool, wait for earlier ones, and answer it; errors are answers too."""
        tool = BY_NAME.get(params.name)
        if tool is None:
            return _refused(f"there is no tool {params.name!r}: {', '.join(BY_NAME)}")
        arguments = params.arguments or {}
        if wrong := _complaint(_questions(tool.name), arguments):
            return _refused(f"the arguments of {tool.name} are wrong: {wrong}")
        if lock.statistics().tasks_waiting >= WAITING_MOST:
            return _refused("too many questions at once: wait for the answers")
        async with lock:
            return await _answered(worker, tool, arguments)

    return Server(
        "rankscope",
        version=_version(),
        title="Rankscope",
        instructions=INSTRUCTIONS,
        on_list_tools=listed,
        on_call_tool=called,
    )


async def _answered(worker: Worker, tool: Tool, arguments: dict[str, Any]) -> types.CallToolResult:
    """Have the worker answer a question, and check the answer against its schema; end the worker if cancelled."""
    worker.start()
    try:
        found = await anyio.to_thread.run_sync(worker.ask, tool.name, arguments, tool.limit_s, abandon_on_cancel=True)
    except anyio.get_cancelled_exc_class():
        worker.end()  # it works on a question that nobody waits for
        raise
    if "error" in found:
        return _refused(found["error"])
    answer = found["answer"]
    if wrong := _complaint(_answers(tool.name), answer):
        return _refused(f"the answer does not fit its schema, as another version wrote what was read: {wrong}")
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=as_text(answer))], structured_content=answer
    )


def _refused(why: str) -> types.CallToolResult:
    """Return an error that an agent can read and act on. It may quote names of jobs and files."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=fenced(clean(why, 800)))], is_error=True)


def _offered(tool: Tool) -> types.Tool:
    """Describe a tool to the client."""
    hints = types.ToolAnnotations(
        title=tool.title,
        read_only_hint=True,
        destructive_hint=False,
        idempotent_hint=not tool.observes,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name, title=tool.title, description=tool.description, input_schema=tool.input_schema,
        output_schema=tool.output_schema, annotations=hints,
    )  # fmt: skip


def _complaint(validator: Draft202012Validator, content: Any) -> str:
    """Say what is wrong with a document; '' if it fits."""
    error = next(iter(validator.iter_errors(content)), None)
    return "" if error is None else clean(f"{'/'.join(map(str, error.absolute_path))} {error.message}".strip(), 300)


@cache
def _questions(name: str) -> Draft202012Validator:
    """Return the validator of a tool's arguments."""
    return Draft202012Validator(BY_NAME[name].input_schema)


@cache
def _answers(name: str) -> Draft202012Validator:
    """Return the validator of a tool's answers."""
    return Draft202012Validator(BY_NAME[name].output_schema)


def _version() -> str:
    """Return the version of rankscope, 'unknown' if it is not installed."""
    try:
        return importlib.metadata.version("rankscope")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
