"""What became of everything that a request said, once it was written for another wire and read there again.

    compared(before, written, after, target) -> findings

``before`` is what was read from the first wire, ``written`` what the second one made of it, ``after`` what the second
one reads there. Each thing that was said is looked for: every block, inside results too, with its name, its failure
and its signature; every tool; every option. It is *kept* (equal), *changed* (there, in another form; the note says
which), a *loss* (left out, and named in the losses) or *silent* (left out or altered, and nobody said so). What a
dialect noted about a block or a message for itself alone is a *hint*: it stays behind, and is only counted.

The one rule: what is not found and not named is silent. A thing may be found in another form only if this file says
which forms mean the same.
"""

from __future__ import annotations

import base64
import binascii
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from dragoman.dialects.parts.asides import asides_of, hints_of
from dragoman.dialects.parts.residue import difference
from dragoman.exchange import Loss, OpaqueTool, Options, Reasoning, Request, ToolDefinition, Written
from dragoman.message import (
    AudioBlock,
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    InvalidToolUseBlock,
    Message,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    VideoBlock,
)

Outcome = Literal["kept", "changed", "loss", "silent", "hint"]
OUTCOMES: Final[tuple[Outcome, ...]] = ("kept", "changed", "loss", "silent", "hint")
JOINED: Final = "joined with the text beside it"
MOVED: Final = "stands earlier than it did"
RENAMED: Final = "under another id"
_USUAL_ALPHABET: Final = str.maketrans("-_", "+/")
_Medium = ImageBlock | DocumentBlock | AudioBlock | VideoBlock
_Call = ToolUseBlock | InvalidToolUseBlock
_Position = tuple[int, ...]


class Finding(msgspec.Struct, frozen=True):
    """What became of one thing that was said."""

    kind: str  # a block's type; "system" for a system prompt; "document.name"; "tool"; "options.seed"
    outcome: Outcome
    note: str = ""  # how it changed, why it was left out, or what is wrong
    place: str = ""  # like messages[2].content[0]


class _Found(NamedTuple):
    position: _Position
    note: str = ""
    block: ContentBlock | None = None


def compared(
    before: Request, written: Written, after: Request, target: str, unspoken: Mapping[str, str] = MappingProxyType({})
) -> tuple[Finding, ...]:
    """A finding for everything that was said, in order.

    ``unspoken`` names options that the target does not say in a request, and why nothing is lost by that.
    """
    comparing = _Comparing(written.losses, before, after, target)
    found = [finding for at, message in enumerate(before.messages) for finding in comparing.message(at, message)]
    found.extend(_tools(before.tools, after.tools, comparing.losses))
    found.extend(_options(before, after, comparing.losses, unspoken))
    for name in asides_of(before, target):
        reason = comparing.losses.of_option(name)
        found.append(_missing("aside", reason and f"{name}: {reason}", name, f"{name}: left out"))
    return tuple(found)


def kinds_said(request: Request) -> set[str]:
    """The kinds of things that a request says."""
    return {finding.kind for finding in compared(request, Written(None), request, "")}


# --- losses ----------------------------------------------------------------------------------------------------------


class _Losses:
    """The losses that were named. One loss excuses one missing block; an option's excuses the option."""

    def __init__(self, losses: Iterable[Loss]) -> None:
        self._blocks: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._options: dict[str, str] = {}
        for loss in losses:
            if loss.message_id:
                self._blocks[loss.message_id, loss.block_type].append(loss.reason)
            elif loss.block_type == "tool":
                self._blocks["", "tool"].append(loss.reason)
            else:
                self._options[loss.block_type] = loss.reason

    def of_block(self, message_id: str, *names: str) -> str | None:
        """The reason for which something of a message was left out, if that was said; each is given once."""
        for name in names:
            if self._blocks.get((message_id, name)):
                return self._blocks[message_id, name].pop(0)
        return None

    def of_option(self, name: str) -> str | None:
        """The reason for which an option, or the whole that it is part of, was left out."""
        return self._options.get(name) or self._options.get(name.partition(".")[0])


def _missing(kind: str, reason: str | None, place: str, what: str = "left out") -> Finding:
    return Finding(kind, "silent", what, place) if reason is None else Finding(kind, "loss", reason, place)


def _found(kind: str, note: str, place: str) -> Finding:
    return Finding(kind, "changed" if note else "kept", note, place)


# --- blocks ----------------------------------------------------------------------------------------------------------


