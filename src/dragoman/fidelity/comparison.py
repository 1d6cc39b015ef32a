"""Compare a request before and after conversion to another wire format.

    compare_requests(before, written, after, target) -> findings

``before`` was read from the first wire, ``written`` is the output of the second dialect, ``after`` is that output read
back. Every block (also inside results, with name, error flag and signature), tool and option is looked up. It is
*kept* (equal), *changed* (present in another form; the note describes it), a *loss* (missing, and reported as a loss)
or *silent* (missing or altered without a report). Dialect-specific notes about a block or a message are a *hint*: they
are only counted.

Invariant: everything that is missing and not reported is silent. Only the forms in this module count as equivalent.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from dragoman import message as msg
from dragoman.exchange import Loss, OpaqueTool, Options, Reasoning, Request, ToolChoice, ToolDefinition, Written
from dragoman.wire.residue import diff, foreign_fields, foreign_options

Outcome = Literal["kept", "changed", "loss", "silent", "hint"]
JOINED: Final = "joined with the text beside it"
MOVED: Final = "moved to an earlier position"
NEW_ID: Final = "under another id"
NOT_ALLOWED: Final = "left out: the model may not call it"
_TO_STANDARD: Final = str.maketrans("-_", "+/")
_PLACEHOLDER: Final = re.compile(r"\[(?:image|audio|video|document) \([^\]]*\)\]")  # in place of a lost medium
_Position = tuple[int, ...]


class Finding(msgspec.Struct, frozen=True):
    """The result for one thing in a request."""

    kind: str  # a block's type; "system" for a system prompt; "document.name"; "tool"; "options.seed"
    outcome: Outcome
    note: str = ""  # the change, the reason of the loss, or the problem
    place: str = ""  # for example messages[2].content[0]


class _Match(NamedTuple):
    position: _Position
    note: str = ""
    block: msg.ContentBlock | None = None


def compare_requests(
    before: Request,
    written: Written,
    after: Request,
    target: str,
    implicit: Mapping[str, str] = MappingProxyType({}),
    *,
    bases: Collection[str] = (),
) -> tuple[Finding, ...]:
    """Return a finding for everything in a request, in order.

    ``implicit`` are options that the target does not write in a request, and why nothing is lost. ``bases`` are other
    dialects whose own options the target writes.
    """
    comparison = _Comparison(written, before, after, target)
    findings = [
        finding
        for index, message in enumerate(before.messages)
        for finding in comparison.compare_message(index, message)
    ]
    findings.extend(_compare_tools(before, after.tools, comparison.losses))
    findings.extend(_compare_options(before, after, comparison.losses, implicit))
    for name, origin in foreign_options(before, target).items():
        if origin in bases:
            continue
        reason = comparison.losses.get_option_reason(name)
        if reason is None and _is_carried(name, before.provider_raw, written.wire):
            findings.append(Finding("aside", "kept", "", name))
            continue
        findings.append(_missing_finding("aside", reason and f"{name}: {reason}", name, f"{name}: left out"))
    return tuple(findings)


def _is_carried(name: str, raw: msg.ProviderRaw | None, wire: Any) -> bool:
    """Return whether a wire has an option of another dialect with its value, because both have the same fields."""
    residue = (raw or {}).get("residue")
    options = residue.get("set", {}) if isinstance(residue, dict) else {}
    is_same = isinstance(wire, dict) and name in options and name in wire
    return is_same and diff(options[name], wire[name]) is None


def request_kinds(request: Request) -> set[str]:
    """Return the kinds of findings in a request."""
    return {finding.kind for finding in compare_requests(request, Written(None), request, "")}


# --- losses ----------------------------------------------------------------------------------------------------------


class _Losses:
    """The reported losses. One loss excuses one missing block; the loss of an option excuses the option."""

    def __init__(self, losses: tuple[Loss, ...], adjustments: Iterable[Loss]) -> None:
        self._all = losses
        self._blocks: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._options: dict[str, str] = {}
        self._adjusted = {(item.message_id, item.block_type): item.reason for item in adjustments}
        self._hints: set[str] = set()  # names of what is reported as a hint
        for loss in losses:
            if loss.kind == "hint":
                self._hints.add(loss.block_type)
            if loss.kind == "adjusted":
                continue
            if loss.message_id:
                self._blocks[loss.message_id, loss.block_type].append(loss.reason)
            elif loss.block_type == "tool":
                self._blocks["", "tool"].append(loss.reason)
            else:
                self._options[loss.block_type] = loss.reason

    def take_block_reason(self, message_id: str, *names: str) -> str | None:
        """Return and remove the reason for a missing block of a message, if reported."""
        for name in names:
            if self._blocks.get((message_id, name)):
                return self._blocks[message_id, name].pop(0)
        return None

    def peek_block_reason(self, message_id: str, *names: str) -> str | None:
        """Return the reason for a missing block or field without removing it."""
        return next((reason for name in names for reason in self._blocks.get((message_id, name), ())), None)

    def get_option_reason(self, name: str) -> str | None:
        """Return the reason for a missing option, or for the option that it is part of."""
        return self._options.get(name) or self._options.get(name.partition(".")[0])

    def find_tool_reason(self, name: str, tool: str) -> str | None:
        """Return the reason for a change of the tools that names this tool."""
        word = re.compile(rf"(?<![\w.-]){re.escape(tool)}(?![\w.-])")
        return next((item.reason for item in self._all if item.block_type == name and word.search(item.reason)), None)

    def has_option_report(self, name: str) -> bool:
        """Return whether an option, the one that it is part of, or a part of it is reported."""
        names = (*self._options, *(other for message_id, other in self._adjusted if not message_id))
        return any(other in (name, name.partition(".")[0]) or other.startswith(f"{name}.") for other in names)

    def missing_finding(self, kind: str, reason: str | None, place: str) -> Finding:
        """Return the finding for a missing field: a dropped hint, a loss, or silent."""
        if reason is not None and kind.removeprefix("options.") in self._hints:
            return Finding(kind, "hint", reason, place)
        return _missing_finding(kind, reason, place)

    def get_adjustment(self, message_id: str, name: str) -> str | None:
        """Return how a block or an option was changed, if reported."""
        adjusted = self._adjusted
        return adjusted.get((message_id, name)) or adjusted.get((message_id, name.partition(".")[0]))


def _missing_finding(kind: str, reason: str | None, place: str, note: str = "left out") -> Finding:
    return Finding(kind, "silent", note, place) if reason is None else Finding(kind, "loss", reason, place)


def _match_finding(kind: str, note: str, place: str) -> Finding:
    return Finding(kind, "changed" if note else "kept", note, place)


# --- blocks ----------------------------------------------------------------------------------------------------------


class _Scope:
    """The blocks in which others are looked up: those of one role or of one result. Each block matches once."""

    def __init__(
        self, expected: Iterable[msg.ContentBlock], blocks: Iterable[tuple[_Position, msg.ContentBlock]]
    ) -> None:
        self._unmatched = list(blocks)
        self._texts = [
            (position, block.text) for position, block in self._unmatched if isinstance(block, msg.TextBlock)
        ]
        texts = [block.text for block in expected if isinstance(block, msg.TextBlock) and block.text]
        self._text_matches = iter(_match_texts(texts, self._texts))

    def next_text(self) -> _Match | None:
        """Return the match of the next expected text: a whole text or a part of one."""
        return next(self._text_matches)

    def has_trimmed(self, text: str) -> bool:
        """Return whether a text is blank, or present without the white space at its end."""
        trimmed = text.rstrip()
        return not trimmed or any(candidate == trimmed for _, candidate in self._texts)

    def find_medium(self, block: msg.MediaBlock) -> _Match | None:
        """Return a medium with the same bytes or the same URL."""
        for entry in self._unmatched:
            position, candidate = entry
            if isinstance(candidate, msg.MediaBlock) and _media_key(candidate) == _media_key(block):
                self._unmatched.remove(entry)
                return _Match(position, _describe_changes(block, candidate), candidate)
        return self._find_document_text(block)

    def _find_document_text(self, block: msg.MediaBlock) -> _Match | None:
        if not isinstance(block, msg.DocumentBlock) or block.source.kind != "base64":
            return None
        try:
            text = base64.b64decode(block.source.data, validate=True).decode()
        except (binascii.Error, ValueError):
            return None
        text_position = next((position for position, candidate in self._texts if candidate == text), None)
        return None if text_position is None or not text else _Match((*text_position, 0), "as a text")

    def find_equal(self, block: msg.ContentBlock) -> _Match | None:
        """Return an equal block."""
        for entry in self._unmatched:
            if entry[1] == block:
                self._unmatched.remove(entry)
                return _Match(entry[0])
        return None


def _match_texts(expected: list[str], texts: list[tuple[_Position, str]]) -> Iterator[_Match | None]:
    """Yield a match for each text in order: a whole text, or a part of a text that consists of expected texts."""
    current = offset = 0
    for number, text in enumerate(expected):
        next_text = expected[number + 1] if number + 1 < len(expected) else None
        for index in range(current, len(texts)):
            position, candidate = texts[index]
            start = offset if index == current else 0
            if start == 0 and candidate == text:
                current, offset = index + 1, 0
                yield _Match((*position, 0))
                break
            position_in_text = candidate.find(text, start)
            if (
                position_in_text >= 0
                and _is_blank(_PLACEHOLDER.sub("", candidate[start:position_in_text]))
                and _may_end(candidate, position_in_text + len(text), next_text)
            ):
                current, offset = index, position_in_text + len(text)
                yield _Match((*position, position_in_text), JOINED)
                break
        else:
            yield None


def _may_end(candidate: str, end: int, next_text: str | None) -> bool:
    """Return whether an expected text may end there: before white space, before the next one, or at the end."""
    return _is_blank(candidate[end : end + 1]) or (next_text is not None and candidate.startswith(next_text, end))


def _is_blank(text: str) -> bool:
    return not text.strip()


def _media_key(block: msg.MediaBlock) -> tuple[str, str]:
    """Return the bytes or the URL of a medium. A data URL equals its bytes, and both base64 alphabets are equal."""
    kind, data = block.source.kind, block.source.data
    head, separator, payload = data.partition(";base64,")
    if kind == "url" and separator and head.startswith("data:"):
        kind, data = "base64", payload
    return kind, data.translate(_TO_STANDARD).rstrip("=") if kind == "base64" else data


def _describe_changes(before: msg.MediaBlock, after: msg.MediaBlock) -> str:
    changes = [] if before.type == after.type else [f"as {after.type}"]
    if before.source.kind != after.source.kind:
        changes.append(f"from {before.source.kind} to {after.source.kind}")
    elif before.source.data != after.source.data:
        changes.append("in the other alphabet of base64")
    if before.media_type != after.media_type:
        changes.append(f"{before.media_type} becomes {after.media_type}")
    return "; ".join(changes)


_ROLES: Final = frozenset(msg.Role)


def _known_role(message: msg.Message) -> msg.Role:
    """Return the role of a message; one that no API has is written as that of the user, with a report."""
    return message.role if message.role in _ROLES else msg.Role.USER


class _Comparison:
    """The comparison of one conversion, message by message."""

    def __init__(self, written: Written, before: Request, after: Request, target: str) -> None:
        self.losses = _Losses((*written.losses, *written.notes), written.adjustments)
        self._target = target
        self._last_position: _Position = ()
        self._ids: dict[str, str] = {}
        self._after = [block for message in after.messages for block in _flatten(message.content)]
        self._notes = [message.metadata.provider_raw for message in after.messages]
        self._notes += [getattr(block, "provider_raw", None) for block in self._after]
        by_role: dict[msg.Role, list[tuple[_Position, msg.ContentBlock]]] = defaultdict(list)
        self._calls: list[tuple[_Position, msg.CallBlock]] = []
        self._results: list[tuple[_Position, msg.ToolResultBlock]] = []
        for position, role, block in _iterate_blocks(after):
            if isinstance(block, msg.CallBlock):
                self._calls.append((position, block))
            elif isinstance(block, msg.ToolResultBlock):
                self._results.append((position, block))
            else:
                by_role[role].append((position, block))
        expected = [(_known_role(message), block) for message in before.messages for block in message.content]
        self._scopes = {
            role: _Scope((b for role_of_block, b in expected if role_of_block is role), by_role[role])
            for role in msg.Role
        }

    def compare_message(self, index: int, message: msg.Message) -> Iterator[Finding]:
        """Yield the findings of each block of a message."""
        yield from self._compare_foreign_fields(message.metadata.provider_raw, "message", message, f"messages[{index}]")
        for position, block in enumerate(message.content):
            place = f"messages[{index}].content[{position}]"
            yield from self._compare_block(block, message, self._scopes[_known_role(message)], place)
            yield from self._compare_fields(block, message, place)

    def _compare_foreign_fields(
        self, raw: msg.ProviderRaw | None, subject: str, message: msg.Message, place: str
    ) -> Iterator[Finding]:
        """Yield a finding for each field that only another dialect has: a loss has to be reported.

        A target that writes the bodies of the other dialect keeps them.
        """
        for kind, outcome, reason in foreign_fields(raw, self._target, subject):
            if outcome == "hint" or self.losses.peek_block_reason(message.id, kind) is not None:
                yield Finding(kind, outcome, reason, place)
            elif raw in self._notes:
                yield Finding(kind, "kept", "", place)
            else:
                yield _missing_finding(kind, None, place)

    def _compare_block(
        self, block: msg.ContentBlock, message: msg.Message, scope: _Scope, place: str
    ) -> Iterator[Finding]:
        yield from self._compare_foreign_fields(getattr(block, "provider_raw", None), block.type, message, place)
        match block:
            case msg.TextBlock(text):
                if text:  # empty texts are ignored
                    yield self._compare_text(block, message, scope, place)
            case _ if isinstance(block, msg.CallBlock):
                yield self._compare_call(block, message, place)
            case msg.ToolResultBlock():
                yield from self._compare_result(block, message, place)
            case _ if isinstance(block, msg.MediaBlock):
                yield from self._compare_medium(block, message, scope, place)
            case msg.ThinkingBlock():
                finding = self._finding_for_match(block.type, block, scope.find_equal(block), message, place)
                yield finding
                if block.signature is not None:  # the signature has the result of its reasoning
                    yield msgspec.structs.replace(finding, kind="thinking.signature")
            case _:
                yield self._finding_for_match(block.type, block, scope.find_equal(block), message, place)

    def _compare_fields(self, block: msg.ContentBlock, message: msg.Message, place: str) -> Iterator[Finding]:
        """Yield the findings of the optional fields of a block, as far as the block itself arrived."""
        for kind, name in _fields_of(block):
            value = getattr(block, name)
            found = [getattr(other, name) for other in self._after if _is_same_block(block, other)]
            if not found and not isinstance(block, msg.TextBlock):
                yield Finding(kind, "loss", f"left out with its {block.type}", place)
                continue
            if any(diff(msgspec.to_builtins(value), msgspec.to_builtins(other)) is None for other in found):
                yield Finding(kind, "kept", "", place)
            elif any(found):
                yield Finding(kind, "changed", "in the form of the target", place)
            elif name == "cache_hint" and isinstance(block, msg.TextBlock) and not block.text.strip():
                yield Finding(kind, "changed", "at the block before a blank text", place)
            elif kind == "text.citations" and any(getattr(other, name, ()) for other in self._after):
                yield Finding(kind, "changed", "at another text", place)
            elif kind == "tool_use.free_form":
                yield Finding(kind, "changed", "as a call of a function with one text", place)
            elif (note := self.losses.get_adjustment(message.id, kind)) is not None:
                yield Finding(kind, "changed", note, place)
            else:
                reason = self.losses.peek_block_reason(message.id, kind, block.type)
                yield self.losses.missing_finding(kind, reason, place)

    def _compare_text(self, block: msg.TextBlock, message: msg.Message, scope: _Scope, place: str) -> Finding:
        kind = "system" if message.role is msg.Role.SYSTEM else "text"
        match = scope.next_text()
        if match is None and not scope.has_trimmed(block.text):  # an adjustment leaves out white space alone
            return _missing_finding(kind, self.losses.take_block_reason(message.id, block.type), place)
        return self._finding_for_match(kind, block, match, message, place)

    def _finding_for_match(
        self, kind: str, block: msg.ContentBlock, match: _Match | None, message: msg.Message, place: str
    ) -> Finding:
        if match is None:
            return self._missing_block(kind, block.type, message, place)
        return _match_finding(kind, self._add_move_note(match, place), place)

    def _missing_block(self, kind: str, block_type: str, message: msg.Message, place: str) -> Finding:
        adjustment = self.losses.get_adjustment(message.id, block_type)
        if adjustment is not None:
            return Finding(kind, "changed", adjustment, place)
        return _missing_finding(kind, self.losses.take_block_reason(message.id, block_type), place)

    def _add_move_note(self, match: _Match, place: str) -> str:
        if place.count("content") > 1:
            return match.note  # inside a result
        is_earlier = match.position < self._last_position
        self._last_position = max(self._last_position, match.position)
        return "; ".join(note for note in (match.note, MOVED if is_earlier else "") if note)

    def _compare_medium(
        self, block: msg.MediaBlock, message: msg.Message, scope: _Scope, place: str
    ) -> Iterator[Finding]:
        match = scope.find_medium(block)
        finding = self._finding_for_match(block.type, block, match, message, place)
        yield finding
        name = getattr(block, "name", None)
        if name is None:
            return
        kind = f"{block.type}.name"
        if match is None:  # lost with the document
            yield msgspec.structs.replace(finding, kind=kind)
            return
        new_name = getattr(match.block, "name", None)
        if new_name == name:
            yield Finding(kind, "kept", "", place)
        elif new_name is not None:
            yield Finding(kind, "changed", f"{name!r} becomes {new_name!r}", place)
        else:
            yield _missing_finding(kind, self.losses.take_block_reason(message.id, kind, block.type), place)

    def _compare_call(self, call: msg.CallBlock, message: msg.Message, place: str) -> Finding:
        adjustment = self.losses.get_adjustment(message.id, call.type)
        if adjustment is not None and all(other.id != call.id for _, other in self._calls):
            return Finding(call.type, "changed", adjustment, place)  # it is no call any more
        match = self._find_call(call)
        if match is None:
            return self._missing_block(call.type, call.type, message, place)
        position, new_call = match
        self._calls.remove(match)
        self._ids[call.id] = new_call.id
        id_note = "" if new_call.id == call.id else NEW_ID
        if new_call.name != call.name:
            return Finding(call.type, "silent", f"the name {call.name!r} became {new_call.name!r}", place)
        form = _input_change(call, new_call)
        form = form if form is not None else self.losses.get_adjustment(message.id, call.type)
        if form is None:
            return Finding(call.type, "silent", "the input differs", place)
        note = "; ".join(part for part in (form, id_note) if part)
        return _match_finding(call.type, self._add_move_note(_Match(position, note), place), place)

    def _find_call(self, call: msg.CallBlock) -> tuple[_Position, msg.CallBlock] | None:
        same_id = (entry for entry in self._calls if entry[1].id == call.id)
        same_name = (entry for entry in self._calls if entry[1].name == call.name)
        return next(same_id, None) or next(same_name, None)

    def _compare_result(self, result: msg.ToolResultBlock, message: msg.Message, place: str) -> Iterator[Finding]:
        call_id = self._ids.get(result.tool_use_id, result.tool_use_id)
        match = next((entry for entry in self._results if entry[1].tool_use_id == call_id), None)
        if match is None:
            yield self._missing_block(result.type, result.type, message, place)
            return
        self._results.remove(match)
        position, new_result = match
        yield _match_finding(result.type, self._add_move_note(_Match(position), place), place)
        if result.is_error:
            kind = "tool_result.is_error"
            reason = self.losses.take_block_reason(message.id, kind, "is_error")
            yield Finding(kind, "kept", "", place) if new_result.is_error else _missing_finding(kind, reason, place)
        scope = _Scope(result.content, (((index,), block) for index, block in enumerate(new_result.content)))
        for index, block in enumerate(result.content):
            for finding in self._compare_block(block, message, scope, f"{place}.content[{index}]"):
                yield msgspec.structs.replace(finding, kind=f"tool_result.{finding.kind}")


def _iterate_blocks(request: Request) -> Iterator[tuple[_Position, msg.Role, msg.ContentBlock]]:
    for index, message in enumerate(request.messages):
        for position, block in enumerate(message.content):
            yield (index, position), _known_role(message), block


def _flatten(content: Iterable[msg.ContentBlock]) -> Iterator[msg.ContentBlock]:
    for block in content:
        yield block
        if isinstance(block, msg.ToolResultBlock):
            yield from _flatten(block.content)


def _fields_of(block: msg.ContentBlock) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each optional field of a block that is set."""
    for kind, name in (
        ("block.cache_hint", "cache_hint"),
        ("text.citations", "citations"),
        ("image.detail", "detail"),
        ("document.context", "context"),
        ("document.cite", "cite"),
        ("tool_use.free_form", "free_form"),
    ):
        if getattr(block, name, None):
            yield kind, name


