"""Recognize a conversation by its transcript: a chain of hashes over its messages. Pure.

    chain = chain_hashes(seed, messages)       one hash for each prefix; the first one is that of no message
    seed_of(caller, key)                       where the chain of a caller starts, or of a session that a client names

Clients send the whole transcript with every call. A hash covers what clients repeat reliably: roles, text without white
space, names and inputs of calls, results and media. It ignores ids, reasoning, caching marks and system prompts before
the first message, which clients change from call to call.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from dragoman.gateway.types import Caller
from dragoman.message import (
    ContentBlock,
    InvalidToolUseBlock,
    MediaBlock,
    Message,
    Role,
    TextBlock,
    ToolResultBlock,
    ToolUseBlock,
)

# Headers with which clients name a session, and a worker inside it.
_SESSION_HEADERS: Final = (
    "x-dragoman-session",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "conversation_id",
    "x-opencode-session",
    "x-session-id",
)
_SESSION_NAMES: Final = frozenset(_SESSION_HEADERS)
_WORKER_HEADERS: Final = ("x-claude-code-agent-id", "x-openai-subagent")
_PARENT_HEADERS: Final = ("x-claude-code-parent-agent-id",)
_VOLATILE_LINE: Final = "x-anthropic-billing-header"  # of a system prompt; differs from call to call
_MAX_KEY: Final = 256
_ASCII_SPACES: Final = bytes(code for code in range(128) if chr(code).isspace())


class SessionKey(msgspec.Struct, frozen=True):
    """The name of a session in the headers of a client."""

    session: str
    worker: str = ""  # a worker inside the session
    parent: str = ""  # the worker that started it

    @property
    def parent_key(self) -> SessionKey | None:
        """The key of the session or the worker that started this worker."""
        return SessionKey(self.session, self.parent) if self.worker else None


def session_key(headers: Mapping[str, str]) -> SessionKey | None:
    """Return the session that a client names; none if it names none."""
    if _SESSION_NAMES.isdisjoint(headers):  # most clients
        return None
    session = _first(headers, _SESSION_HEADERS)
    if not session:
        return None
    return SessionKey(session, _first(headers, _WORKER_HEADERS), _first(headers, _PARENT_HEADERS))


def _first(headers: Mapping[str, str], names: Iterable[str]) -> str:
    return next((headers[name][:_MAX_KEY] for name in names if headers.get(name)), "")


def seed_of(caller: Caller, key: SessionKey | None = None) -> bytes:
    """Return the start of the chains of a caller. Chains of different callers have nothing in common."""
    return _hash_seed(caller.user_id, caller.team_id, *((key.session, key.worker) if key is not None else ()))


@functools.lru_cache(maxsize=1024)
def _hash_seed(*parts: str | None) -> bytes:
    return hashlib.sha256(msgspec.json.encode(parts)).digest()


def split_system(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the system messages before the conversation, and the conversation."""
    count = next((at for at, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    return tuple(messages[:count]), tuple(messages[count:])


def hash_system(messages: Iterable[Message]) -> bytes | None:
    """Return the hash of the system prompt; none if there is none."""
    texts = [block.text for message in messages for block in message.content if isinstance(block, TextBlock)]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith(_VOLATILE_LINE)]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).digest() if lines else None


def chain_hashes(seed: bytes, messages: Iterable[Message]) -> list[bytes]:
    """Return the hash of each prefix of a conversation, from the empty one on."""
    hashes = [seed]
    for message in messages:
        hashes.append(extend_chain(hashes[-1], message.role, message.content))
    return hashes


def extend_chain(previous: bytes, role: Role, content: Iterable[ContentBlock]) -> bytes:
    """Return the hash of a conversation with one more message."""
    match content:
        case (TextBlock(text=text),):  # most messages
            return extend_with_text(previous, role, text)
        case _:
            summary = _encode((role._value_, *_summarize(content)))
    return hashlib.sha256(previous + summary).digest()


def extend_with_text(previous: bytes, role: Role, text: str) -> bytes:
    """Return the hash of a conversation with one more text: the same bytes without an encoder."""
    summary = b'["%b","%b"]' % (role._value_.encode(), _hash_text(text).encode())
    return hashlib.sha256(previous + summary).digest()


_encode: Final = msgspec.json.Encoder(order="sorted").encode


def _summarize(content: Iterable[ContentBlock]) -> list[Any]:
    """Return what a hash covers: the text as a whole, then every other part in order."""
    text: list[str] = []
    parts: list[Any] = []
    for block in content:
        match block:
            case TextBlock(text=words):
                text.append(words)
            case ToolUseBlock(name=name, input=value):
                parts.append(["call", name, _normalize(value)])
            case InvalidToolUseBlock(name=name, input_text=words):
                parts.append(["call", name, words])
            case ToolResultBlock(content=inner):
                parts.append(["result", *_summarize(inner)])
            case _ if isinstance(block, MediaBlock):
                data = block.source.data.encode("utf-8", "surrogatepass")
                parts.append([block.type, hashlib.sha256(data).hexdigest()])
    return [_hash_text("".join(text)), *parts]


def _hash_text(text: str) -> str:
    """Return the hash of a text without white space."""
    if text.isascii():
        data = text.encode().translate(None, _ASCII_SPACES)
    else:
        data = "".join(text.split()).encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()


def _normalize(value: Any) -> Any:
    """Return a JSON value in which 1.0 is 1: some clients parse every number as a float."""
    match value:
        case dict():
            return {key: _normalize(item) for key, item in value.items()}
        case list():
            return [_normalize(item) for item in value]
        case float() if value.is_integer():
            return int(value)
        case str():
            return value.encode("utf-8", "replace").decode()
        case _:
            return value
