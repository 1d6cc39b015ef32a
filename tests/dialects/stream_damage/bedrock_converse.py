"""Damaged streams of Bedrock Converse, with their outcomes."""

from __future__ import annotations

import binascii
import struct
from typing import Any

from dragoman.wire.frames import aws_frame, aws_frame_as_json
from tests.dialects.stream_damage.case import ANY, Case


def frame(name: str, **wire: Any) -> bytes:
    return aws_frame(wire, name)


def text(content: str, index: int = 0) -> bytes:
    return frame("contentBlockDelta", contentBlockIndex=index, delta={"text": content}, p="abcdefgh")


def stop(index: int = 0) -> bytes:
    return frame("contentBlockStop", contentBlockIndex=index)


def fragment(content: str, index: int = 0) -> bytes:
    return frame("contentBlockDelta", contentBlockIndex=index, delta={"toolUse": {"input": content}})


def end(reason: str = "end_turn", **more: Any) -> bytes:
    return frame("messageStop", stopReason=reason, **more)


def raw_frame(payload: bytes, *headers: tuple[str, str]) -> bytes:
    """Return a frame with any payload and any headers."""
    packed = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers
    )
    return with_checksums(packed, payload)


def with_checksums(headers: bytes, payload: bytes, size: int | None = None) -> bytes:
    total = 16 + len(headers) + len(payload) if size is None else size
    prelude = struct.pack(">II", total, len(headers))
    body = prelude + struct.pack(">I", binascii.crc32(prelude)) + headers + payload
    return body + struct.pack(">I", binascii.crc32(body))


def flip_bit(data: bytes, at: int) -> bytes:
    damaged = bytearray(data)
    damaged[at] ^= 1
    return bytes(damaged)


def exception_frame(name: str, **wire: Any) -> bytes:
    return aws_frame(wire, name, "exception")


def to_text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


START = frame("messageStart", role="assistant")
CALL = frame("contentBlockStart", contentBlockIndex=0, start={"toolUse": {"toolUseId": "tooluse_1", "name": "delete"}})
SEARCH = frame(
    "contentBlockStart",
    contentBlockIndex=0,
    start={"toolUse": {"toolUseId": "tooluse_1", "name": "nova_grounding", "type": "server_tool_use"}},
)
USAGE = {"inputTokens": 8, "outputTokens": 3, "totalTokens": 11}
SPENT = frame("metadata", usage=USAGE, metrics={"latencyMs": 412})
HELLO = START + text("Hé") + text("llo.")
WHOLE = HELLO + stop() + end() + SPENT
PING = raw_frame(b"{}", (":event-type", "ping"), (":message-type", "event"))
NO_JSON = raw_frame(b"{]", (":event-type", "contentBlockDelta"), (":message-type", "event"))
A_LIST = raw_frame(b"[1]", (":event-type", "contentBlockDelta"), (":message-type", "event"))
HALF = raw_frame(
    b'{"contentBlockIndex":0,"delta":{"text":"\\ud83d"}}',
    (":event-type", "contentBlockDelta"),
    (":message-type", "event"),
)
DEEP = raw_frame(b"[" * 5_000, (":event-type", "contentBlockDelta"), (":message-type", "event"))
UNFORESEEN = raw_frame(
    b"", (":message-type", "error"), (":error-code", "InternalFailure"), (":error-message", "The service broke.")
)
LONG = text("x" * 6000)
PAGE = b"<!DOCTYPE html><html><body>502 Bad Gateway</body></html>"
LATE = text("More.", 1)
LATE_NOTE = '{"contentBlockDelta":{"contentBlockIndex":1,"delta":{"text":"More."}}}\n'

DECODED = [
    ({"contentBlockIndex": 0, "delta": {"text": "Hé"}}, "contentBlockDelta"),
    ({"contentBlockIndex": 0, "delta": {"text": "llo."}}, "contentBlockDelta"),
    ({"contentBlockIndex": 0}, "contentBlockStop"),
    ({"stopReason": "end_turn"}, "messageStop"),
    ({"usage": USAGE, "metrics": {"latencyMs": 412}}, "metadata"),
]
LINES = [aws_frame_as_json({"role": "assistant"}, "messageStart"), *(aws_frame_as_json(*event) for event in DECODED)]


def case_of_decoded_frames(data: bytes, code: str | None = None, text: str = "", **raw: Any) -> Case:
    return Case(data, code, text, raw, framing="aws-eventstream-decoded")