def _is_same_block(block: msg.ContentBlock, other: msg.ContentBlock) -> bool:
    """Return whether a block is another one after the conversion."""
    match block, other:
        case msg.TextBlock(text), msg.TextBlock(other_text):
            return other_text in (text, text.rstrip())
        case msg.ToolUseBlock(name=name), msg.ToolUseBlock(name=other_name):
            return name == other_name
        case msg.ToolResultBlock(), msg.ToolResultBlock():
            return True
        case _ if isinstance(block, msg.MediaBlock) and isinstance(other, msg.MediaBlock):
            return type(block) is type(other) and _media_key(block) == _media_key(other)
        case _:
            return False


def _input_change(before: msg.CallBlock, after: msg.CallBlock) -> str | None:
    """Return how the input of a call changed; ``None`` if it is different."""
    match before, after:
        case msg.ToolUseBlock(input=old), msg.ToolUseBlock(input=new):
            return "" if diff(old, new) is None else None
        case msg.InvalidToolUseBlock(input_text=old), msg.InvalidToolUseBlock(input_text=new):
            return "" if old == new else None
        case _:
            return None


# --- tools and options -----------------------------------------------------------------------------------------------


def _compare_tools(before: Request, after: Iterable[ToolDefinition | OpaqueTool], losses: _Losses) -> Iterator[Finding]:
    unmatched = list(after)
    choice = before.options.tool_choice
    allowed = choice.allowed if choice is not None else ()
    for index, tool in enumerate(before.tools):
        place, kind = f"tools[{index}]", "opaque_tool" if isinstance(tool, OpaqueTool) else "tool"
        new_tool = next((candidate for candidate in unmatched if _is_same_tool(tool, candidate)), None)
        if isinstance(tool, OpaqueTool) and tool.kind == "cache_point" and new_tool is None:
            reason = losses.get_option_reason("tool.cache_hint") or losses.peek_block_reason("", "tool")
            yield losses.missing_finding("tool.cache_hint", reason, place)
            continue
        if isinstance(tool, OpaqueTool) and tool.kind is not None:
            yield _compare_server_tool(tool, new_tool, losses, place)
        if new_tool is not None:
            unmatched.remove(new_tool)
        match tool, new_tool:
            case ToolDefinition(name), None if (
                allowed and name not in allowed and losses.find_tool_reason("tool_choice.allowed", name)
            ):
                yield Finding(kind, "changed", NOT_ALLOWED, place)
            case _, None:
                yield _missing_finding(kind, losses.take_block_reason("", "tool"), place)
            case ToolDefinition(), ToolDefinition():
                yield _compare_tool(tool, new_tool, losses, place)
                yield from _compare_tool_fields(tool, new_tool, losses, place)
            case _:
                note = losses.get_adjustment("", "server_tool") or "another tool"
                yield _match_finding(kind, "" if tool == new_tool else note, place)


