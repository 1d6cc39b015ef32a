"""What comes after the end of an answer: it is kept, and is no part of the answer.

The one rule: one line at WARN for each answer, and never more of it kept than a few kilobytes.
"""

from __future__ import annotations

from typing import Final

from dragoman.message import ProviderRaw

_MAX_CHARACTERS: Final = 4096


class TrailingData:
    """What came late in one stream."""

    def __init__(self, dialect: str) -> None:
        self._dialect = dialect
        self._text = ""
        self._is_logged = False

    def add(self, text: str) -> None:
        """Keep some of it, and say so once."""
        if not self._is_logged:
            import logging  # noqa: PLC0415  a fifth of the time that importing this package takes

            log = logging.getLogger("dragoman.stream")
            log.warning("%s: what came after the end of an answer is no part of it", self._dialect)
        self._is_logged = True
        self._text = (self._text + text)[:_MAX_CHARACTERS]

    def add_to(self, raw: ProviderRaw | None) -> ProviderRaw | None:
        """The notes about the answer, with what came late."""
        return {"dialect": self._dialect, **(raw or {}), "late": self._text} if self._text else raw