def exceptions() -> dict[str, Case]:
    known = {
        "internalServerException": ("server_error", "server_error", True),
        "modelStreamErrorException": ("server_error", "server_error", True),
        "serviceUnavailableException": ("server_error", "server_error", True),
        "throttlingException": ("rate_limited", "rate_limit", True),
        "validationException": ("invalid_request", "invalid_request", False),
        "modelTimeoutException": ("timeout", "network", True),
        "somethingNewException": ("server_error", "server_error", True),
    }
    return {
        f"the provider tells of a {name}": Case(
            HELLO + exception_frame(name, message="Sorry.") + text(" Nothing after it is trusted."),
            code,
            "Héllo.",
            fault={
                "message": "Sorry.",
                "error_class": error_class,
                "retryable": retryable,
                "provider_code": name[:1].upper() + name[1:],
            },
        )
        for name, (code, error_class, retryable) in known.items()
    }


CASES: dict[str, Case] = {
    # --- complete, however it comes
    "a whole stream": Case(WHOLE, text="Héllo."),
    "unknown events and a ping": Case(
        PING + START + frame("contentBlockPause", why="?") + WHOLE.removeprefix(START) + PING, text="Héllo."
    ),
    "what it cost comes before the end": Case(HELLO + stop() + SPENT + end(), text="Héllo."),
    "what it cost does not come": Case(HELLO + stop() + end(), text="Héllo."),
    "cut in what it cost": Case(WHOLE[:-20], text="Héllo."),
    "usage twice": Case(WHOLE + SPENT, text="Héllo."),
    # --- cut
    "only the start": Case(START, "stream_incomplete"),
    "the end does not come": Case(
        HELLO, "stream_incomplete", "Héllo.", fault={"retryable": True, "error_class": "network"}
    ),
    "the end does not come, though the block has ended": Case(HELLO + stop(), "stream_incomplete", "Héllo."),
    "cut in the first frame": Case(START[:30], "stream_incomplete", raw={"tail": to_text(START[:30])}),
    "cut in a frame": Case(HELLO + stop()[:40], "stream_incomplete", "Héllo.", {"tail": to_text(stop()[:40])}),
    "cut in the length of a frame": Case(
        HELLO + stop()[:3], "stream_incomplete", "Héllo.", {"tail": to_text(stop()[:3])}
    ),
    "cut in a character": Case(
        START + text("Hé")[: text("Hé").index("é".encode()) + 1],
        "stream_incomplete",
        raw={"tail": to_text(text("Hé")[: text("Hé").index("é".encode()) + 1])},
    ),
    "cut in a long frame": Case(HELLO + LONG[:-100], "stream_incomplete", "Héllo.", {"tail": to_text(LONG[:4096])}),
    "the end has no reason": Case(HELLO + stop() + frame("messageStop") + SPENT, "stream_incomplete", "Héllo."),
    # --- no stream
    "nothing at all": Case(b"", "empty_response"),
    "only blanks": Case(b" \r\n", "empty_response"),
    "a page": Case(PAGE, "bad_content_type", raw={"head": PAGE.decode()}),
    "a short page": Case(b"<h1>", "bad_content_type", raw={"head": "<h1>"}),
    "a long page": Case(b"<p>" + b"x" * 5000, "bad_content_type", raw={"head": "<p>" + "x" * 1021}),
    "a page with a key in it": Case(
        b"<p>Authorization: Bearer abcdef123456</p>",
        "bad_content_type",
        raw={"head": "<p>Authorization: Bearer ***</p>"},
    ),
    "an error with status 200": Case(
        b'\n{"message": "The security token is expired."}',
        "bad_content_type",
        raw={"head": '\n{"message": "The security token is expired."}'},
    ),
    "a page in the middle": Case(HELLO + PAGE, "bad_event", "Héllo."),
    # --- damaged
    "an event that is no JSON": Case(HELLO + NO_JSON + text(" More."), "bad_event", "Héllo."),
    "an event that is no object": Case(HELLO + A_LIST + text(" More."), "bad_event", "Héllo."),
    "an event that is nested too deep": Case(HELLO + DEEP + text(" More."), "bad_event", "Héllo."),
    "half of a character": Case(HELLO + HALF + text(" More."), "bad_event", "Héllo."),
    "a bit flipped in a payload": Case(HELLO + flip_bit(LONG, 300) + stop(), "bad_event", "Héllo."),
    "a bit flipped in a checksum": Case(HELLO + flip_bit(stop(), -1) + end() + SPENT, "bad_event", "Héllo."),
    "a bit flipped in a length": Case(HELLO + flip_bit(stop(), 3) + end() + SPENT, "bad_event", "Héllo."),
    "a bit flipped in the first frame": Case(flip_bit(START, 20) + text("Hé"), "bad_event"),
    "a frame that is too large": Case(HELLO + with_checksums(b"", b"", 2**31) + end(), "bad_event", "Héllo."),
    "a frame that is smaller than its headers": Case(
        HELLO + with_checksums(b"x" * 50, b"", 20) + end(), "bad_event", "Héllo."
    ),
    "headers that end too early": Case(HELLO + with_checksums(b"\x20abc", b"{}") + end(), "bad_event", "Héllo."),
    "what it cost is damaged": Case(HELLO + stop() + end() + flip_bit(SPENT, 60), "bad_event", "Héllo."),
    # --- errors of the provider
    **exceptions(),
    "a failure that no service foresaw": Case(
        HELLO + UNFORESEEN,
        "server_error",
        "Héllo.",
        fault={"message": "The service broke.", "provider_code": "InternalFailure", "retryable": True},
    ),
    "a failure with more to say": Case(
        HELLO + exception_frame("modelStreamErrorException", message="Sorry.", originalStatusCode=500),
        "server_error",
        "Héllo.",
        {"error": {"message": "Sorry.", "originalStatusCode": 500}},
    ),
    "a failure at once": Case(exception_frame("throttlingException", message="Slow down."), "rate_limited"),
    "a failure between the end and what it cost": Case(
        HELLO + stop() + end() + exception_frame("internalServerException", message="Sorry."), "server_error", "Héllo."
    ),
    "a prompt that is too long": Case(
        exception_frame("validationException", message="Input is too long for requested model."),
        "context_overflow",
        fault={"error_class": "context_overflow", "retryable": False},
    ),
    "a reply that the provider cannot read": Case(
        HELLO + stop() + end("malformed_model_output") + SPENT,
        "malformed_output",
        "Héllo.",
        fault={"provider_code": "malformed_model_output"},
    ),
    "the model called in a way that its provider cannot read": Case(
        HELLO + stop() + end("malformed_tool_use") + SPENT, "tool_input_invalid", "Héllo."
    ),
    # --- out of order
    "a second start": Case(HELLO + START + text(" More."), "protocol_violation", "Héllo."),
    "text before the start": Case(text("Hé") + START, "protocol_violation"),
    "the end before the start": Case(end() + SPENT, "protocol_violation"),
    "what it cost before the start": Case(SPENT, "protocol_violation"),
    "text for a block that has ended": Case(HELLO + stop() + text(" More."), "protocol_violation", "Héllo."),
    "input for a call that has not begun": Case(START + fragment("{}"), "protocol_violation"),
    "input for a text": Case(HELLO + fragment("{}"), "protocol_violation", "Héllo."),
    "text for a call": Case(START + CALL + text("Hé"), "protocol_violation", invalid_inputs=("",)),
    "the end of a block that has not begun": Case(HELLO + stop(1), "protocol_violation", "Héllo."),
    "the end of a block a second time": Case(HELLO + stop() + stop(), "protocol_violation", "Héllo."),
    "a block before the one that came last": Case(
        START + text("Hé", 1) + stop(1) + text("llo.", 0), "protocol_violation", "Hé"
    ),
    "a block that is left out": Case(
        START + text("Hé", 0) + stop(0) + text("llo.", 2) + stop(2) + end() + SPENT, "protocol_violation", "Héllo."
    ),
    "a block that begins a second time": Case(START + CALL + CALL, "protocol_violation", invalid_inputs=("",)),
    "a block without a number": Case(START + frame("contentBlockDelta", delta={"text": "Hé"}), "protocol_violation"),
    "a block whose number is none": Case(
        START + frame("contentBlockDelta", contentBlockIndex=True, delta={"text": "Hé"}), "protocol_violation"
    ),
    "a delta that says nothing": Case(
        HELLO + frame("contentBlockDelta", contentBlockIndex=0, delta={}), "stream_incomplete", "Héllo."
    ),
    "a call without a name": Case(
        START + frame("contentBlockStart", contentBlockIndex=0, start={"toolUse": {"toolUseId": "tooluse_1"}}),
        "protocol_violation",
    ),
    "the end while a text is open": Case(HELLO + end() + SPENT, "protocol_violation", "Héllo."),
    "the end while a call is open": Case(
        START + CALL + fragment('{"target":"all"') + end("tool_use") + SPENT,
        "protocol_violation",
        invalid_inputs=('{"target":"all"',),
    ),
    "a call that ran there, of which the input is no object": Case(
        START + SEARCH + fragment("[1]") + stop() + end() + SPENT, "protocol_violation"
    ),
    # --- calls that cannot be made
    "input that is cut": Case(
        START + CALL + fragment('{"target":"all","dry_') + stop() + end("tool_use") + SPENT,
        "tool_input_invalid",
        invalid_inputs=('{"target":"all","dry_',),
        fault={"retryable": True},
    ),
    "input that is no object": Case(
        START + CALL + fragment("[1]") + stop() + end("tool_use") + SPENT, "tool_input_invalid", invalid_inputs=("[1]",)
    ),
    "input with two equal keys": Case(
        START + CALL + fragment('{"a":1,"a":2}') + stop() + end("tool_use") + SPENT,
        "tool_input_invalid",
        invalid_inputs=('{"a":1,"a":2}',),
    ),
    "input with an invalid number": Case(
        START + CALL + fragment('{"a":NaN}') + stop() + end("tool_use") + SPENT,
        "tool_input_invalid",
        invalid_inputs=('{"a":NaN}',),
    ),
    "input after the input": Case(
        START + CALL + fragment("{}") + fragment("{}") + stop() + end("tool_use") + SPENT,
        "tool_input_invalid",
        invalid_inputs=("{}{}",),
    ),
    "the limit in the input": Case(
        START + CALL + fragment('{"target":"all","dry_') + stop() + end("max_tokens") + SPENT,
        "tool_input_truncated",
        invalid_inputs=('{"target":"all","dry_',),
    ),
    "the limit before the input": Case(
        START + CALL + stop() + end("max_tokens") + SPENT, "tool_input_truncated", invalid_inputs=("",)
    ),
    "cut in the input": Case(
        START + CALL + fragment('{"target":"all"}'), "stream_incomplete", invalid_inputs=('{"target":"all"}',)
    ),
    # --- after the end
    "text after the end": Case(HELLO + stop() + end() + LATE + SPENT, text="Héllo.", raw={"late": LATE_NOTE}),
    "much text after the end": Case(
        HELLO + stop() + end() + LATE + stop(1) + LONG + end() + START + SPENT, text="Héllo.", raw={"late": ANY}
    ),
    "text after the end, and it ends there": Case(
        HELLO + stop() + end() + LATE, text="Héllo.", raw={"late": LATE_NOTE}
    ),
    "text after everything": Case(WHOLE + LATE + stop(1), text="Héllo.", warnings=1),
    "a failure after everything": Case(
        WHOLE + exception_frame("throttlingException", message="Slow down."), text="Héllo."
    ),
    "a page after everything": Case(WHOLE + PAGE, text="Héllo."),
    # --- no content
    "an end without a word": Case(START + end() + SPENT, "empty_response", fault={"retryable": True}),
    "an empty text": Case(START + text("") + stop() + end() + SPENT, "empty_response"),
    # --- as recorders keep it
    "lines": case_of_decoded_frames(b"".join(LINES), text="Héllo."),
    "lines that end with CRLF": case_of_decoded_frames(b"".join(LINES).replace(b"\n", b"\r\n"), text="Héllo."),
    "lines with empty ones between them": case_of_decoded_frames(b"\n" + b"\n\n".join(LINES), text="Héllo."),
    "lines after a byte order mark": case_of_decoded_frames(b"\xef\xbb\xbf" + b"".join(LINES), text="Héllo."),
    "the last line without its end": case_of_decoded_frames(b"".join(LINES)[:-1], text="Héllo."),
    "cut in the first line": case_of_decoded_frames(LINES[0][:30], "stream_incomplete", tail=to_text(LINES[0][:30])),
    "cut in a line": case_of_decoded_frames(
        b"".join(LINES[:3]) + LINES[3][:30], "stream_incomplete", "Héllo.", tail=to_text(LINES[3][:30])
    ),
    "cut in a character of a line": case_of_decoded_frames(
        LINES[0] + LINES[1][: LINES[1].index("é".encode()) + 1],
        "stream_incomplete",
        tail=to_text(LINES[1][: LINES[1].index("é".encode()) + 1]),
    ),
    "a line that is no frame": case_of_decoded_frames(
        b"".join(LINES[:3]) + b'{"a":1}\n' + LINES[3], "bad_event", "Héllo."
    ),
    "a line that is no JSON": case_of_decoded_frames(b"".join(LINES[:3]) + b"{]\n" + LINES[3], "bad_event", "Héllo."),
    "a line that is nested too deep": case_of_decoded_frames(
        b"".join(LINES[:3]) + b"[" * 5_000 + b"\n", "bad_event", "Héllo."
    ),
    "a page of lines": case_of_decoded_frames(b"<html>\n<p>502\n", "bad_content_type", head="<html>\n<p>502\n"),
    "no lines": case_of_decoded_frames(b"", "empty_response"),
}
# Cut at any byte, this stream has a fault.
CUT = HELLO + stop()
