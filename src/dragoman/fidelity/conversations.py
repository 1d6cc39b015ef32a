"""Formats of conversations, as the measuring takes them: as if each were a dialect that says nothing but messages.

    conversations()     one for each format of ``dragoman.transcripts``

Tools, options and answers are not part of a conversation: a table has no verdict about them, and in a given request
each is a loss. The one rule: what a request asks for beside its messages is named, so that nothing is silent.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final

from dragoman.exchange import Loss, Options, Request, Written
from dragoman.fidelity.comparison import collect_options
from dragoman.transcripts import FORMATS
from dragoman.wire.residue import foreign_options

_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOT_A_MESSAGE: Final = "a conversation is what was said, and not what was asked beside it"


def transcript_dialects() -> tuple[TranscriptDialect, ...]:
    """Every format that there is."""
    return tuple(TranscriptDialect(module) for module in FORMATS.values())


class TranscriptDialect:
    """One format, reading and writing the messages of requests."""

    GROUPS: Final = ("Blocks",)  # what of the table it is about

    def __init__(self, module: ModuleType) -> None:
        self.NAME: str = module.NAME
        self._module = module

    def read_request(self, wire: Any) -> Request:
        """The messages, as a request that asks for nothing else."""
        return Request(model=None, messages=self._module.read_messages(wire, session_id="", created_at=_TIME))

    def write_request(self, request: Request) -> Written:
        """The messages, and as lost whatever stands beside them."""
        written: Written = self._module.write_messages(request.messages)
        return Written(written.wire, (*written.losses, *self._request_losses(request)))

    def message_part(self, request: Request) -> Request:
        """What of a request a conversation says at all."""
        return request.replace(model=None, tools=(), options=Options(), provider_raw=None)

    def _request_losses(self, request: Request) -> Iterator[Loss]:
        names = ["tool" for _ in request.tools]
        for name in (*names, *collect_options(request), *foreign_options(request, self.NAME)):
            yield Loss("", "", name, self.NAME, _NOT_A_MESSAGE)
