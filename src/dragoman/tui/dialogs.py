"""Questions and lists that lie over the conversation: a confirmation, a swap, costs, models, sessions, what was found.

Each returns what the person chose, or nothing. The one rule: Escape means no, and where something would be done that
cannot be taken back, so does Enter, because a question may come up while somebody is typing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from dragoman.catalog import Model
from dragoman.handoff import SwapPlan
from dragoman.store import Hit, Session, Totals
from dragoman.terminal import age, counted, dollars, safe, safe_line, same_length, spent
from dragoman.tools import Confirmation, ConfirmationRequest

_BAR: Final = 24
_BLOCKS_SHOWN: Final = 12
Piece = str | tuple[str, str]  # words, and their style


class Dialog(ModalScreen[str | None]):
    """A box with a text and some buttons, the first of which has the focus; returns the id of the one pressed."""

    BINDINGS: ClassVar = [
        Binding("escape", "dismiss(None)", "No"),
        Binding("left", "app.focus_previous", "Back", show=False),
        Binding("right", "app.focus_next", "On", show=False),
        Binding("up", "scroll(-1)", "Up", show=False),
        Binding("down", "scroll(1)", "Down", show=False),
    ]

    def __init__(self, title: str, body: Sequence[Piece], buttons: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._body = Content.assemble(*body).rstrip()
        self._buttons = buttons

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(safe_line(self._title), markup=False, classes="title")
            with VerticalScroll(can_focus=False):
                yield Static(self._body)
            with Horizontal(classes="buttons"):
                for name, label in self._buttons:
                    yield Button(label, id=name)

    def action_scroll(self, lines: int) -> None:
        """The text up or down."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Chosen."""
        self.dismiss(event.button.id)


class Choice(ModalScreen[str | None]):
    """A list to choose from; returns the id of what was chosen."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, title: str, options: Sequence[tuple[str, Content]]) -> None:
        super().__init__()
        self._title = title
        self._options = options

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(safe_line(self._title), markup=False, classes="title")
            yield OptionList(*(Option(label, id=name) for name, label in self._options))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Chosen."""
        self.dismiss(event.option.id)


# --- may it? ---------------------------------------------------------------------------------------------------------


def confirmation(request: ConfirmationRequest) -> Dialog:
    """May this tool do this?"""
    body: list[Piece] = []
    if request.command_summary:
        body += [(f"$ {safe(request.command_summary)}\n\n", "bold")]
    body += [(f"changes {safe_line(path)}\n", "$text-warning") for path in request.projected_modifications]
    body += [safe(request.input_summary)]
    title = f"May {request.tool_name} do this? ({request.side_effects.value})"
    return Dialog(title, body, [("deny", "Deny"), ("once", "Allow once"), ("session", "Allow in this session")])


def confirmed(answer: str | None) -> Confirmation:
    """The answer to a confirmation, for the tool."""
    if answer in ("once", "session"):
        return Confirmation(allow=True, scope="session" if answer == "session" else "once")
    return Confirmation(allow=False, reason="the user said no")


# --- another model ---------------------------------------------------------------------------------------------------


def preflight(plan: SwapPlan) -> Dialog:
    """What a swap would do, and whether to do it."""
    outcomes = Counter(block.outcome for block in plan.blocks)
    body: list[Piece] = [
        (counted(outcomes["kept"], "block is kept", "blocks are kept"), "$text-success"),
        (f", {outcomes['projected']} told otherwise", "$text-warning" if outcomes["projected"] else ""),
        (f", {outcomes['left_out']} left out\n", "$text-error" if outcomes["left_out"] else ""),
    ]
    others = [one for one in plan.blocks if one.outcome != "kept"]
    for block in others[:_BLOCKS_SHOWN]:
        outcome = block.outcome.replace("_", " ")
        body += [(f"  {block.block_type} {block.place}: {outcome}, {safe_line(block.reason)}\n", "dim")]
    if len(others) > _BLOCKS_SHOWN:
        body += [(f"  and {len(others) - _BLOCKS_SHOWN} more\n", "dim")]
    body += [
        f"About {plan.estimated_input_tokens:,} tokens: ",
        ("it fits\n", "$text-success") if plan.fits else ("it does not fit\n", "$text-error"),
    ]
    if plan.first_turn_usd is not None:
        body += [f"The prompt of the next turn costs about {dollars(plan.first_turn_usd)}\n"]
    body += [(f"\nIn the way: {safe_line(blocker)}\n", "$text-error") for blocker in plan.blockers]
    if not plan.is_possible:
        return Dialog(f"{plan.model} cannot go on here", body, [("no", "Keep the model")])
    return Dialog(f"Swap to {plan.model}?", body, [("yes", "Swap"), ("no", "Keep the model")])


def models(found: Iterable[tuple[Model, tuple[str, ...]]]) -> Choice:
    """Which model is to go on."""
    options = [
        (model.id, Content.assemble(safe_line(model.id), (f"  {', '.join(aliases)}", "dim")))
        for model, aliases in found
    ]
    return Choice("Who goes on?", options)


# --- costs -----------------------------------------------------------------------------------------------------------


def costs(totals: Sequence[Totals], days: Sequence[Totals]) -> Dialog:
    """What a session cost, by model and by day."""
    body = _bars("By model", totals)
    if len(days) > 1:
        body += ["\n", *_bars("By day", days)]
    unpriced, replies = sum(one.unpriced for one in totals), sum(one.messages for one in totals)
    title = f"This conversation cost {spent(sum((one.cost_usd for one in totals), Decimal(0)), unpriced, replies)}"
    if unpriced and unpriced == replies:
        title = "What this conversation cost is not known: its models have no price"
    return Dialog(title, body, [("ok", "Back")])


def _bars(title: str, totals: Sequence[Totals]) -> list[Piece]:
    body: list[Piece] = [(f"{title}\n", "bold")]
    most = max((one.cost_usd for one in totals), default=Decimal(0)) or Decimal(1)
    for one in totals:
        length = int(one.cost_usd / most * _BAR)
        tokens = one.input_tokens + one.cached_input_tokens + one.cache_creation_input_tokens
        body += [
            f"{safe_line(one.group or '?')}\n",
            (f"{'█' * length or '▏':{_BAR}} ", "$primary"),
            f"{spent(one.cost_usd, one.unpriced, one.messages)} ",
            (f"· {tokens:,} → {one.output_tokens:,} tokens\n", "dim"),
        ]
    return body


# --- other conversations ---------------------------------------------------------------------------------------------


def sessions(found: Sequence[Session], now: datetime) -> Choice:
    """Which conversation to go on with."""
    options = []
    for one in found:
        about = f"  {counted(one.last_seq, 'message')}, {age(one.updated_at, now)}"
        label = Content.assemble(safe_line(one.title or one.id)[:60], (about, "dim"))
        options.append((one.id, label))
    return Choice("Conversations", options)


def hits(words: str, found: Sequence[Hit]) -> Choice:
    """Where words were found; what is chosen is the number of a hit."""
    options = [(str(number), _snippet(hit)) for number, hit in enumerate(found)]
    return Choice(f"{counted(len(found), 'message')} with {words}", options)


def _snippet(hit: Hit) -> Content:
    label = Content(same_length(hit.snippet))
    for start, end in hit.highlights:
        label = label.stylize("bold $text-accent", start, end)
    return Content.assemble((f"{hit.role}: ", "dim"), label)
