"""Fast path of translation: plain texts between Chat Completions and the Messages API, without canonical values.

    plain = read_plain(client_request)                        the texts of a request; ``None``: the general path
    templates.write(plain, target, stream=…)                  the provider's request; ``None``: the general path
    templates.learn(plain, target, translated, stream=…)      keep what the general path has written
    translate_reply(body, source, dialect, make_identity)     the reply for the caller; ``None``: the general path
    is_plain_reply(body, dialect)                             whether it can be passed on without being read

A request is plain if it is short, has no options but those of ``_NAMES``, and texts of the user and of the model in
turns, from the user to the user. Callers repeat everything but the texts. The general path translates a request with
new options; its result without the texts is the template for further requests with the same options.

``chat_call`` alone enters it. Invariant: its results are equal to those of the general path, byte for byte;
``tests/gateway/test_translation_fast_path.py`` compares them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec

from dragoman.dialects.anthropic import reply as anthropic_reply
from dragoman.dialects.anthropic import usage as anthropic_usage
from dragoman.dialects.openai_chat import reply as openai_reply
from dragoman.dialects.openai_chat import usage as openai_usage
from dragoman.exchange import Loss, Written
from dragoman.gateway.client_request import ClientRequest
from dragoman.gateway.upstream import Target
from dragoman.jsontext import DECODE_ERRORS
from dragoman.message import TokenUsage
from dragoman.value import unvalidated
from dragoman.wire.counts import MAX_CALL_TOKENS

_NAMES: Final = (
    "model",
    "messages",
    "system",
    "max_tokens",
    "max_completion_tokens",
    "temperature",
    "top_p",
    "top_k",
    "stop",
    "stop_sequences",
    "stream",
    "stream_options",
)
_FIELDS: Final = {name: f'"{name}"'.encode() for name in _NAMES}  # as they are in a body
_MAX_BYTES: Final = 4_000  # of a request; a longer one may get marks for the prompt cache
_MAX_TEMPLATES: Final = 256
_ESCAPED_LETTERS: Final = (b"\\u006", b"\\u007", b"\\u005")  # a name may be written twice with these
ANTHROPIC: Final = "anthropic"
OPENAI: Final = "openai_chat"
_TURNS: Final = ("user", "assistant")


class _Message(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    role: Literal["system", "user", "assistant"]
    content: str


_decode_messages: Final = msgspec.json.Decoder(list[_Message]).decode
_usage: Final = unvalidated(TokenUsage)
Key = tuple[Any, ...]
Identity = Callable[[], dict[str, Any]]  # makes the fields that identify a reply


class PlainRequest(msgspec.Struct, frozen=True, gc=False):
    """The texts of a request, and everything else as the key of its template."""

    dialect: str
    texts: list[_Message]
    options: Key


# --- requests --------------------------------------------------------------------------------------------------------


def read_plain(client_request: ClientRequest) -> PlainRequest | None:
    """Return a plain request; ``None`` if the general path has to translate it."""
    fields, body, dialect = client_request.fields, client_request.request.body, client_request.dialect
    if dialect not in (ANTHROPIC, OPENAI) or dialect != client_request.reply_dialect or len(body) > _MAX_BYTES:
        return None
    raw = fields.get("messages")
    if raw is None or (b"\\u00" in body and any(mark in body for mark in _ESCAPED_LETTERS)):
        return None
    try:
        texts = _decode_messages(raw)
    except DECODE_ERRORS:
        return None
    written = bytes(raw)
    if not written.count(b'"role"') == written.count(b'"content"') == len(texts):  # a name may occur twice
        return None
    at = body.find(b"[", body.find(_FIELDS["messages"]))
    before, behind = body[:at], body[at + len(written) :]
    if not body.startswith(written, at) or not _are_options(before, behind, tuple(fields)):
        return None
    system = texts.pop(0).content if dialect == OPENAI and texts and texts[0].role == "system" else ""
    if not _are_turns(texts) or (system and not _is_plain_text(system)):
        return None
    return PlainRequest(dialect, texts, (system, before, behind))


@functools.lru_cache(maxsize=_MAX_TEMPLATES)
def _are_options(before: bytes, behind: bytes, names: tuple[str, ...]) -> bool:
    """Whether a body has only known options beside its messages, and none of them twice, which readers reject."""
    body, has_name = before + behind, before.rstrip().removesuffix(b":").rstrip().endswith(_FIELDS["messages"])
    return has_name and all(name in _FIELDS and body.count(_FIELDS[name]) == 1 for name in names)


def _are_turns(texts: Sequence[_Message]) -> bool:
    for at, message in enumerate(texts):
        if message.role != _TURNS[at % 2] or not _is_plain_text(message.content):
            return False
    return len(texts) % 2 == 1


def _is_plain_text(text: str) -> bool:
    return bool(text) and text.strip() == text


class _Template(msgspec.Struct, frozen=True):
    target: Target
    wire: dict[str, Any]
    prefix: list[Any]  # messages before the texts: the system prompt
    losses: tuple[Loss, ...]


class RequestTemplates:
    """The translated requests of one gateway without their texts."""

    def __init__(self) -> None:
        self._templates: dict[Key, _Template] = {}

    def write(self, plain: PlainRequest, target: Target, *, stream: bool) -> Written | None:
        """Return the request for a provider; ``None`` if the general path has to write it."""
        template = self._templates.get(_key(plain, target, stream=stream))
        if template is None or template.target.endpoint is not target.endpoint:
            return None
        messages = [*template.prefix, *_write_texts(plain.texts, target.provider.dialect)]
        return Written({**template.wire, "messages": messages}, template.losses)

    def learn(self, plain: PlainRequest, target: Target, written: Written, *, stream: bool) -> None:
        """Keep the request that the general path has written, if its messages are the texts as they are."""
        dialect, count = target.provider.dialect, len(plain.texts)
        if dialect not in (ANTHROPIC, OPENAI) or any(loss.message_id for loss in written.losses):
            return
        messages = written.wire["messages"]
        if messages[-count:] != _write_texts(plain.texts, dialect):
            return
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        template = _Template(target, written.wire, messages[:-count], written.losses)
        self._templates[_key(plain, target, stream=stream)] = template


def _key(plain: PlainRequest, target: Target, *, stream: bool) -> Key:
    return plain.dialect, target.model.id, stream, plain.options


def _write_texts(texts: Sequence[_Message], dialect: str) -> list[Any]:
    if dialect == OPENAI:
        return [{"role": message.role, "content": message.content} for message in texts]
    return [{"role": message.role, "content": [{"type": "text", "text": message.content}]} for message in texts]


# --- replies ---------------------------------------------------------------------------------------------------------

# A reply with any other field, or with another value of a field, takes the general path.
_Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_CALL_TOKENS)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]
_Zero = Literal[0]


class _Strict(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A wire object without any other field."""


