"""Tables of wire values and their canonical equivalents: stop reasons, media formats, service tiers, tool choices.

A value without a table entry is not converted: it stays in the residue or is reported as a loss.
"""

from __future__ import annotations

from typing import Final

from dragoman.exchange import StopReason

NAME: Final = "bedrock_converse"
STOP_REASONS: Final = {
    "end_turn": StopReason.END_TURN,
    "max_tokens": StopReason.MAX_TOKENS,
    "stop_sequence": StopReason.STOP_SEQUENCE,
    "tool_use": StopReason.TOOL_USE,
    "content_filtered": StopReason.REFUSAL,
    "guardrail_intervened": StopReason.REFUSAL,
    "model_context_window_exceeded": StopReason.MAX_TOKENS,
}
STOP_REASON_NAMES: Final = {reason: word for word, reason in reversed(STOP_REASONS.items())}
MALFORMED: Final = {"malformed_model_output": "malformed_output", "malformed_tool_use": "tool_input_invalid"}
# Faults of replies with a normal stop reason, and the reason that they are written with.
UNUSABLE: Final = {"tool_input_truncated": "max_tokens", "tool_input_invalid": "tool_use", "empty_response": "end_turn"}
CHOICES: Final = {"auto": "auto", "any": "required", "tool": "tool"}
CHOICE_NAMES: Final = {ours: theirs for theirs, ours in CHOICES.items()}
TIERS: Final = ("priority", "default", "flex", "reserved")

# The first format of a media type is the one that is written.
FORMATS: Final[dict[str, dict[str, str]]] = {
    "image": {"png": "image/png", "jpeg": "image/jpeg", "gif": "image/gif", "webp": "image/webp"},
    "document": {
        "pdf": "application/pdf",
        "csv": "text/csv",
        "doc": "application/msword",
        "docx": "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "xls": "application/vnd.ms-excel",
        "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "html": "text/html",
        "txt": "text/plain",
        "md": "text/markdown",
    },
    "video": {
        "mkv": "video/x-matroska",
        "mov": "video/quicktime",
        "mp4": "video/mp4",
        "webm": "video/webm",
        "flv": "video/x-flv",
        "mpeg": "video/mpeg",
        "mpg": "video/mpeg",
        "wmv": "video/x-ms-wmv",
        "three_gp": "video/3gpp",
    },
    "audio": {
        "mp3": "audio/mpeg",
        "opus": "audio/opus",
        "wav": "audio/wav",
        "aac": "audio/aac",
        "flac": "audio/flac",
        "mp4": "audio/mp4",
        "ogg": "audio/ogg",
        "mka": "audio/x-matroska",
        "mkv": "audio/x-matroska",
        "x-aac": "audio/x-aac",
        "m4a": "audio/x-m4a",
        "mpeg": "audio/mpeg",
        "mpga": "audio/mpeg",
        "pcm": "audio/pcm",
        "webm": "audio/webm",
    },
}
FORMAT_NAMES: Final = {
    kind: {media_type: word for word, media_type in reversed(formats.items())} for kind, formats in FORMATS.items()
}
FORMAT_ALIASES: Final = {"image/jpg": "jpeg", "audio/mp3": "mp3", "audio/x-wav": "wav", "audio/wave": "wav"}
