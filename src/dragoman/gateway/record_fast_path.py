"""Fast path of the recorder: one question and its answer, both plain texts, as the rows of a new session.

    question = templates.find(plain)                    of a request with known options; ``None``: the general path
    make_session(services, exchange, question)          its rows; ``None``: the general path
    templates.learn(plain, canonical)                   keep what the general path has read

A request without an answer in it, and without a session in its headers, never continues a stored session. Callers
repeat everything but the text: the general path reads a request with new options, and its messages without the text are
the template for further requests with the same options.

``ChatCall`` alone enters it. Invariant: its rows are equal to those of the general path;
``tests/gateway/test_record_fast_path.py`` compares them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dragoman.adapter import message_notes
from dragoman.exchange import Reply, Request
from dragoman.gateway import session_chain
from dragoman.gateway.fast_path import PlainRequest
from dragoman.gateway.recorder import call_notes, client_details, describe_choice, title_from
from dragoman.gateway.request_record import record_request
from dragoman.message import SCHEMA_VERSION, Message, MessageMetadata, Role, TextBlock, TokenUsage, usage_problems
from dragoman.store.gateway_calls import PlainSession
from dragoman.store.message_rows import MAX_INLINE_BYTES, Columns, columns_from
from dragoman.store.operation import to_micros
from dragoman.turn.services import AgentServices
from dragoman.value import SlowPathRequired, encode_fast, unvalidated

if TYPE_CHECKING:
    from dragoman.gateway.chat_call import Exchange

_MAX_TEMPLATES: Final = 256
_COMPLETE: Final = "complete"
_make_metadata: Final = unvalidated(MessageMetadata)
_encode: Final = msgspec.json.Encoder().encode


class _Template(msgspec.Struct, frozen=True):
    """The messages of a request without the text of its question."""

    system: tuple[Columns, ...]
    system_hash: bytes | None
    metadata_json: str  # of the question
    request: dict[str, Any]  # in the metadata of the answer


class PlainQuestion(msgspec.Struct, frozen=True, gc=False):
    """A request that may be recorded on this path."""

    text: str
    template: _Template


class RecordTemplates:
    """The requests of one gateway without their texts, by their options."""

    def __init__(self) -> None:
        self._templates: dict[Any, _Template] = {}

    def find(self, plain: PlainRequest) -> PlainQuestion | None:
        """Return the question of a request; ``None`` if the general path has to read it."""
        template = self._templates.get((plain.dialect, plain.options)) if len(plain.texts) == 1 else None
        return None if template is None else PlainQuestion(plain.texts[0].content, template)

    def learn(self, plain: PlainRequest, canonical: Request) -> None:
        """Keep what the general path has read, if its last message is the text as it is."""
        system, messages = session_chain.split_system(canonical.messages)
        if len(plain.texts) != 1 or len(messages) != 1 or len(system) > 1:
            return
        question, texts = columns_from(messages[0]), [columns_from(message) for message in system]
        expected = f'[{{"type":"text","text":{_encode(plain.texts[0].content).decode()}}}]'
        if question.content_json != expected or any(map(_is_special, messages + system, [question, *texts])):
            return
        request = record_request(canonical)
        if request.parts:
            return
        if len(self._templates) >= _MAX_TEMPLATES:
            self._templates.clear()
        system_hash = session_chain.hash_system(system)
        template = _Template(tuple(texts), system_hash, question.metadata_json, request.fields)
        self._templates[(plain.dialect, plain.options)] = template


def _is_special(message: Message, columns: Columns) -> bool:
    """Whether other rows than its own belong to a message."""
    return (
        columns.status != _COMPLETE
        or columns.unknown_json is not None
        or columns.blobs_json is not None
        or message.metadata.usage is not None
        or message.metadata.user_message_attachments is not None
        or not all(isinstance(block, TextBlock) for block in message.content)
    )


def make_session(services: AgentServices, exchange: Exchange, question: PlainQuestion) -> PlainSession | None:
    """Return the rows of a call; ``None`` if the general path has to record it."""
    text = _answer_text(exchange.reply)
    counts = exchange.reply.usage
    if text is None or counts is None or counts.estimated:
        return None
    metadata = _answer_metadata(services, exchange, counts, question.template.request)
    try:
        answer, metadata_json = encode_fast(exchange.reply.content), encode_fast(metadata).decode()
    except (SlowPathRequired, UnicodeEncodeError):
        return None
    if len(answer) > MAX_INLINE_BYTES or metadata.usage is None or usage_problems(metadata.usage):
        return None
    store, template, caller = services.store, question.template, exchange.client_request.request.caller
    now = store.clock()
    at = to_micros(now)
    session_id, *system_ids, question_id, answer_id = store.new_ids(len(template.system) + 3)
    asked = f'[{{"type":"text","text":{_encode(question.text).decode()}}}]'
    rows = [
        *[_copy_columns(row, id_, at) for row, id_ in zip(template.system, system_ids, strict=True)],
        Columns(question_id, "user", asked, template.metadata_json, at, SCHEMA_VERSION, _COMPLETE),
        Columns(answer_id, "assistant", answer.decode(), metadata_json, at, SCHEMA_VERSION, _COMPLETE),
    ]
    seed = session_chain.seed_of(caller)
    hash_ = session_chain.extend_with_text(seed, Role.USER, question.text)
    request = exchange.client_request
    return PlainSession(
        id=f"sess_{session_id}",
        title=title_from(((question.text,),)),
        user_id=caller.user_id,
        team_id=caller.team_id,
        metadata_json=_session_metadata(request.reply_dialect, request.request.headers.get("user-agent")),
        created_at=now,
        messages=tuple(rows),
        answer=metadata,
        hash=session_chain.extend_with_text(hash_, Role.ASSISTANT, text),
        system_hash=template.system_hash,
    )


def _answer_text(reply: Reply) -> str | None:
    """Return the text of a reply that has nothing else."""
    if reply.fault is not None or reply.alternatives or len(reply.content) != 1:
        return None
    (block,) = reply.content
    return block.text if type(block) is TextBlock else None


def _answer_metadata(
    services: AgentServices, exchange: Exchange, counts: TokenUsage, request: dict[str, Any]
) -> MessageMetadata:
    target, caller = exchange.target, exchange.client_request.request.caller
    return _make_metadata(
        model=target.model.id,
        provider=target.provider.key,
        routing=describe_choice(exchange.reason, exchange.client_request.model, target.model.id),
        usage=services.price_usage(target.model, counts, exchange.started_at, exchange.latency_ms),
        provider_raw=message_notes(exchange.reply),
        user_id=caller.user_id,
        team_id=caller.team_id,
        extra=call_notes(request, exchange.losses),
    )


def _copy_columns(row: Columns, message_id: str, at: int) -> Columns:
    return Columns(message_id, row.role, row.content_json, row.metadata_json, at, row.schema_version, row.status)


@functools.lru_cache(maxsize=256)
def _session_metadata(dialect: str, agent: str | None) -> str:
    return _encode({"gateway": client_details(dialect, agent)}).decode()
