"""The line in which a person writes.

Enter sends, Ctrl+J begins a new line, the arrows at its edges bring back what was written before. A path of a picture
that is dropped on the terminal arrives as pasted text, and is told as what it is. The one rule: what was written is
never lost; what could not be sent can be had back with the arrow.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

from textual import events
from textual.binding import Binding
from textual.message import Message
from textual.widgets import TextArea

_PICTURES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_REMEMBERED: Final = 100


class Line(TextArea):
    """Where a person writes."""

    BINDINGS: ClassVar = [  # which the area below would take for itself
        Binding("pageup", "app.scroll_talk(-1)", "Back", show=False),
        Binding("pagedown", "app.scroll_talk(1)", "On", show=False),
    ]

    class Sent(Message):
        """What was written."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class Dropped(Message):
        """Pictures that were dropped on the terminal."""

        def __init__(self, paths: list[Path]) -> None:
            super().__init__()
            self.paths = paths

    def __init__(self) -> None:
        super().__init__(id="line", show_line_numbers=False, soft_wrap=True, compact=True)
        self._older: list[str] = []
        self._at = 0

    def remember(self, texts: Iterable[str]) -> None:
        """What the arrows bring back, the oldest first."""
        self._older = [text for text in texts if text][-_REMEMBERED:]
        self._at = len(self._older)

    async def _on_key(self, event: events.Key) -> None:
        match event.key:
            case "enter":
                self._send()
            case "ctrl+j" | "shift+enter" | "alt+enter":
                self.insert("\n")
            case "up" if self.cursor_location[0] == 0 and self._older:
                self._recall(self._at - 1)
            case "down" if self.cursor_location[0] == self.document.line_count - 1 and self._at < len(self._older):
                self._recall(self._at + 1)
            case _:
                return  # the area below sees it next
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        if pictures := pictures_in(event.text):
            event.stop()
            event.prevent_default()
            self.post_message(self.Dropped(pictures))

    def _send(self) -> None:
        text = self.text.strip()
        if not text:
            return
        self.remember([*self._older, text])
        self.text = ""
        self.post_message(self.Sent(text))

    def _recall(self, at: int) -> None:
        self._at = max(0, min(at, len(self._older)))
        self.text = self._older[self._at] if self._at < len(self._older) else ""
        self.move_cursor(self.document.end)


def pictures_in(text: str) -> list[Path]:
    """The pictures, if a text is nothing but the paths of some; terminals quote them as a shell would."""
    try:
        paths = [Path(part.removeprefix("file://")).expanduser() for part in shlex.split(text)]
    except ValueError:  # a quotation that does not end
        return []
    return paths if all(path.suffix.lower() in _PICTURES and _is_file(path) for path in paths) else []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name that is too long, for example
        return False