def _compare_tool(tool: ToolDefinition, new_tool: ToolDefinition, losses: _Losses, place: str) -> Finding:
    """Return the finding for the description and the schema of a tool: a change has to be reported with its name."""
    notes = []
    for name in ("description",) if tool.free_form and new_tool.free_form else ("description", "input_schema"):
        if diff(getattr(tool, name), getattr(new_tool, name)) is None:
            continue
        reason = losses.find_tool_reason(f"tool.{name}", tool.name)
        if reason is None:
            return Finding("tool", "silent", f"different {name}", place)
        notes.append(reason.removeprefix(f"{tool.name} "))
    return _match_finding("tool", "; ".join(notes), place)


def _compare_server_tool(
    tool: OpaqueTool, new_tool: ToolDefinition | OpaqueTool | None, losses: _Losses, place: str
) -> Finding:
    kind = f"server_tool.{tool.kind}"
    if new_tool is None:
        return _missing_finding(kind, losses.peek_block_reason("", "tool"), place)
    return _match_finding(kind, "" if tool == new_tool else losses.get_adjustment("", "server_tool") or "", place)


def _compare_tool_fields(
    tool: ToolDefinition, new_tool: ToolDefinition, losses: _Losses, place: str
) -> Iterator[Finding]:
    """Yield the findings of the optional fields of a tool."""
    for name in ("strict", "cache_hint", "defer_loading", "free_form", "grammar"):
        value, kind = getattr(tool, name), f"tool.{name}"
        if not value:
            continue
        if diff(msgspec.to_builtins(value), msgspec.to_builtins(getattr(new_tool, name))) is None:
            yield Finding(kind, "kept", "", place)
        elif (note := losses.get_adjustment("", kind)) is not None:
            yield Finding(kind, "changed", note, place)
        elif name == "free_form":
            yield Finding(kind, "changed", "as a function that takes one text", place)
        else:
            yield losses.missing_finding(kind, losses.get_option_reason(kind), place)