class _Scope:
    """The blocks among which others are looked for: those of one role, or of one result. Each is found once."""

    def __init__(self, wanted: Iterable[ContentBlock], blocks: Iterable[tuple[_Position, ContentBlock]]) -> None:
        self._left = list(blocks)
        self._texts = [(position, block.text) for position, block in self._left if isinstance(block, TextBlock)]
        texts = [block.text for block in wanted if isinstance(block, TextBlock) and block.text]
        self._found_texts = iter(_found_texts(texts, self._texts))

    def text(self) -> _Found | None:
        """Where the next of the wanted texts is: alone, or as a part of one."""
        return next(self._found_texts)

    def medium(self, block: _Medium) -> _Found | None:
        """A medium with the same bytes or the same address."""
        for entry in self._left:
            position, candidate = entry
            if isinstance(candidate, _Medium) and _bytes_of(candidate) == _bytes_of(block):
                self._left.remove(entry)
                return _Found(position, _changes(block, candidate), candidate)
        return self._document_as_text(block)

    def _document_as_text(self, block: _Medium) -> _Found | None:
        if not isinstance(block, DocumentBlock) or block.source.kind != "base64":
            return None
        try:
            text = base64.b64decode(block.source.data, validate=True).decode()
        except (binascii.Error, ValueError):
            return None
        found = next((position for position, candidate in self._texts if candidate == text), None)
        return None if found is None or not text else _Found((*found, 0), "as a text")

    def same(self, block: ContentBlock) -> _Found | None:
        """A block that is equal."""
        for entry in self._left:
            if entry[1] == block:
                self._left.remove(entry)
                return _Found(entry[0])
        return None


def _found_texts(wanted: list[str], texts: list[tuple[_Position, str]]) -> Iterator[_Found | None]:
    """Each text in order: one that stands alone, or a part of one that holds nothing else but other wanted texts."""
    at = offset = 0
    for number, text in enumerate(wanted):
        following = wanted[number + 1] if number + 1 < len(wanted) else None
        for place in range(at, len(texts)):
            position, candidate = texts[place]
            start = offset if place == at else 0
            if start == 0 and candidate == text:
                at, offset = place + 1, 0
                yield _Found((*position, 0))
                break
            found = candidate.find(text, start)
            if found >= 0 and _is_blank(candidate[start:found]) and _may_end(candidate, found + len(text), following):
                at, offset = place, found + len(text)
                yield _Found((*position, found), JOINED)
                break
        else:
            yield None


def _may_end(candidate: str, end: int, following: str | None) -> bool:
    """Whether a wanted text may end there: before white space, before the next wanted one, or with the whole."""
    return _is_blank(candidate[end : end + 1]) or (following is not None and candidate.startswith(following, end))


def _is_blank(text: str) -> bool:
    return not text.strip()


def _bytes_of(block: _Medium) -> tuple[str, str]:
    """How to get at the bytes. An address that holds them itself is as good as the bytes, and so is either alphabet."""
    kind, data = block.source.kind, block.source.data
    head, found, inside = data.partition(";base64,")
    if kind == "url" and found and head.startswith("data:"):
        kind, data = "base64", inside
    return kind, data.translate(_USUAL_ALPHABET).rstrip("=") if kind == "base64" else data


def _changes(before: _Medium, after: _Medium) -> str:
    changes = [] if before.type == after.type else [f"as {after.type}"]
    if before.source.kind != after.source.kind:
        changes.append(f"from {before.source.kind} to {after.source.kind}")
    elif before.source.data != after.source.data:
        changes.append("in the other alphabet of base64")
    if before.media_type != after.media_type:
        changes.append(f"{before.media_type} becomes {after.media_type}")
    return "; ".join(changes)


