"""Dialogs over the conversation: tool approval, model swap, costs, models, sessions, search results.

Each returns the choice, or None. Invariant: Escape means no, and so does Enter if the action cannot be undone, because
a dialog may appear while the user types.
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
from dragoman.humanize import (
    escape_controls,
    escape_in_place,
    escape_line,
    format_age,
    format_cost,
    format_count,
    format_usd,
)
from dragoman.store import Hit, Session, Totals
from dragoman.tools import Confirmation, ConfirmationRequest

_BAR_WIDTH: Final = 24
_MAX_BLOCKS: Final = 12
StyledText = str | tuple[str, str]  # text and style


class Dialog(ModalScreen[str | None]):
    """A dialog with text and buttons; returns the id of the pressed button. The first button has the focus."""

    BINDINGS: ClassVar = [
        Binding("escape", "dismiss(None)", "No"),
        Binding("left", "app.focus_previous", "Back", show=False),
        Binding("right", "app.focus_next", "On", show=False),
        Binding("up", "scroll(-1)", "Up", show=False),
        Binding("down", "scroll(1)", "Down", show=False),
    ]

    def __init__(self, title: str, body: Sequence[StyledText], buttons: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._body = Content.assemble(*body).rstrip()
        self._buttons = buttons

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(escape_line(self._title), markup=False, classes="title")
            with VerticalScroll(can_focus=False):
                yield Static(self._body)
            with Horizontal(classes="buttons"):
                for name, label in self._buttons:
                    yield Button(label, id=name)

    def action_scroll(self, lines: int) -> None:
        """Scroll the text."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Return the id of the button."""
        self.dismiss(event.button.id)


class Choice(ModalScreen[str | None]):
    """A list of options; returns the id of the selected one."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, title: str, options: Sequence[tuple[str, Content]]) -> None:
        super().__init__()
        self._title = title
        self._options = options

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(escape_line(self._title), markup=False, classes="title")
            yield OptionList(*(Option(label, id=name) for name, label in self._options))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the id of the option."""
        self.dismiss(event.option.id)


# --- approval --------------------------------------------------------------------------------------------------------


def confirmation_dialog(request: ConfirmationRequest) -> Dialog:
    """Ask for the approval of a tool call."""
    body: list[StyledText] = []
    if request.command_summary:
        body += [(f"$ {escape_controls(request.command_summary)}\n\n", "bold")]
    body += [(f"changes {escape_line(path)}\n", "$text-warning") for path in request.projected_modifications]
    body += [escape_controls(request.input_summary)]
    title = f"Approve {request.tool_name}? ({request.side_effects.value})"
    return Dialog(title, body, [("deny", "Deny"), ("once", "Allow once"), ("session", "Allow in this session")])


def to_confirmation(answer: str | None) -> Confirmation:
    """Convert the choice to a confirmation."""
    if answer in ("once", "session"):
        return Confirmation(allow=True, scope="session" if answer == "session" else "once")
    return Confirmation(allow=False, reason="declined by the user")


# --- model swap ------------------------------------------------------------------------------------------------------


