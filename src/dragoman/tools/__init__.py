"""What a model may do: tools, the registry they are in, and the dispatch that turns calls into results.

    from dragoman.tools import ToolRegistry, Workbench, Workspace, builtin_tools, dispatch, tool

    registry = ToolRegistry(builtin_tools(["read_file", "search_files"]))
    bench = Workbench(session_id, workspace=Workspace("."), confirm=ask_the_user)
    results = await dispatch(calls, registry, bench, events=bus_event)

``tool`` makes a tool of a function; ``confirmation`` says who is asked; ``workspace`` keeps tools in their folder;
``builtin`` are the few that come with the package, off unless asked for; ``mcp`` brings in those of MCP servers. The
one rule: nothing here decides what a model is offered. Who assembles the turn does.
"""

from dragoman.tools.ask_user import answer_schema, problems_of_answer
from dragoman.tools.builtin import BUILTIN, builtin_tools
from dragoman.tools.confirmation import Approval, Confirm, Confirmation, ConfirmationPolicy, ConfirmationRequest
from dragoman.tools.dispatch import LateResult, ToolSession, dispatch, emit_approval_request, requires_approval
from dragoman.tools.registry import ToolRegistry
from dragoman.tools.tool import Preview, Tool, ToolContext, ToolOutput, tool
from dragoman.tools.workspace import Workspace

__all__ = [
    "BUILTIN",
    "Approval",
    "Confirm",
    "Confirmation",
    "ConfirmationPolicy",
    "ConfirmationRequest",
    "LateResult",
    "Preview",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolRegistry",
    "ToolSession",
    "Workspace",
    "answer_schema",
    "builtin_tools",
    "dispatch",
    "emit_approval_request",
    "problems_of_answer",
    "requires_approval",
    "tool",
]
