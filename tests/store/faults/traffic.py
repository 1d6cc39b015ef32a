"""The appends of the writers: the content of each is derived from its name, so a checker knows the expected rows.

    create_append("w3-17")    the 17th append of writer 3 as JSON values

The texts contain the names, which identify stored messages. This module uses no code of the store.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from typing import Any

SHARED = ("sess_shared_a", "sess_shared_b")
WRITERS = 4
KINDS = ("single", "keyed", "turn", "ids", "large", "picture", "stream", "expected")
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_CREATED_AT = "2026-11-15T12:00:00.000000Z"

Json = dict[str, Any]


@dataclass(frozen=True)
class Append:
    """An append as JSON values."""

    name: str
    kind: str
    session_id: str
    messages: tuple[Json, ...]  # canonical JSON; an empty session_id makes the store assign ids
    key: str | None = None  # the idempotency key
    ends_as: tuple[Json, ...] = field(default=())  # the messages after an update

    @property
    def may_be_repeated(self) -> bool:
        """Whether the append may be repeated after an unknown outcome."""
        return self.key is not None or bool(self.messages[0]["session_id"])


def session_of_writer(writer: int) -> str:
    """Return the session that only this writer uses."""
    return f"sess_own_{writer}"


def sessions() -> tuple[str, ...]:
    """Return all sessions."""
    return SHARED + tuple(session_of_writer(writer) for writer in range(WRITERS))


def create_append(name: str) -> Append:
    """Return the append of a name."""
    writer, number = (int(part) for part in name.removeprefix("w").split("-"))
    kind = KINDS[(number + writer) % len(KINDS)]
    session = session_of_writer(writer) if kind in ("expected", "stream") or number % 3 == 0 else SHARED[number % 2]
    match kind:
        case "single":
            return Append(name, kind, session, (_create_message(name, 0, "user", _text_blocks(name, 0)),))
        case "keyed":
            return Append(
                name, kind, session, (_create_message(name, 0, "user", _text_blocks(name, 0)),), key=f"key {name}"
            )
        case "turn":
            return Append(name, kind, session, _turn_messages(name), key=f"key {name}")
        case "ids":
            owned = (
                _create_message(name, 0, "user", _text_blocks(name, 0), session),
                _answer_message(name, 1, session),
            )
            return Append(name, kind, session, owned)
        case "large":
            long = [{"type": "text", "text": f"{name}#0 " + hashlib.sha256(name.encode()).hexdigest() * 400}]
            return Append(name, kind, session, (_create_message(name, 0, "user", long),), key=f"key {name}")
        case "picture":
            data = base64.b64encode(hashlib.shake_256(b"picture %d" % (number % 4)).digest(18_000)).decode()
            shown = {"type": "image", "source": {"kind": "base64", "data": data}, "media_type": "image/png"}
            return Append(
                name, kind, session, (_create_message(name, 0, "user", [*_text_blocks(name, 0), shown], session),)
            )
        case "stream":
            partial = _answer_message(name, 0, session) | {"metadata": {"status": "partial"}}
            return Append(
                name, kind, session, (partial,), ends_as=(_answer_message(name, 0, session, more=" and more"),)
            )
        case _:
            return Append(name, kind, session, (_create_message(name, 0, "user", _text_blocks(name, 0), session),))


def derive_ulid(name: str) -> str:
    """Return an id derived from a name."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16]) >> 1
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "0" + "".join(reversed(digits))[1:]


def parse_name(text: str) -> str:
    """Return the append's name and the message number at the beginning of a text, such as ``w3-17#0``."""
    return text.partition(" ")[0]


def _text_blocks(name: str, number_in_append: int) -> list[Json]:
    return [{"type": "text", "text": f"{name}#{number_in_append} says “ü” and \x00 and 你好"}]


def _create_message(name: str, number_in_append: int, role: str, content: list[Json], session_id: str = "") -> Json:
    return {
        "id": derive_ulid(f"{name}#{number_in_append}"),
        "session_id": session_id,
        "role": role,
        "content": content,
        "metadata": {},
        "created_at": _CREATED_AT,
        "schema_version": 1,
    }


def _answer_message(name: str, number_in_append: int, session_id: str = "", more: str = "") -> Json:
    usage = {
        "input_tokens": 100 + len(name),
        "output_tokens": 20,
        "cached_input_tokens": 3,
        "cost_usd": "0.001230",
        "pricing_version": "p1",
        "latency_ms": 12,
    }
    metadata = {"model": "anthropic:claude-sonnet-4-6", "provider": "anthropic", "usage": usage}
    content = [{"type": "text", "text": f"{name}#{number_in_append} answers{more}"}]
    return _create_message(name, number_in_append, "assistant", content, session_id) | {"metadata": metadata}


def _turn_messages(name: str) -> tuple[Json, ...]:
    """Return a question, an answer with two tool calls, a result and an error result."""
    calls = [f"tu_{derive_ulid(f'{name} call {number}')}" for number in range(2)]
    asks = _answer_message(name, 1)
    asks["content"] = [
        *asks["content"],
        *({"type": "tool_use", "id": call, "name": f"tool_{n}", "input": {"n": n}} for n, call in enumerate(calls)),
    ]
    results = []
    for number_in_append, call in enumerate(calls, 2):
        block = {"type": "tool_result", "tool_use_id": call, "content": _text_blocks(name, number_in_append)}
        if number_in_append == 3:
            block["is_error"] = True
        results.append(
            _create_message(name, number_in_append, "tool", [block]) | {"metadata": {"parent_tool_use_id": call}}
        )
    return (_create_message(name, 0, "user", _text_blocks(name, 0)), asks, *results)