def _is_same_tool(tool: ToolDefinition | OpaqueTool, other: ToolDefinition | OpaqueTool) -> bool:
    if isinstance(tool, ToolDefinition) and isinstance(other, ToolDefinition):
        return tool.name == other.name
    if not isinstance(tool, OpaqueTool) or not isinstance(other, OpaqueTool):
        return False
    return tool == other or (tool.kind is not None and tool.kind == other.kind)


def _compare_options(
    before: Request, after: Request, losses: _Losses, implicit: Mapping[str, str]
) -> Iterator[Finding]:
    expected, actual = collect_options(before), collect_options(after)
    if before.options.reasoning is None or before.options.reasoning.enabled is None:
        expected.pop("reasoning", None)  # derived from effort or budget, which are compared themselves
    if _is_one_tool(before.options.tool_choice, after.options.tool_choice):
        actual.update((name, expected[name]) for name in ("tool_choice", "tool_choice.allowed"))
    for name, value in expected.items():
        kind = f"options.{name}"
        if name in actual and diff(value, actual[name]) is None:
            yield Finding(kind, "kept", "", kind)
        elif name in actual:
            note = f"{_abbreviate(value)} becomes {_abbreviate(actual[name])}"
            yield Finding(kind, "changed" if losses.has_option_report(name) else "silent", note, kind)
        elif name in implicit:
            yield Finding(kind, "changed", implicit[name], kind)
        elif (adjustment := losses.get_adjustment("", name)) is not None:
            yield Finding(kind, "changed", adjustment, kind)
        else:
            yield losses.missing_finding(kind, losses.get_option_reason(name), kind)