def swap_dialog(plan: SwapPlan) -> Dialog:
    """Show the effect of a model swap, and ask for confirmation."""
    outcomes = Counter(block.outcome for block in plan.blocks)
    body: list[StyledText] = [
        (format_count(outcomes["kept"], "block unchanged", "blocks unchanged"), "$text-success"),
        (f", {outcomes['projected']} converted", "$text-warning" if outcomes["projected"] else ""),
        (f", {outcomes['left_out']} omitted\n", "$text-error" if outcomes["left_out"] else ""),
    ]
    changes = [item for item in plan.blocks if item.outcome != "kept"]
    for block in changes[:_MAX_BLOCKS]:
        outcome = "converted" if block.outcome == "projected" else "omitted"
        body += [(f"  {block.block_type} {block.place}: {outcome}, {escape_line(block.reason)}\n", "dim")]
    if len(changes) > _MAX_BLOCKS:
        body += [(f"  and {len(changes) - _MAX_BLOCKS} more\n", "dim")]
    body += [
        f"About {plan.estimated_input_tokens:,} tokens: ",
        ("fits", "$text-success") if plan.fits else ("does not fit", "$text-error"),
        " the context window\n",
    ]
    if plan.omitted_count:
        body += [(f"The oldest {format_count(plan.omitted_count, 'message')} will not be sent\n", "$text-warning")]
    if plan.first_turn_usd is not None:
        body += [f"The prompt of the next turn costs about {format_usd(plan.first_turn_usd)}\n"]
    body += [(f"\nNot possible: {escape_line(blocker)}\n", "$text-error") for blocker in plan.blockers]
    if not plan.is_possible:
        return Dialog(f"Cannot swap to {plan.model}", body, [("no", "Keep the model")])
    return Dialog(f"Swap to {plan.model}?", body, [("yes", "Swap"), ("no", "Keep the model")])


def model_choice(matches: Iterable[tuple[Model, tuple[str, ...]]]) -> Choice:
    """Ask for a model."""
    options = [
        (model.id, Content.assemble(escape_line(model.id), (f"  {', '.join(aliases)}", "dim")))
        for model, aliases in matches
    ]
    return Choice("Choose a model", options)


# --- costs -----------------------------------------------------------------------------------------------------------


def cost_dialog(totals: Sequence[Totals], days: Sequence[Totals]) -> Dialog:
    """Show the cost of a session by model and by day."""
    body = _bars("By model", totals)
    if len(days) > 1:
        body += ["\n", *_bars("By day", days)]
    unpriced, replies = sum(total.unpriced for total in totals), sum(total.messages for total in totals)
    cost = format_cost(sum((total.cost_usd for total in totals), Decimal(0)), unpriced, replies)
    title = f"Cost of this conversation: {cost}"
    if unpriced and unpriced == replies:
        title = "Cost unknown: these models have no price"
    return Dialog(title, body, [("ok", "Back")])


def _bars(title: str, totals: Sequence[Totals]) -> list[StyledText]:
    body: list[StyledText] = [(f"{title}\n", "bold")]
    maximum = max((total.cost_usd for total in totals), default=Decimal(0)) or Decimal(1)
    for total in totals:
        length = int(total.cost_usd / maximum * _BAR_WIDTH)
        tokens = total.input_tokens + total.cached_input_tokens + total.cache_creation_input_tokens
        body += [
            f"{escape_line(total.group or '?')}\n",
            (f"{'█' * length or '▏':{_BAR_WIDTH}} ", "$primary"),
            f"{format_cost(total.cost_usd, total.unpriced, total.messages)} ",
            (f"· {tokens:,} → {total.output_tokens:,} tokens\n", "dim"),
        ]
    return body


# --- sessions and search ---------------------------------------------------------------------------------------------


def session_choice(rows: Sequence[Session], now: datetime) -> Choice:
    """Ask for a session."""
    options = []
    for session in rows:
        about = f"  {format_count(session.last_seq, 'message')}, {format_age(session.updated_at, now)}"
        label = Content.assemble(escape_line(session.title or session.id)[:60], (about, "dim"))
        options.append((session.id, label))
    return Choice("Conversations", options)


def hit_choice(words: str, matches: Sequence[Hit]) -> Choice:
    """Ask for a search result; returns its index."""
    options = [(str(number), _snippet(hit)) for number, hit in enumerate(matches)]
    return Choice(f"{format_count(len(matches), 'message')} with {words}", options)


def _snippet(hit: Hit) -> Content:
    label = Content(escape_in_place(hit.snippet))
    for start, end in hit.highlights:
        label = label.stylize("bold $text-accent", start, end)
    return Content.assemble((f"{hit.role}: ", "dim"), label)
