"""``dragoman chat``: a conversation in the terminal."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

from dragoman import settings as keys
from dragoman.cli.offering import open_tools
from dragoman.cli.options import StoreOption, find_session, open_store_at
from dragoman.errors import InputError


async def chat(
    session: str | None = None,
    *,
    model: str | None = None,
    system: str | None = None,
    tool: tuple[str, ...] = (),
    mcp: tuple[str, ...] = (),
    workspace: Path | None = None,
    store_url: StoreOption = None,
) -> None:
    """Talk with a model in the terminal.

    Parameters
    ----------
    session
        The conversation to go on with: its id, a part of it, or last. Without it, a new one.
    model
        Who answers here: an id or an alias. Without it, the routing chooses; without a key, the embedded model answers.
    system
        What the model is told before everything else.
    tool
        A built-in tool that it may use: read_file, list_files, search_files, write_file, run_command or ask_user; say
        it again for more. Those that change something ask first.
    mcp
        An MCP server of the configuration file whose tools it may use; say it again for more. They ask first.
    workspace
        The folder in which tools work. Without it, this one.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("this is no terminal", remedy="In pipes and scripts, use dragoman ask")
    if importlib.util.find_spec("textual") is None:
        raise InputError("the terminal chat is not installed", remedy="pip install 'dragoman[tui]'")
    from dragoman.tui import ChatApp  # noqa: PLC0415
    from dragoman.turn import Agent  # noqa: PLC0415

    logging.disable(logging.CRITICAL)  # the screen is the chat's, and what goes wrong is shown in it
    folder = (workspace or Path.cwd()).resolve()
    settings = keys.load()
    async with open_store_at(store_url, create=True) as store, open_tools(tool, mcp, settings) as tools:
        if session is None:
            current = await store.create_session(workspace_path=str(folder))
        else:
            current = await find_session(store, session)
        async with Agent(store, settings=settings, tools=tools, workspace=folder, system_prompt=system) as agent:
            if model is not None:
                current = await store.change_session(current.id, active_model=agent.services.get_model(model).id)
            await ChatApp(agent, current).run_async()
        if session is None and not (await store.get_session(current.id)).last_seq:
            await store.delete_session(current.id)  # nothing was ever said in it
