"""The slash commands of the chat: one method each, whose docstring is its help text.

Invariant: messages are only added; ``/undo`` creates a fork.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dragoman import formats, renderers
from dragoman.bus.event_types.system_events import FeedbackImplicit
from dragoman.catalog import Model
from dragoman.conversion import Target
from dragoman.errors import InputError
from dragoman.formats.registry import resolve_name
from dragoman.handoff import plan_swap
from dragoman.ids import ToolIds
from dragoman.message import Message, Role
from dragoman.tui import dialogs
from dragoman.tui.widgets import text_of
from dragoman.turn.events import emit_swap_rejection
from dragoman.turn.image_policy import image_describer, image_policy

if TYPE_CHECKING:
    from dragoman.tui.app import ChatApp


_OPPOSITE_THEME: Final = {True: "textual-light", False: "textual-dark"}  # by whether the current theme is dark
_ANY_TIME: Final = ("help", "image", "cost", "copy", "theme", "title", "quit")  # allowed while an answer arrives


class Commands:
    """The slash commands."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app

    async def run(self, line: str) -> None:
        """Run a command line."""
        name, _, rest = line[1:].partition(" ")
        method = getattr(self, f"do_{name}", None)
        if method is None:
            raise InputError(f"unknown command /{name}", remedy="List the commands with /help")
        if self._app.is_answering and name not in _ANY_TIME:
            remedy = "Press Escape to stop the answer"
            raise InputError(f"/{name} is not available while an answer arrives", remedy=remedy)
        await method(rest.strip())

    async def do_help(self, _: str) -> None:
        """/help: list the commands"""
        await self._app.add_note(HELP)

    async def do_model(self, name: str) -> None:
        """/model [NAME]: change the model, after a preview; /model - returns to routing; /model show"""
        app = self._app
        if name == "show":
            await app.add_note(await self._describe_model())
            return
        name = name or await app.ask(dialogs.model_choice(self._list_models())) or ""
        if not name:
            return
        if name == "-":
            await app.store.change_session(app.session.id, active_model=None)
            await app.update_status()
            return
        model = app.agent.services.get_model(name)
        history = [row.message async for row in app.store.history(app.session.id)]
        adapter = app.agent.services.adapter(model, ToolIds(await app.store.tool_ids(app.session.id)))
        plan = plan_swap(
            history,
            adapter,
            policy=image_policy(app.agent.config, app.session),
            tools=app.agent.tools.definitions,
            describe=image_describer(app.agent.config, app.session),
            prices=app.agent.services.price_table,
            at=app.agent.services.clock(),
            unreachable=app.agent.services.registry.unreachable_reason(model.id),
        )
        if not plan.is_possible:
            emit_swap_rejection(app.agent.bus, app.session, plan)
        if await app.ask(dialogs.swap_dialog(plan)) == "yes":
            await app.store.change_session(app.session.id, active_model=model.id)
            app.agent.bus.try_emit(FeedbackImplicit(signal="swap"), session_id=app.session.id)
            await app.add_note(f"{model.id} answers from the next message on.")
        await app.update_status()

    async def _describe_model(self) -> str:
        """Return the chosen model, and why the last answer used its model."""
        app = self._app
        chosen = (await app.store.get_session(app.session.id)).active_model
        lines = [f"Chosen with /model: {chosen or 'none; the routing chooses'}"]
        rows = await app.store.tail(app.session.id, 50)
        answer = next((row.message for row in reversed(rows) if row.message.metadata.routing is not None), None)
        if answer is None or answer.metadata.routing is None:
            return "\n".join([*lines, "No answers yet."])
        routing = answer.metadata.routing
        lines += [f"Last answer: {answer.metadata.model}", f"Why: {routing.mode.value}, {routing.reason}"]
        if routing.rule_name is not None:
            lines.append(f"Rule: {routing.rule_name}")
        if routing.confidence is not None:
            lines.append(f"Confidence: {routing.confidence:.2f}")
        if routing.alternatives_considered:
            lines.append(f"Also considered: {', '.join(routing.alternatives_considered)}")
        return "\n".join(lines)

    def _list_models(self) -> list[tuple[Model, tuple[str, ...]]]:
        registry = self._app.agent.services.registry
        models = [model for model in registry.catalog.models.values() if registry.is_configured(model)]
        return [(model, registry.aliases_of(model.id)) for model in models]

    async def do_image(self, path: str) -> None:
        """/image PATH: attach an image to the next message; you can also drop a file on the terminal"""
        if not path:
            raise InputError("no path", remedy="Use /image PATH")
        await self._app.add_images([Path(path.strip("'\"")).expanduser()])

    async def do_cost(self, _: str) -> None:
        """/cost: show the cost of this conversation by model and by day"""
        app = self._app
        by_model = await app.store.costs.totals("model", session=app.session.id)
        by_day = await app.store.costs.totals("day", session=app.session.id)
        await app.ask(dialogs.cost_dialog(by_model, by_day))

    async def do_fork(self, at: str) -> None:
        """/fork [N]: continue in a fork of this conversation, up to message N or its end"""
        app = self._app
        place = int(at) if at.isdigit() else None
        if at and place is None:
            raise InputError(f"{at!r} is not a message number", remedy="Use /fork 12 or /fork")
        await app.open(await app.store.fork(app.session.id, place))
        await app.add_note(f"Fork {app.session.id} created; the original does not change.")

    async def do_undo(self, _: str) -> None:
        """/undo: continue before the last question, in a fork; nothing is deleted"""
        app = self._app
        questions = [row.seq async for row in app.store.history(app.session.id) if row.message.role is Role.USER]
        if not questions:
            raise InputError("no question to undo")
        app.agent.bus.try_emit(FeedbackImplicit(signal="undo"), session_id=app.session.id)
        await app.open(await app.store.fork(app.session.id, questions[-1] - 1))
        await app.add_note("The last question and its answer are in the original conversation.")

    async def do_new(self, _: str) -> None:
        """/new: start a new conversation"""
        app = self._app
        await app.open(await app.store.create_session(workspace_path=app.session.workspace_path))

    async def do_sessions(self, _: str) -> None:
        """/sessions: open another conversation"""
        app = self._app
        sessions = [session for session in await app.store.list_sessions(limit=100) if session.last_seq]
        if not sessions:
            raise InputError("no conversations", remedy="Write a message and press Enter")
        chosen = await app.ask(dialogs.session_choice(sessions, app.agent.services.clock()))
        if chosen is not None:
            await app.open(await app.store.get_session(chosen))

    async def do_search(self, words: str) -> None:
        """/search WORDS: find messages in all conversations, and open one"""
        app = self._app
        if not words:
            raise InputError("no words", remedy="Use /search WORDS")
        hits = await app.store.search(words, limit=50)
        if not hits:
            await app.add_note(f"No messages found for {words!r}.")
            return
        chosen = await app.ask(dialogs.hit_choice(words, hits))
        if chosen is not None:
            hit = hits[int(chosen)]
            await app.open(await app.store.get_session(hit.session_id), at=hit.seq)

    async def do_title(self, title: str) -> None:
        """/title TEXT: rename this conversation"""
        app = self._app
        await app.store.rename_session(app.session.id, title or None)
        await app.update_status()

    async def do_export(self, rest: str) -> None:
        """/export FORMAT PATH: write this conversation to a file, as markdown, html, or any format of convert"""
        app = self._app
        kind, _, where = rest.partition(" ")
        if not where.strip():
            raise InputError("no format or no path", remedy="Use /export FORMAT PATH, such as /export html talk.html")
        name, path = resolve_name(kind, to_write=True), Path(where.strip().strip("'\"")).expanduser()
        messages = [row.message async for row in app.store.history(app.session.id)]
        with Target(path).open() as file:
            file.write(_export(name, messages, app.session.title))
        await app.add_note(f"Written to {path}")

    async def do_copy(self, _: str) -> None:
        """/copy: copy the last answer to the clipboard"""
        app = self._app
        rows = await app.store.tail(app.session.id, 20)
        answers = [words for row in rows if row.message.role is Role.ASSISTANT and (words := text_of(row.message))]
        if not answers:
            raise InputError("no answer to copy")
        app.copy_to_clipboard(answers[-1])
        app.notify("Copied the last answer, if the terminal supports it.")

    async def do_theme(self, name: str) -> None:
        """/theme [NAME]: switch between dark and light, or use any Textual theme; TEXTUAL_THEME sets the default"""
        app = self._app
        names = {"dark": "textual-dark", "light": "textual-light", "": _OPPOSITE_THEME[app.current_theme.dark]}
        chosen = names.get(name, name)
        if chosen not in app.available_themes:
            theme_names = ", ".join(sorted(app.available_themes))
            raise InputError(f"unknown theme {name!r}", remedy=f"Use one of {theme_names}")
        app.theme = chosen

    async def do_quit(self, _: str) -> None:
        """/quit: quit; all messages are stored"""
        self._app.exit()


def _export(name: str, messages: list[Message], title: str | None) -> bytes:
    if name not in formats.PAGES:
        return formats.write(name, formats.restore_request(tuple(messages))).data
    about = renderers.About.from_messages(messages, title)
    return (
        formats.write_header(name, about.title)
        + renderers.write_conversation(name, messages, about)
        + formats.write_footer(name)
    )


def _help() -> str:
    methods: list[tuple[str, Any]] = inspect.getmembers(Commands, inspect.isfunction)
    lines = [inspect.getdoc(method) or "" for name, method in methods if name.startswith("do_")]
    return "\n".join(
        [
            *lines,
            "@model at the beginning of a message: this model answers the message",
            "Enter sends, Ctrl+J inserts a new line, the arrow keys recall earlier input, Escape stops an answer",
            "Page Up and Page Down scroll, Shift+Tab focuses a folded section and Enter unfolds it, Ctrl+Q quits",
        ]
    )


HELP = _help()