class _Comparing:
    """One translation, looked through from the first message to the last."""

    def __init__(self, losses: Iterable[Loss], before: Request, after: Request, target: str) -> None:
        self.losses = _Losses(losses)
        self._target = target
        self._furthest: _Position = ()
        self._ids: dict[str, str] = {}
        by_role: dict[Role, list[tuple[_Position, ContentBlock]]] = defaultdict(list)
        self._calls: list[tuple[_Position, _Call]] = []
        self._results: list[tuple[_Position, ToolResultBlock]] = []
        for position, role, block in _placed(after):
            if isinstance(block, _Call):
                self._calls.append((position, block))
            elif isinstance(block, ToolResultBlock):
                self._results.append((position, block))
            else:
                by_role[role].append((position, block))
        said = [(message.role, block) for message in before.messages for block in message.content]
        self._scopes = {role: _Scope((b for who, b in said if who is role), by_role[role]) for role in Role}

    def message(self, index: int, message: Message) -> Iterator[Finding]:
        """What became of each block of a message."""
        for hint in hints_of(message.metadata.provider_raw, self._target):
            yield Finding(f"message.{hint}", "hint", "", f"messages[{index}]")
        for at, block in enumerate(message.content):
            place = f"messages[{index}].content[{at}]"
            yield from self._block(block, message, self._scopes[message.role], place)

    def _block(self, block: ContentBlock, message: Message, scope: _Scope, place: str) -> Iterator[Finding]:
        for hint in hints_of(getattr(block, "provider_raw", None), self._target):
            yield Finding(f"{block.type}.{hint}", "hint", "", place)
        match block:
            case TextBlock(text):
                if text:  # an empty one says nothing
                    kind = "system" if message.role is Role.SYSTEM else "text"
                    yield self._whole(kind, block, scope.text(), message, place)
            case ToolUseBlock() | InvalidToolUseBlock():
                yield self._call(block, message, place)
            case ToolResultBlock():
                yield from self._result(block, message, place)
            case ImageBlock() | DocumentBlock() | AudioBlock() | VideoBlock():
                yield from self._medium(block, message, scope, place)
            case ThinkingBlock():
                thought = self._whole(block.type, block, scope.same(block), message, place)
                yield thought
                if block.signature is not None:  # it goes where its thought goes
                    yield msgspec.structs.replace(thought, kind="thinking.signature")
            case _:
                yield self._whole(block.type, block, scope.same(block), message, place)

    def _whole(self, kind: str, block: ContentBlock, found: _Found | None, message: Message, place: str) -> Finding:
        if found is None:
            return _missing(kind, self.losses.of_block(message.id, block.type), place)
        return _found(kind, self._with_move(found, place), place)

    def _with_move(self, found: _Found, place: str) -> str:
        if place.count("content") > 1:
            return found.note  # inside a result
        moved = found.position < self._furthest
        self._furthest = max(self._furthest, found.position)
        return "; ".join(note for note in (found.note, MOVED if moved else "") if note)

    def _medium(self, block: _Medium, message: Message, scope: _Scope, place: str) -> Iterator[Finding]:
        found = scope.medium(block)
        whole = self._whole(block.type, block, found, message, place)
        yield whole
        name = getattr(block, "name", None)
        if name is None:
            return
        kind = f"{block.type}.name"
        if found is None:  # it went with the document
            yield msgspec.structs.replace(whole, kind=kind)
            return
        told = getattr(found.block, "name", None)
        if told == name:
            yield Finding(kind, "kept", "", place)
        elif told is not None:
            yield Finding(kind, "changed", f"{name!r} becomes {told!r}", place)
        else:
            yield _missing(kind, self.losses.of_block(message.id, kind, block.type), place)

    def _call(self, call: _Call, message: Message, place: str) -> Finding:
        found = self._found_call(call)
        if found is None:
            return _missing(call.type, self.losses.of_block(message.id, call.type), place)
        position, there = found
        self._calls.remove(found)
        self._ids[call.id] = there.id
        renamed = "" if there.id == call.id else RENAMED
        if there.name != call.name:
            return Finding(call.type, "silent", f"the name {call.name!r} became {there.name!r}", place)
        form = _input_change(call, there)
        if form is None:
            return Finding(call.type, "silent", "the input is another", place)
        note = "; ".join(part for part in (form, renamed) if part)
        return _found(call.type, self._with_move(_Found(position, note), place), place)

    def _found_call(self, call: _Call) -> tuple[_Position, _Call] | None:
        of_that_id = (entry for entry in self._calls if entry[1].id == call.id)
        of_that_name = (entry for entry in self._calls if entry[1].name == call.name)
        return next(of_that_id, None) or next(of_that_name, None)

    def _result(self, result: ToolResultBlock, message: Message, place: str) -> Iterator[Finding]:
        wanted = self._ids.get(result.tool_use_id, result.tool_use_id)
        found = next((entry for entry in self._results if entry[1].tool_use_id == wanted), None)
        if found is None:
            yield _missing(result.type, self.losses.of_block(message.id, result.type), place)
            return
        self._results.remove(found)
        position, there = found
        yield _found(result.type, self._with_move(_Found(position), place), place)
        if result.is_error:
            kind = "tool_result.is_error"
            reason = self.losses.of_block(message.id, kind, "is_error")
            yield Finding(kind, "kept", "", place) if there.is_error else _missing(kind, reason, place)
        scope = _Scope(result.content, (((at,), block) for at, block in enumerate(there.content)))
        for at, block in enumerate(result.content):
            for finding in self._block(block, message, scope, f"{place}.content[{at}]"):
                yield msgspec.structs.replace(finding, kind=f"tool_result.{finding.kind}")