class _InputDetails(_Strict):
    cached_tokens: _Count = 0
    audio_tokens: _Zero = 0


class _OutputDetails(_Strict):
    reasoning_tokens: _Zero = 0
    audio_tokens: _Zero = 0
    accepted_prediction_tokens: _Count = 0
    rejected_prediction_tokens: _Count = 0


class _CompletionUsage(_Strict):
    prompt_tokens: _Count
    completion_tokens: _Count
    total_tokens: _Count
    prompt_tokens_details: _InputDetails = msgspec.field(default_factory=_InputDetails)
    completion_tokens_details: _OutputDetails = msgspec.field(default_factory=_OutputDetails)


class _Answer(_Strict):
    role: Literal["assistant"]
    content: _Name
    refusal: None = None
    annotations: Annotated[list[Any], msgspec.Meta(max_length=0)] = []


class _Choice(_Strict):
    index: _Zero
    message: _Answer
    finish_reason: Literal["stop"]
    logprobs: None


class _Completion(_Strict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: _Name
    choices: Annotated[list[_Choice], msgspec.Meta(min_length=1, max_length=1)]
    usage: _CompletionUsage
    service_tier: str | None = None
    system_fingerprint: str | None = None


class _CacheCreation(_Strict):
    ephemeral_5m_input_tokens: _Count = 0
    ephemeral_1h_input_tokens: _Zero = 0


class _ClaudeUsage(_Strict):
    input_tokens: _Count
    output_tokens: _Count
    cache_read_input_tokens: _Count = 0
    cache_creation_input_tokens: _Count = 0
    cache_creation: _CacheCreation | None = None
    service_tier: str | None = None


class _ClaudeText(_Strict):
    type: Literal["text"]
    text: _Name


class _ClaudeReply(_Strict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: _Name
    content: Annotated[list[_ClaudeText], msgspec.Meta(min_length=1, max_length=1)]
    stop_reason: Literal["end_turn"]
    stop_sequence: None
    usage: _ClaudeUsage


_decode_completion: Final = msgspec.json.Decoder(_Completion).decode
_decode_claude_reply: Final = msgspec.json.Decoder(_ClaudeReply).decode
_REPLY_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    OPENAI: _decode_completion,
    ANTHROPIC: _decode_claude_reply,
}


def is_plain_reply(body: bytes, dialect: str) -> bool:
    """Whether a provider's response is a reply with one text, for a call of which nothing is recorded."""
    decode = _REPLY_DECODERS.get(dialect)
    try:
        return decode is not None and decode(body) is not None
    except DECODE_ERRORS:
        return False


def translate_reply(body: bytes, source: str, dialect: str, make_identity: Identity) -> Written | None:
    """Return a reply with one text in the caller's dialect; ``None`` if the general path has to translate it."""
    try:
        if (source, dialect) == (OPENAI, ANTHROPIC):
            return _completion_to_claude(_decode_completion(body), make_identity)
        if (source, dialect) == (ANTHROPIC, OPENAI):
            return _claude_to_completion(_decode_claude_reply(body), make_identity)
    except DECODE_ERRORS:
        pass
    return None


def _completion_to_claude(reply: _Completion, make_identity: Identity) -> Written | None:
    usage, text = reply.usage, reply.choices[0].message.content
    cached = usage.prompt_tokens_details.cached_tokens
    if cached > usage.prompt_tokens or text.isspace():
        return None
    counts = _usage(
        input_tokens=usage.prompt_tokens - cached,
        output_tokens=usage.completion_tokens,
        cached_input_tokens=cached,
        service_tier=reply.service_tier,
    )
    wire = {
        "id": "",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": anthropic_usage.write_usage(counts),
        "content": [{"type": "text", "text": text}],
        **make_identity(),
    }
    return Written(wire, _tier_losses(reply.service_tier, ANTHROPIC))


def _claude_to_completion(reply: _ClaudeReply, make_identity: Identity) -> Written | None:
    usage, text = reply.usage, reply.content[0].text
    if text.isspace():
        return None
    counts = _usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cache_read_input_tokens,
        cache_creation_input_tokens=usage.cache_creation_input_tokens,
    )
    wire: dict[str, Any] = {
        "id": "",
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "usage": openai_usage.write_usage(counts),
    }
    if usage.service_tier in _TIERS[OPENAI]:
        wire["service_tier"] = usage.service_tier
    message = {"role": "assistant", "content": text}
    wire["choices"] = [{"index": 0, "logprobs": None, "finish_reason": "stop", "message": message}]
    return Written(wire | make_identity(), _tier_losses(usage.service_tier, OPENAI))


_TIERS: Final = {
    ANTHROPIC: anthropic_reply.DETAILS.service_tiers,
    OPENAI: openai_reply.DETAILS.service_tiers,
}


@functools.lru_cache(maxsize=64)
def _tier_losses(tier: str | None, dialect: str) -> tuple[Loss, ...]:
    if tier is None or tier in _TIERS[dialect]:
        return ()
    return (Loss("", "", "usage.service_tier", dialect, "this API has no such tier"),)
