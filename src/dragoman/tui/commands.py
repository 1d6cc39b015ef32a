"""The commands of the chat: one method for each, with its first line as its help.

The one rule: history is only ever added to. What looks like taking back is a fork.
"""

from __future__ import annotations

import inspect
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dragoman import formats, pages
from dragoman.converting import Target
from dragoman.errors import InputError
from dragoman.formats.registry import known
from dragoman.handoff import plan_swap
from dragoman.ids import ToolIds
from dragoman.message import Message, Role
from dragoman.tui import dialogs
from dragoman.turn.pictures import picture_from

if TYPE_CHECKING:
    from dragoman.tui.app import ChatApp


class Commands:
    """What may stand behind a slash."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def run(self, line: str) -> None:
        """Do what a line says."""
        name, _, rest = line[1:].partition(" ")
        method = getattr(self, f"do_{name}", None)
        if method is None:
            raise InputError(f"there is no /{name}", remedy="See what there is with /help")
        await method(rest.strip())

    async def do_help(self, _: str) -> None:
        """/help: this list"""
        await self._app.say(HELP)

    async def do_model(self, name: str) -> None:
        """/model NAME: swap, after a look at what it would be told; /model - lets routing choose."""
        app = self._app
        if not name:
            raise InputError("which one?", remedy="/model NAME, or /model - to let the routing choose")
        if name == "-":
            await app.store.change_session(app.session.id, active_model=None)
            await app.update_status()
            return
        model = app.agent.model_named(name)
        history = [row.message async for row in app.store.history(app.session.id)]
        adapter = app.agent.adapter(model, ToolIds(await app.store.tool_ids(app.session.id)))
        plan = plan_swap(
            history,
            adapter,
            policy=app.agent.capability_policy,
            tools=app.agent.tools.definitions,
            describe=app.agent.describe,
            prices=app.agent.prices,
            at=app.agent.clock(),
        )
        if await app.ask(dialogs.preflight(plan)) == "yes":
            await app.store.change_session(app.session.id, active_model=model.id)
            await app.say(f"From the next message on, {model.id} answers.")
        await app.update_status()

    async def do_image(self, path: str) -> None:
        """/image PATH: a picture that goes with the next message"""
        if not path:
            raise InputError("which one?", remedy="/image PATH")
        self._app.pictures.append(picture_from(Path(path.strip("'\"")).expanduser()))
        await self._app.update_status()

    async def do_cost(self, _: str) -> None:
        """/cost: what this conversation cost, by model and by day"""
        app = self._app
        by_model = await app.store.totals("model", session=app.session.id)
        by_day = await app.store.totals("day", session=app.session.id)
        await app.ask(dialogs.costs(by_model, by_day))

    async def do_fork(self, at: str) -> None:
        """/fork [N]: go on in another conversation that shares this one up to message N, or to its end"""
        app = self._app
        place = int(at) if at.isdigit() else None
        if at and place is None:
            raise InputError(f"{at!r} is not the number of a message", remedy="/fork 12, or /fork")
        await app.open(await app.store.fork(app.session.id, place))
        await app.say(f"This is a fork, {app.session.id}; where it comes from stays as it is.")

    async def do_undo(self, _: str) -> None:
        """/undo: go on before the last question; nothing is deleted"""
        app = self._app
        questions = [row.seq async for row in app.store.history(app.session.id) if row.message.role is Role.USER]
        if not questions:
            raise InputError("there is nothing to undo")
        await app.open(await app.store.fork(app.session.id, questions[-1] - 1))
        await app.say("The last question and its answer are in the conversation that this one was forked from.")

    async def do_new(self, _: str) -> None:
        """/new: begin another conversation"""
        app = self._app
        await app.open(await app.store.create_session(workspace_path=app.session.workspace_path))

    async def do_sessions(self, _: str) -> None:
        """/sessions: go on with another conversation"""
        app = self._app
        found = await app.store.list_sessions(limit=100)
        chosen = await app.ask(dialogs.sessions(found, app.agent.clock()))
        if chosen is not None:
            await app.open(await app.store.get_session(chosen))

    async def do_search(self, words: str) -> None:
        """/search WORDS: find messages in every conversation, and open one"""
        app = self._app
        if not words:
            raise InputError("for what?", remedy="/search WORDS")
        found = await app.store.search(words, limit=50)
        if not found:
            await app.say(f"Nothing was found for {words!r}.")
            return
        chosen = await app.ask(dialogs.hits(words, found))
        if chosen is not None:
            await app.open(await app.store.get_session(chosen.partition("#")[0]))

    async def do_title(self, title: str) -> None:
        """/title TEXT: call this conversation something else"""
        app = self._app
        await app.store.rename_session(app.session.id, title or None)
        await app.update_status()

    async def do_export(self, rest: str) -> None:
        """/export FORMAT PATH: write this conversation to a file, as markdown, html, or any format of convert"""
        app = self._app
        parts = shlex.split(rest)
        if len(parts) != 2:
            raise InputError("a format and a path are needed", remedy="/export html talk.html")
        name, path = known(parts[0], to_write=True), Path(parts[1]).expanduser()
        messages = [row.message async for row in app.store.history(app.session.id)]
        with Target(path).opened() as file:
            file.write(_exported(name, messages, app.session.title))
        await app.say(f"Written to {path}")

    async def do_quit(self, _: str) -> None:
        """/quit: leave; everything is stored"""
        self._app.exit()


def _exported(name: str, messages: list[Message], title: str | None) -> bytes:
    if name not in formats.PAGES:
        return formats.write(name, formats.asked(tuple(messages))).data
    about = pages.About.of(messages, title)
    return formats.begin(name, about.title) + pages.conversation(name, messages, about) + formats.end(name)


def _help() -> str:
    methods: list[tuple[str, Any]] = inspect.getmembers(Commands, inspect.isfunction)
    lines = [inspect.getdoc(method) or "" for name, method in methods if name.startswith("do_")]
    return "\n".join(
        [
            *lines,
            "@model at the beginning of a message: that model answers this message",
            "Enter sends, Ctrl+J begins a new line, Escape stops an answer, Ctrl+Q leaves",
        ]
    )


HELP = _help()