def _placed(request: Request) -> Iterator[tuple[_Position, Role, ContentBlock]]:
    for index, message in enumerate(request.messages):
        for at, block in enumerate(message.content):
            yield (index, at), message.role, block


def _input_change(before: _Call, after: _Call) -> str | None:
    """How the input of a call changed, in words; ``None`` if it is another input."""
    match before, after:
        case ToolUseBlock(input=ours), ToolUseBlock(input=theirs):
            return "" if difference(ours, theirs) is None else None
        case InvalidToolUseBlock(input_text=ours), InvalidToolUseBlock(input_text=theirs):
            return "" if ours == theirs else None
        case InvalidToolUseBlock(input_text=ours), ToolUseBlock(input=theirs):
            return "as a call with the input {invalid_input: …}" if theirs == {"invalid_input": ours} else None
        case _:
            return None


# --- tools and options -----------------------------------------------------------------------------------------------


def _tools(
    before: Iterable[ToolDefinition | OpaqueTool], after: Iterable[ToolDefinition | OpaqueTool], losses: _Losses
) -> Iterator[Finding]:
    left = list(after)
    for index, tool in enumerate(before):
        place, kind = f"tools[{index}]", "opaque_tool" if isinstance(tool, OpaqueTool) else "tool"
        there = next((candidate for candidate in left if _is_that_tool(tool, candidate)), None)
        if there is None:
            yield _missing(kind, losses.of_block("", "tool"), place)
            continue
        left.remove(there)
        names = ("description", "input_schema") if isinstance(tool, ToolDefinition) else ()
        changed = [name for name in names if difference(getattr(tool, name), getattr(there, name)) is not None]
        yield _found(kind, f"another {' and '.join(changed)}" if changed else "", place)


def _is_that_tool(tool: ToolDefinition | OpaqueTool, other: ToolDefinition | OpaqueTool) -> bool:
    if isinstance(tool, ToolDefinition) and isinstance(other, ToolDefinition):
        return tool.name == other.name
    return isinstance(tool, OpaqueTool) and tool == other


def _options(before: Request, after: Request, losses: _Losses, unspoken: Mapping[str, str]) -> Iterator[Finding]:
    asked, told = options_said(before), options_said(after)
    if before.options.reasoning is None or before.options.reasoning.enabled is None:
        asked.pop("reasoning", None)  # it only follows from the effort or the budget, which are looked for themselves
    for name, value in asked.items():
        kind = f"options.{name}"
        if name in told and difference(value, told[name]) is None:
            yield Finding(kind, "kept", "", kind)
        elif name in told:
            yield Finding(kind, "changed", f"{_shown(value)} becomes {_shown(told[name])}", kind)
        elif name in unspoken:
            yield Finding(kind, "changed", unspoken[name], kind)
        else:
            yield _missing(kind, losses.of_option(name), kind)


def options_said(request: Request) -> dict[str, Any]:
    """Every option that says something, by its name; parts of one like ``reasoning.effort``.

    Left out is what every provider does anyway if nothing is said: to let the model choose among its tools, several at
    once, to answer in words, and whole.
    """
    options = request.options
    said: dict[str, Any] = {"model": request.model}
    for name in Options.__struct_fields__:
        value = getattr(options, name)
        if name not in ("tool_choice", "response_format", "reasoning", "stop_sequences"):
            said[name] = value
    said["stop_sequences"] = list(options.stop_sequences) or None
    said["parallel_tool_calls"] = False if options.parallel_tool_calls is False else None
    said["stream"] = options.stream or None
    choice, asked = options.tool_choice, options.response_format
    if choice is not None and choice.mode != "auto":
        said.update({"tool_choice": choice.mode, "tool_choice.name": choice.name})
    if asked is not None and asked.kind != "text":
        said["response_format"] = asked.kind
        said["response_format.json_schema"] = asked.json_schema
        said["response_format.name"] = asked.name
        said["response_format.strict"] = asked.strict or None
    said.update(_reasoning_said(options.reasoning or Reasoning()))
    return {name: value for name, value in said.items() if value is not None}


def _reasoning_said(reasoning: Reasoning) -> dict[str, Any]:
    """An effort of none is off; an effort or a budget is on."""
    if reasoning.enabled is False or reasoning.effort == "none":
        return {"reasoning": "off"}
    parts = {"reasoning.effort": reasoning.effort, "reasoning.budget_tokens": reasoning.budget_tokens}
    on = reasoning.enabled or any(value is not None for value in parts.values())
    return {"reasoning": "on" if on else None, **parts}


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:40]}…"
