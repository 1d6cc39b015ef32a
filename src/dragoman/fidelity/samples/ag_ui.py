"""Conversations in the format of AG-UI."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"id": "m1", "role": "user", "content": "Hello."}
_SAID: Final = {"id": "m3", "role": "assistant", "content": "Hi."}
_THOUGHT: Final = {"id": "m2", "role": "reasoning", "content": "A greeting."}

WIRES: Final[dict[str, Any]] = {
    "thinking": [_USER, _THOUGHT, _SAID],
    "signature of thinking": [_USER, {**_THOUGHT, "encryptedValue": "c2VhbGVk"}, _SAID],
    "opaque": [_USER, {"id": "m2", "role": "activity", "activityType": "PLAN", "content": {"steps": []}}, _SAID],
}
