"""``dragoman chat``: open the terminal chat."""

from __future__ import annotations

import importlib.util
import logging
import sys
from pathlib import Path

from dragoman import settings as keys
from dragoman.cli.local import prepare_weights
from dragoman.cli.options import (
    DelegateOption,
    McpOption,
    PolicyOption,
    StoreOption,
    SummarizeOption,
    ToolOption,
    find_session,
    make_agent_config,
    open_store_at,
    open_tools,
)
from dragoman.errors import InputError


async def chat(
    session: str | None = None,
    /,
    *,
    model: str | None = None,
    system: str | None = None,
    tool: ToolOption = (),
    mcp: McpOption = (),
    workspace: Path | None = None,
    delegate: DelegateOption = False,
    summarize: SummarizeOption = False,
    policy: PolicyOption = None,
    store_url: StoreOption = None,
) -> None:
    """Chat with a model in the terminal.

    Parameters
    ----------
    session
        Continue this session: its id, a unique prefix or suffix of the id, or last. Default: a new session.
    model
        The model of the session: an id or an alias. Default: the routing policy chooses.
    system
        The system prompt. Default: none.
    workspace
        The working folder of the tools. Default: the current folder.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("standard input or output is not a terminal", remedy="Use dragoman ask in pipes and scripts")
    if importlib.util.find_spec("textual") is None:
        raise InputError("the terminal chat is not installed", remedy="Run pip install 'dragoman[tui]'")
    from dragoman.tui import ChatApp  # noqa: PLC0415
    from dragoman.turn import Agent  # noqa: PLC0415

    logging.disable(logging.CRITICAL)  # the screen is the chat's, and what goes wrong is shown in it
    folder = (workspace or Path.cwd()).resolve()
    settings = keys.load()
    prepare_weights(settings, model)
    async with open_store_at(store_url, create=True) as store, open_tools(tool, mcp, settings) as tools:
        if session is None:
            current = await store.create_session(workspace_path=str(folder))
        else:
            current = await find_session(store, session)
        config = make_agent_config(settings, delegate=delegate, summarize=summarize, policy=policy)
        async with Agent(
            store, settings=settings, tools=tools, workspace=folder, system_prompt=system, config=config
        ) as agent:
            if model is not None:
                current = await store.change_session(current.id, active_model=agent.services.get_model(model).id)
            await ChatApp(agent, current).run_async()
        if session is None and not (await store.get_session(current.id)).last_seq:
            await store.delete_session(current.id)  # a session without messages
