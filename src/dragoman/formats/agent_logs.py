"""Session files of coding agents, as conversations of a known format.

    find_agent(values) -> str | None              the agent whose file begins with these values
    read_log(agent, values) -> AgentLog           its conversation, in a format that ``formats`` reads

| agent | file | becomes |
|---|---|---|
| Claude Code | ``~/.claude/projects/*/*.jsonl`` | an ``anthropic`` request |
| Codex | ``~/.codex/sessions/**/rollout-*.jsonl`` | an ``openai_responses`` request |
| Gemini CLI | ``~/.gemini/tmp/*/chats/session-*.jsonl``, or ``.json`` | a ``gemini`` request |
| opencode | the output of ``opencode export`` | messages of ``vercel`` |

A file contains more than the conversation: hooks, snapshots, events of the user interface. These are left out. The
conversation is the branch of the last message; a compaction does not remove earlier messages. The formats are not
documented; the fields are those of the agents' sources in 2026.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from dragoman.errors import FormatError

Json = dict[str, Any]


class AgentLog(msgspec.Struct, frozen=True):
    """A conversation: the format to read it with, and its JSON value."""

    format: str
    value: Any


def find_agent(values: Sequence[Any]) -> str | None:
    """Return the agent whose session file begins with these values; ``None`` if it is another file."""
    objects = [value for value in values if isinstance(value, dict)]
    if len(objects) < len(values):
        return None
    return next((agent for agent, (is_log, _) in _AGENTS.items() if is_log(objects)), None)


def read_log(agent: str, values: Sequence[Any]) -> AgentLog:
    """Return the conversation of a session file. ``FormatError`` if it has no messages."""
    log = _AGENTS[agent][1]([value for value in values if isinstance(value, dict)])
    messages = log.value if isinstance(log.value, list) else next(iter(log.value.values()))
    if not messages:
        raise FormatError(f"the session of {agent} has no messages", where="$")
    return log


# --- Claude Code -----------------------------------------------------------------------------------------------------


def _is_claude_code(lines: list[Json]) -> bool:
    return any(_is_turn(line) and "sessionId" in line and "uuid" in line for line in lines)


def _is_turn(line: Json) -> bool:
    return line.get("type") in ("user", "assistant") and isinstance(line.get("message"), dict)


def _read_claude_code(lines: list[Json]) -> AgentLog:
    """Join the lines of a reply, which have one message id."""
    main = [line for line in lines if not line.get("isSidechain")]
    turns = _claude_code_branch(main if any(map(_is_turn, main)) else lines)
    messages: list[Json] = []
    replies: dict[str, Json] = {}
    model = None
    for turn in turns:
        message = turn["message"]
        content = message.get("content") or []
        reply_id = message.get("id") if turn["type"] == "assistant" else None
        if isinstance(message.get("model"), str) and message["model"] != "<synthetic>":
            model = message["model"]
        if isinstance(reply_id, str) and reply_id in replies and isinstance(content, list):
            known = replies[reply_id]["content"]
            known.extend(block for block in content if block not in known)
            continue
        messages.append({"role": message.get("role") or turn["type"], "content": content})
        if isinstance(reply_id, str) and isinstance(content, list):
            replies[reply_id] = messages[-1] = {**messages[-1], "content": list(content)}
    return AgentLog("anthropic", {"messages": messages, **({"model": model} if model else {})})


def _claude_code_branch(lines: list[Json]) -> list[Json]:
    """Return the turns from the first to the last message, without those that were rewound.

    The results of parallel calls are branches of the lines of one reply; all of them belong to the conversation.
    """
    by_id = {line["uuid"]: line for line in lines if isinstance(line.get("uuid"), str)}
    last = next((line for line in reversed(lines) if _is_turn(line)), None)
    branch: set[str] = set()
    while last is not None and last.get("uuid") not in branch:
        branch.add(str(last.get("uuid")))
        last = by_id.get(str(last.get("parentUuid") or last.get("logicalParentUuid")))
    turns = [line for line in lines if _is_turn(line)]
    replies = {line["message"].get("id") for line in turns if line.get("uuid") in branch} - {None}
    calls = {
        block.get("id")
        for line in turns
        if line.get("uuid") in branch or line["message"].get("id") in replies
        for block in _blocks(line)
    } - {None}
    return [
        line
        for line in turns
        if line.get("uuid") in branch
        or line["message"].get("id") in replies
        or any(block.get("tool_use_id") in calls for block in _blocks(line))
    ]


def _blocks(line: Json) -> list[Json]:
    content = line["message"].get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


# --- Codex -----------------------------------------------------------------------------------------------------------

_CODEX_TYPES: Final = ("session_meta", "turn_context", "response_item", "event_msg", "compacted")
_NO_CONTENT: Final = ("ghost_snapshot", "compaction_trigger")  # items that no model receives


def _is_codex(lines: list[Json]) -> bool:
    if any(line.get("type") in _CODEX_TYPES and isinstance(line.get("payload"), dict) for line in lines):
        return True
    first = lines[0] if lines else {}
    is_header = {"id", "timestamp", "instructions"} <= first.keys() and "type" not in first  # until summer 2025
    return is_header and any("record_type" in line or line.get("type") == "message" for line in lines)


def _read_codex(lines: list[Json]) -> AgentLog:
    items: list[Json] = []
    fields: Json = {}
    for line in lines:
        payload = line["payload"] if isinstance(line.get("payload"), dict) else line
        kind = line.get("type")
        if kind == "compacted":
            items.extend(_read_compaction(payload))
        elif kind == "turn_context" and isinstance(payload.get("model"), str):
            fields["model"] = payload["model"]
        elif kind == "session_meta" or kind is None:
            instructions = payload.get("base_instructions") or payload.get("instructions")
            text = instructions.get("text") if isinstance(instructions, dict) else instructions
            fields.update({"instructions": text} if isinstance(text, str) and text else {})
        elif kind == "response_item" or payload is line:
            items.append(payload)
    items = [item for item in items if isinstance(item.get("type"), str) and item["type"] not in _NO_CONTENT]
    return AgentLog("openai_responses", {"input": items, **fields})


def _read_compaction(payload: Json) -> Iterator[Json]:
    """Yield the summary of a compaction; the replaced items are in the file before it."""
    history = payload.get("replacement_history")
    yield from (
        item
        for item in (history if isinstance(history, list) else [])
        if isinstance(item, dict) and str(item.get("type")).startswith("compaction")
    )
    summary = payload.get("message")
    if isinstance(summary, str) and summary:
        yield {"type": "message", "role": "user", "content": [{"type": "input_text", "text": summary}]}


# --- Gemini CLI ------------------------------------------------------------------------------------------------------


def _is_gemini_cli(lines: list[Json]) -> bool:
    return any("sessionId" in line and "projectHash" in line for line in lines[:1])


def _read_gemini_cli(lines: list[Json]) -> AgentLog:
    messages: dict[str, Json] = {}  # the last version of an id counts
    for number, line in enumerate(lines):
        changes = line["$set"] if isinstance(line.get("$set"), dict) else line
        if isinstance(changes.get("messages"), list):  # all messages, or those that are left after a compression
            messages.update({str(item.get("id", at)): item for at, item in enumerate(_objects(changes["messages"]))})
        elif isinstance(line.get("$rewindTo"), str):  # removes this message and all after it
            kept = list(messages).index(line["$rewindTo"]) if line["$rewindTo"] in messages else 0
            messages = dict(list(messages.items())[:kept])
        elif "type" in line and "content" in line:
            messages[str(line.get("id", number))] = line
    contents: list[Json] = []
    model = None
    for message in messages.values():
        if message.get("type") == "user":
            contents.append({"role": "user", "parts": _gemini_parts(message.get("content"))})
        elif message.get("type") == "gemini":
            model = message.get("model") or model
            contents.extend(_read_gemini_reply(message))
    contents = [content for content in contents if content["parts"]]
    return AgentLog("gemini", {"contents": contents, **({"model": model} if isinstance(model, str) else {})})


def _gemini_parts(content: Any) -> list[Json]:
    parts = content if isinstance(content, list) else [content]
    texts = [{"text": part} if isinstance(part, str) else part for part in parts]
    return [part for part in texts if isinstance(part, dict) and part != {"text": ""}]


def _read_gemini_reply(message: Json) -> Iterator[Json]:
    thoughts = [
        {"text": f"**{thought.get('subject') or ''}**\n{thought.get('description') or ''}", "thought": True}
        for thought in _objects(message.get("thoughts"))
    ]
    calls = _objects(message.get("toolCalls"))
    call_parts = [
        {"functionCall": {"id": call.get("id"), "name": call.get("name"), "args": call.get("args") or {}}}
        for call in calls
    ]
    yield {"role": "model", "parts": [*thoughts, *_gemini_parts(message.get("content")), *call_parts]}
    yield {"role": "user", "parts": [part for call in calls for part in _read_gemini_result(call)]}


def _read_gemini_result(call: Json) -> list[Json]:
    result = call.get("result")
    if result is None:
        return []
    parts = _gemini_parts(result)
    if any("functionResponse" in part for part in parts):
        return parts
    output = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
    response = {"id": call.get("id"), "name": call.get("name"), "response": {"output": output}}
    return [{"functionResponse": response}]


def _objects(value: Any) -> list[Json]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


# --- opencode --------------------------------------------------------------------------------------------------------


def _is_opencode(lines: list[Json]) -> bool:
    if len(lines) != 1 or not isinstance(lines[0].get("info"), dict):
        return False
    messages = _objects(lines[0].get("messages"))
    return bool(messages) and all(isinstance(message.get("info"), dict) and "parts" in message for message in messages)


def _read_opencode(lines: list[Json]) -> AgentLog:
    messages: list[Json] = []
    for number, message in enumerate(_objects(lines[0]["messages"])):
        info = message["info"]
        parts = [part for item in _objects(message["parts"]) for part in _read_opencode_part(item)]
        role = "assistant" if info.get("role") == "assistant" else "user"
        if parts:
            messages.append({"id": str(info.get("id", number)), "role": role, "parts": parts})
    return AgentLog("vercel", messages)


def _read_opencode_part(part: Json) -> Iterable[Json]:
    match part:
        case {"type": "text" | "reasoning" as kind, "text": str(text)} if text:
            return [{"type": kind, "text": text}]
        case {"type": "file", "mime": str(media_type), "url": str(url)}:
            name = {"filename": part["filename"]} if isinstance(part.get("filename"), str) else {}
            return [{"type": "file", "mediaType": media_type, "url": url, **name}]
        case {"type": "tool", "tool": str(tool), "callID": str(call_id), "state": dict(state)}:
            return [{"type": f"tool-{tool}", "toolCallId": call_id, **_read_opencode_state(state)}]
        case {"type": "step-start"}:
            return [{"type": "step-start"}]
        case _:
            return []


def _read_opencode_state(state: Json) -> Json:
    fields: Json = {"input": state.get("input") or {}}
    match state.get("status"):
        case "completed":
            return {**fields, "state": "output-available", "output": state.get("output")}
        case "error":
            return {**fields, "state": "output-error", "errorText": str(state.get("error"))}
        case _:
            return {**fields, "state": "input-available"}


_AGENTS: Final[dict[str, tuple[Callable[[list[Json]], bool], Callable[[list[Json]], AgentLog]]]] = {
    "Claude Code": (_is_claude_code, _read_claude_code),
    "Codex": (_is_codex, _read_codex),
    "Gemini CLI": (_is_gemini_cli, _read_gemini_cli),
    "opencode": (_is_opencode, _read_opencode),
}
