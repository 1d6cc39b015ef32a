"""Tools of a model: definitions with code, a registry, and the dispatch that runs calls.

    from dragoman.tools import ToolRegistry, ToolSession, Workspace, builtin_tools, dispatch, tool

    registry = ToolRegistry(builtin_tools(["read_file", "search_files"]))
    session = ToolSession(session_id, workspace=Workspace("."), confirm=ask_the_user)
    results = await dispatch(calls, registry, session, events=emit)

``tool`` makes a tool from a function; ``confirmation`` has the approval policy; ``workspace`` restricts tools to a
folder; ``exposure`` has the built-in tools; ``mcp`` connects MCP servers.
"""

from dragoman.tools.ask_user import answer_problems, answer_schema
from dragoman.tools.confirmation import Approval, Confirm, Confirmation, ConfirmationPolicy, ConfirmationRequest
from dragoman.tools.dispatch import LateResult, ToolSession, dispatch, emit_approval_request, requires_approval
from dragoman.tools.exposure import BUILTIN, builtin_tools
from dragoman.tools.registry import ToolRegistry
from dragoman.tools.tool import FunctionTool, Preview, Tool, ToolContext, ToolOutput, to_tool, tool
from dragoman.tools.workspace import Workspace

__all__ = [
    "BUILTIN",
    "Approval",
    "Confirm",
    "Confirmation",
    "ConfirmationPolicy",
    "ConfirmationRequest",
    "FunctionTool",
    "LateResult",
    "Preview",
    "Tool",
    "ToolContext",
    "ToolOutput",
    "ToolRegistry",
    "ToolSession",
    "Workspace",
    "answer_problems",
    "answer_schema",
    "builtin_tools",
    "dispatch",
    "emit_approval_request",
    "requires_approval",
    "to_tool",
    "tool",
]
