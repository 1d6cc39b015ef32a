"""Ollama generate, ``/api/generate``: https://docs.ollama.com/api/generate; the shapes come from recorded exchanges.

A request has one prompt, a system prompt and images; a reply has one text and one reasoning text. Requests and replies
are arranged as those of ``/api/chat``. There are no tools: a conversation becomes one prompt, and calls are losses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from dragoman.dialects import ollama
from dragoman.exchange import Fault, Loss, Reply, Request, Written
from dragoman.wire.derivation import Arrangement, DerivedDialect, DerivedStreamReader, DerivedStreamWriter, Wire
from dragoman.wire.frames import json_line, select_framing, sse_frame
from dragoman.wire.prompt import drop_calls, to_prompt
from dragoman.wire.support import Support

NAME: Final = "ollama_generate"
BASES: Final = ("ollama",)  # dialects whose own options it writes
TAKES_PROMPT: Final = True  # one prompt instead of a conversation with calls
_TEXTS: Final = (("response", "content"), ("thinking", "thinking"))  # keys of a reply, and of a message in a chat

SUPPORT: Final = Support(
    documentation="https://docs.ollama.com/api/generate",
    request=frozenset({"logprobs", "top_logprobs"}),
    reply=frozenset({"text.token_logprobs"}),
    reasons=ollama.SUPPORT.reasons,
)

# Options without a field in the request, and why nothing is lost.
IMPLIED_OPTIONS: Final = ollama.IMPLIED_OPTIONS


def looks_like(wire: Wire) -> bool:
    """Return whether a request has the fields of this API."""
    has_limit = "max_tokens" in wire  # options are in an object of their own here
    return isinstance(wire.get("prompt"), str) and not has_limit and any(key in wire for key in ("model", "stream"))


def _request_to_base(wire: Wire) -> Wire:
    base = {key: value for key, value in wire.items() if key not in ("prompt", "system", "images")}
    system = [{"role": "system", "content": wire["system"]}] if wire.get("system") else []
    images = {"images": wire["images"]} if wire.get("images") else {}
    prompt = wire.get("prompt")
    return {**base, "messages": [*system, {"role": "user", "content": "" if prompt is None else prompt, **images}]}


def _request_from_base(base: Wire) -> Wire:
    wire = {key: value for key, value in base.items() if key not in ("messages", "tools")}
    for message in base["messages"] or ():
        if message["role"] == "system" and "prompt" not in wire:
            wire["system"] = message.get("content") or ""
        else:
            wire["prompt"] = message.get("content") or ""
            wire.update({"images": message["images"]} if message.get("images") else {})
    return wire


def _reply_to_base(wire: Wire) -> Wire:
    if not any(key in wire for key, _ in _TEXTS):
        return wire
    base = {key: value for key, value in wire.items() if key not in ("response", "thinking")}
    texts = {theirs: wire[ours] for ours, theirs in _TEXTS if ours in wire}
    return {**base, "message": {"role": "assistant", "content": "", **texts}}


def _reply_from_base(base: Wire) -> Wire:
    message = base.get("message")
    if not isinstance(message, dict):
        return base
    wire = {key: value for key, value in base.items() if key != "message"}
    texts = {ours: message[theirs] for ours, theirs in _TEXTS if theirs in message}
    return {**wire, "response": "", **texts}


def _prepare(request: Request, losses: list[Loss]) -> Request:
    return to_prompt(request, NAME, losses, keeps_images=True)


def _prepare_reply(reply: Reply, losses: list[Loss]) -> Reply:
    return drop_calls(reply, NAME, losses)


_DIALECT: Final = DerivedDialect(
    NAME,
    ollama,
    Arrangement(_request_to_base, _request_from_base),
    Arrangement(_reply_to_base, _reply_from_base),
    prepare=_prepare,
    prepare_reply=_prepare_reply,
    support=SUPPORT,
)
read_request = _DIALECT.read_request
read_reply = _DIALECT.read_reply
write_request = _DIALECT.write_request
write_reply = _DIALECT.write_reply


class StreamReader(DerivedStreamReader):
    """Convert lines to events. The last line has the fields of a whole reply; the text is that of all lines."""

    def __init__(self, framing: str | None = None, quirks: Collection[str] = ()) -> None:
        super().__init__(_DIALECT, NAME, framing or "ndjson", "ndjson", quirks)
        self._texts: dict[str, Any] = {}
        self._last: Wire = {}

    def to_base_events(self, wire: Wire, _name: str | None) -> Iterable[tuple[Wire, str | None]]:
        """Return the line as a line of a chat."""
        self._last = wire
        for key in ("response", "thinking"):
            if isinstance(wire.get(key), str):
                self._texts[key] = self._texts.get(key, "") + wire[key]
        if isinstance(wire.get("logprobs"), list):
            self._texts["logprobs"] = [*self._texts.get("logprobs", ()), *wire["logprobs"]]
        yield _reply_to_base(wire), None

    def whole_body(self) -> Wire | None:
        """Return the last line with the whole text and the probabilities of all tokens."""
        return {**self._last, **self._texts}


class StreamWriter(DerivedStreamWriter):
    """Convert events to lines."""

    def __init__(self, framing: str | None = None) -> None:
        super().__init__(_DIALECT, "ndjson")
        self._is_sse = select_framing(NAME, framing, ("ndjson", "sse")) == "sse"

    def from_base_event(self, wire: Wire, _name: str | None) -> bytes:
        """Return the line of a chat as a line of this API."""
        if wire.get("done") is True:
            wire = {**write_reply(self.accumulator.reply()).wire, **self.identity, "response": ""}
            for key in ("thinking", "logprobs"):  # in the lines before
                wire.pop(key, None)
        else:
            wire = _reply_from_base(wire)
        return sse_frame(wire) if self._is_sse else json_line(wire) + b"\n"


stream_reader = StreamReader


stream_writer = StreamWriter


def read_error(status: int | None, headers: Mapping[str, str], body: Any) -> Fault:
    """Return the provider's error as a fault."""
    return ollama.read_error(status, headers, body).replace(provider=NAME)


def write_error(fault: Fault) -> Written:
    """Write a fault as an error of this API."""
    return ollama.write_error(fault)
