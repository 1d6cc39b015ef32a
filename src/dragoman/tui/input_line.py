"""The input line of the chat.

Enter sends, Ctrl+J inserts a new line, and the arrow keys recall earlier input. An image file that is dropped on the
terminal arrives as a pasted path and becomes an attachment. Invariant: sent text can always be recalled.
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

_IMAGE_SUFFIXES: Final = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_MAX_HISTORY: Final = 100


class InputLine(TextArea):
    """The input line."""

    BINDINGS: ClassVar = [  # override the bindings of TextArea
        Binding("pageup", "app.scroll_talk(-1)", "Back", show=False),
        Binding("pagedown", "app.scroll_talk(1)", "On", show=False),
    ]

    class Submit(Message):
        """The user has submitted a text."""

        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    class ImageDrop(Message):
        """The user has dropped image files on the terminal."""

        def __init__(self, paths: list[Path]) -> None:
            super().__init__()
            self.paths = paths

    def __init__(self) -> None:
        super().__init__(id="line", show_line_numbers=False, soft_wrap=True, compact=True)
        self._history: list[str] = []
        self._position = 0

    def set_history(self, texts: Iterable[str]) -> None:
        """Set the texts that the arrow keys recall, oldest first."""
        self._history = [text for text in texts if text][-_MAX_HISTORY:]
        self._position = len(self._history)

    async def _on_key(self, event: events.Key) -> None:
        match event.key:
            case "enter":
                self._send()
            case "ctrl+j" | "shift+enter" | "alt+enter":
                self.insert("\n")
            case "up" if self.cursor_location[0] == 0 and self._history:
                self._recall(self._position - 1)
            case "down" if self.cursor_location[0] == self.document.line_count - 1 and self._position < len(
                self._history
            ):
                self._recall(self._position + 1)
            case _:
                return  # handled by TextArea
        event.stop()
        event.prevent_default()

    async def _on_paste(self, event: events.Paste) -> None:
        if images := image_paths(event.text):
            event.stop()
            event.prevent_default()
            self.post_message(self.ImageDrop(images))

    def _send(self) -> None:
        text = self.text.strip()
        if not text:
            return
        self.set_history([*self._history, text])
        self.text = ""
        self.post_message(self.Submit(text))

    def _recall(self, at: int) -> None:
        self._position = max(0, min(at, len(self._history)))
        self.text = self._history[self._position] if self._position < len(self._history) else ""
        self.move_cursor(self.document.end)


def image_paths(text: str) -> list[Path]:
    """Return the image paths if a text consists only of paths; terminals quote them like a shell."""
    try:
        paths = [Path(part.removeprefix("file://")).expanduser() for part in shlex.split(text)]
    except ValueError:  # unclosed quotation mark
        return []
    return paths if all(path.suffix.lower() in _IMAGE_SUFFIXES and _is_file(path) for path in paths) else []


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # for example a name that is too long
        return False