def _is_one_tool(before: ToolChoice | None, after: ToolChoice | None) -> bool:
    """Return whether a call of one of the allowed tools became a call of this tool, because only one is allowed."""
    if before is None or after is None or before.mode != "required" or after.mode != "tool":
        return False
    return before.allowed == (after.name,)


def collect_options(request: Request) -> dict[str, Any]:
    """Return every option that is set, by name; parts of an option like ``reasoning.effort``.

    Values that are the default of every provider are left out: automatic tool choice, parallel calls, text output, one
    answer, no streaming, no probabilities, text output, nothing kept.
    """
    options = request.options
    values: dict[str, Any] = {"model": request.model}
    for name in Options.__struct_fields__:
        value = getattr(options, name)
        if name not in ("tool_choice", "response_format", "reasoning"):
            values[name] = list(value) or None if isinstance(value, tuple) else value
    values["cache_hint"] = None if options.cache_hint is None else msgspec.to_builtins(options.cache_hint)
    values["store"] = options.store or None
    values["modalities"] = None if options.modalities == ("text",) else values["modalities"]
    values["parallel_tool_calls"] = False if options.parallel_tool_calls is False else None
    values["stream"] = options.stream or None
    values["logprobs"] = options.logprobs or None
    values["top_logprobs"] = options.top_logprobs or None
    values["n"] = options.n if options.n != 1 else None
    choice, response_format = options.tool_choice, options.response_format
    if choice is not None and choice.mode != "auto":
        values.update({"tool_choice": choice.mode, "tool_choice.name": choice.name})
    if choice is not None:
        values["tool_choice.allowed"] = list(choice.allowed) or None
    if response_format is not None and response_format.kind != "text":
        values["response_format"] = response_format.kind
        values["response_format.json_schema"] = response_format.json_schema
        values["response_format.name"] = response_format.name
        values["response_format.strict"] = response_format.strict or None
        values["response_format.description"] = response_format.description
    values.update(_reasoning_options(options.reasoning or Reasoning()))
    return {name: value for name, value in values.items() if value is not None}


def _reasoning_options(reasoning: Reasoning) -> dict[str, Any]:
    """Return the reasoning options. The effort ``none`` is off; an effort or a budget is on."""
    if reasoning.is_off:
        return {"reasoning": "off"}
    parts = {
        "reasoning.effort": reasoning.effort,
        "reasoning.budget_tokens": reasoning.budget_tokens,
        "reasoning.summary": reasoning.summary if reasoning.summary != "none" else None,
    }
    on = reasoning.enabled or reasoning.effort is not None or reasoning.budget_tokens is not None
    return {"reasoning": "on" if on else None, **parts}


def _abbreviate(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 40 else f"{text[:40]}…"
