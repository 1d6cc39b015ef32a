"""Questions and lists that lie over the conversation: a confirmation, a swap, costs, sessions, what was found.

Each returns what the person chose, or nothing. The one rule: Escape means no.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from dragoman.handoff import SwapPlan
from dragoman.store import Hit, Session, Totals
from dragoman.terminal import age, dollars, safe, safe_line
from dragoman.tools import Confirmation, ConfirmationRequest

_BAR = 30


class Dialog(ModalScreen[str | None]):
    """A box with a text and some buttons; returns the id of the one that was pressed."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "No")]

    def __init__(self, title: str, body: Text, buttons: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._title = title
        self._body = body
        self._buttons = buttons

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(safe_line(self._title), style="bold"), classes="title")
            with VerticalScroll():
                yield Static(self._body)
            with Horizontal(classes="buttons"):
                for name, label in self._buttons:
                    yield Button(label, id=name, variant="primary" if name == self._buttons[0][0] else "default")

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id)


class Choice(ModalScreen[str | None]):
    """A list to choose from; returns the id of what was chosen."""

    BINDINGS: ClassVar = [Binding("escape", "dismiss(None)", "Back")]

    def __init__(self, title: str, options: Sequence[tuple[str, Text]]) -> None:
        super().__init__()
        self._title = title
        self._options = options

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(Text(safe_line(self._title), style="bold"), classes="title")
            yield OptionList(*(Option(label, id=name) for name, label in self._options))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


def confirmation(request: ConfirmationRequest) -> Dialog:
    """May this tool do this?"""
    body = Text()
    if request.command_summary:
        body.append(f"$ {safe(request.command_summary)}\n\n", style="bold")
    for path in request.projected_modifications:
        body.append(f"changes {safe_line(path)}\n", style="yellow")
    body.append(safe(request.input_summary))
    title = f"May {request.tool_name} do this? ({request.side_effects.value})"
    return Dialog(title, body, [("once", "Allow once"), ("session", "Allow here always"), ("deny", "Deny")])


def confirmed(answer: str | None) -> Confirmation:
    """The answer to a confirmation, for the tool."""
    if answer in ("once", "session"):
        return Confirmation(allow=True, scope="session" if answer == "session" else "once")
    return Confirmation(allow=False, reason="the user said no")


def preflight(plan: SwapPlan) -> Dialog:
    """What a swap would do, and whether to do it."""
    outcomes = Counter(block.outcome for block in plan.blocks)
    body = Text()
    body.append(f"{outcomes['kept']} blocks are kept", style="green")
    body.append(f", {outcomes['projected']} told otherwise, ", style="yellow" if outcomes["projected"] else "")
    body.append(f"{outcomes['left_out']} left out\n", style="red" if outcomes["left_out"] else "")
    for block in [one for one in plan.blocks if one.outcome != "kept"][:12]:
        body.append(f"  {block.block_type} {block.place}: {block.outcome}, {safe_line(block.reason)}\n", style="dim")
    body.append(f"About {plan.estimated_input_tokens:,} tokens: ")
    body.append("it fits\n" if plan.fits else "it does not fit\n", style="green" if plan.fits else "red")
    if plan.first_turn_usd is not None:
        body.append(f"The prompt of the next turn costs about {dollars(plan.first_turn_usd)}\n")
    for blocker in plan.blockers:
        body.append(f"\nIn the way: {safe_line(blocker)}\n", style="red")
    if not plan.is_possible:
        return Dialog(f"{plan.model} cannot go on here", body, [("no", "Keep the model")])
    return Dialog(f"Swap to {plan.model}?", body, [("yes", "Swap"), ("no", "Keep the model")])


def costs(totals: Sequence[Totals], days: Sequence[Totals]) -> Dialog:
    """What a session cost, by model and by day."""
    body = Text()
    _bars(body, "By model", totals)
    if len(days) > 1:
        body.append("\n")
        _bars(body, "By day", days)
    whole = sum((one.cost_usd for one in totals), Decimal(0))
    return Dialog(f"This conversation cost {dollars(whole)}", body, [("ok", "Back")])


def _bars(body: Text, title: str, totals: Sequence[Totals]) -> None:
    body.append(f"{title}\n", style="bold")
    most = max((one.cost_usd for one in totals), default=Decimal(0)) or Decimal(1)
    for one in totals:
        length = int(one.cost_usd / most * _BAR)
        body.append(f"{safe_line(one.group or '?')[:34]:34} ")
        body.append("█" * length or "▏", style="cyan")
        tokens = one.input_tokens + one.cached_input_tokens + one.cache_creation_input_tokens
        body.append(f" {dollars(one.cost_usd)} · {tokens:,} → {one.output_tokens:,} tokens\n")


def sessions(found: Sequence[Session], now: object) -> Choice:
    """Which conversation to go on with."""
    options = []
    for one in found:
        label = Text(safe_line(one.title or one.id)[:60])
        label.append(f"  {one.last_seq} messages, {age(one.updated_at, now)}", style="dim")  # type: ignore[arg-type]
        options.append((one.id, label))
    return Choice("Conversations", options)


def hits(words: str, found: Sequence[Hit]) -> Choice:
    """Where words were found; choosing one opens its conversation."""
    options = [(f"{hit.session_id}#{number}", Text(safe_line(hit.snippet)[:200])) for number, hit in enumerate(found)]
    return Choice(f"{len(found)} messages with {words}", options)
