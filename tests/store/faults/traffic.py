"""The appends of the writers: the content of each follows from its name, so that a checker knows the expected rows.

    append_named("w3-17")    what writer 3 does as its 17th deed, as plain data

The names stand in the texts, which is how a stored message is known again. No code of the store is used here.
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
_MADE_AT = "2026-11-15T12:00:00.000000Z"

Json = dict[str, Any]


@dataclass(frozen=True)
class Append:
    """One append as plain data."""

    name: str
    kind: str
    session_id: str
    messages: tuple[Json, ...]  # canonical JSON; with an empty session_id where the store is to name them
    key: str | None = None  # the idempotency key
    ends_as: tuple[Json, ...] = field(default=())  # what an update makes of the messages

    @property
    def may_be_repeated(self) -> bool:
        """Whether asking again after an unknown outcome is safe."""
        return self.key is not None or bool(self.messages[0]["session_id"])


def own_session(writer: int) -> str:
    """The session that only this writer writes to."""
    return f"sess_own_{writer}"


def sessions() -> tuple[str, ...]:
    """Every session there is."""
    return SHARED + tuple(own_session(writer) for writer in range(WRITERS))


def append_named(name: str) -> Append:
    """Return the append of a name."""
    writer, number = (int(part) for part in name.removeprefix("w").split("-"))
    kind = KINDS[(number + writer) % len(KINDS)]
    session = own_session(writer) if kind in ("expected", "stream") or number % 3 == 0 else SHARED[number % 2]
    match kind:
        case "single":
            return Append(name, kind, session, (_said(name, 0, "user", _text(name, 0)),))
        case "keyed":
            return Append(name, kind, session, (_said(name, 0, "user", _text(name, 0)),), key=f"key {name}")
        case "turn":
            return Append(name, kind, session, _turn(name), key=f"key {name}")
        case "ids":
            owned = (_said(name, 0, "user", _text(name, 0), session), _answer(name, 1, session))
            return Append(name, kind, session, owned)
        case "large":
            long = [{"type": "text", "text": f"{name}#0 " + hashlib.sha256(name.encode()).hexdigest() * 400}]
            return Append(name, kind, session, (_said(name, 0, "user", long),), key=f"key {name}")
        case "picture":
            data = base64.b64encode(hashlib.shake_256(b"picture %d" % (number % 4)).digest(18_000)).decode()
            shown = {"type": "image", "source": {"kind": "base64", "data": data}, "media_type": "image/png"}
            return Append(name, kind, session, (_said(name, 0, "user", [*_text(name, 0), shown], session),))
        case "stream":
            begun = _answer(name, 0, session) | {"metadata": {"status": "partial"}}
            return Append(name, kind, session, (begun,), ends_as=(_answer(name, 0, session, more=" and more"),))
        case _:
            return Append(name, kind, session, (_said(name, 0, "user", _text(name, 0), session),))


def ulid_of(name: str) -> str:
    """An id that follows from a name."""
    number = int.from_bytes(hashlib.sha256(name.encode()).digest()[:16]) >> 1
    digits = []
    for _ in range(26):
        number, digit = divmod(number, 32)
        digits.append(_ALPHABET[digit])
    return "0" + "".join(reversed(digits))[1:]


def name_in(text: str) -> str:
    """The name of the append and the number of the message that a text begins with: ``w3-17#0``."""
    return text.partition(" ")[0]


def _text(name: str, place: int) -> list[Json]:
    return [{"type": "text", "text": f"{name}#{place} says “ü” and \x00 and 你好"}]


def _said(name: str, place: int, role: str, content: list[Json], session_id: str = "") -> Json:
    return {
        "id": ulid_of(f"{name}#{place}"),
        "session_id": session_id,
        "role": role,
        "content": content,
        "metadata": {},
        "created_at": _MADE_AT,
        "schema_version": 1,
    }


def _answer(name: str, place: int, session_id: str = "", more: str = "") -> Json:
    usage = {
        "input_tokens": 100 + len(name),
        "output_tokens": 20,
        "cached_input_tokens": 3,
        "cost_usd": "0.001230",
        "pricing_version": "p1",
        "latency_ms": 12,
    }
    metadata = {"model": "anthropic:claude-sonnet-4-6", "provider": "anthropic", "usage": usage}
    content = [{"type": "text", "text": f"{name}#{place} answers{more}"}]
    return _said(name, place, "assistant", content, session_id) | {"metadata": metadata}


def _turn(name: str) -> tuple[Json, ...]:
    """A question, an answer that calls two tools, one good result and one failure."""
    calls = [f"tu_{ulid_of(f'{name} call {number}')}" for number in range(2)]
    asks = _answer(name, 1)
    asks["content"] = [
        *asks["content"],
        *({"type": "tool_use", "id": call, "name": f"tool_{n}", "input": {"n": n}} for n, call in enumerate(calls)),
    ]
    results = []
    for place, call in enumerate(calls, 2):
        said = {"type": "tool_result", "tool_use_id": call, "content": _text(name, place)}
        if place == 3:
            said["is_error"] = True
        results.append(_said(name, place, "tool", [said]) | {"metadata": {"parent_tool_use_id": call}})
    return (_said(name, 0, "user", _text(name, 0)), asks, *results)
