"""The field names of AG-UI in camel case, from either spelling.

    to_camel_case(value)        a RunAgentInput whose snake case fields are renamed: thread_id becomes threadId

AG-UI writes its fields in camel case. Programs that use the protocol's Python types without aliases, and many that
are written by hand, send snake case. Only the protocol's own fields are renamed: what an application keeps in
``metadata``, ``state``, ``parameters`` and ``forwardedProps`` stays as it is. A field that comes in both spellings
counts once, if both have the same value; else the request is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from dragoman.server.http.http_errors import ApiError

_Names = Mapping[str, str]


def _snake_to_camel(*camel: str) -> _Names:
    """The snake case spelling of each of these names, and the name."""
    return {"".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name): name for name in camel}


_INPUT: Final = _snake_to_camel("threadId", "runId", "parentRunId", "protocolVersion", "forwardedProps")
_MESSAGE: Final = _snake_to_camel("toolCallId", "toolCalls", "encryptedValue", "activityType", "subagentRunId")
_PART: Final = _snake_to_camel("mimeType")
_RESUME: Final = _snake_to_camel("interruptId")


def to_camel_case(value: Any) -> Any:
    """A RunAgentInput in camel case. What is not one is left as it is, to be refused by its reader."""
    if not isinstance(value, dict):
        return value
    result = _rename_fields(value, _INPUT, "")
    for name, rename in (("messages", _rename_message), ("resume", _rename_resume)):
        if isinstance(result.get(name), list):
            result = {**result, name: [rename(item, f"{name}[{at}].") for at, item in enumerate(result[name])]}
    return result


def _rename_message(value: Any, where: str) -> Any:
    message = _rename_fields(value, _MESSAGE, where)
    if isinstance(message, dict) and isinstance(message.get("content"), list):
        parts = [_rename_part(part, f"{where}content[{at}].") for at, part in enumerate(message["content"])]
        message = {**message, "content": parts}
    return message


def _rename_part(value: Any, where: str) -> Any:
    part = _rename_fields(value, _PART, where)
    if isinstance(part, dict) and isinstance(part.get("source"), dict):
        part = {**part, "source": _rename_fields(part["source"], _PART, f"{where}source.")}
    return part


def _rename_resume(value: Any, where: str) -> Any:
    return _rename_fields(value, _RESUME, where)


def _rename_fields(value: Any, names: _Names, where: str) -> Any:
    """An object whose snake case fields are renamed; the same one if it has none."""
    if not isinstance(value, dict) or names.keys().isdisjoint(value):
        return value
    result: dict[str, Any] = {}
    for key, item in value.items():
        name = names.get(key, key)
        if name in result and result[name] != item:
            raise ApiError(422, "invalid_request", f"{where}{name} and {where}{key} differ. Send one of them.")
        result[name] = item
    return result
