"""Model families of InvokeModel: which one a body, an event or a model belongs to, and its dialect.

family_of_request(body), family_of_reply(body), family_of_event(wire), family_of_model(name), family_from_notes(raw)
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from dragoman.dialects import anthropic, bedrock_converse, cohere_v1, openai_chat
from dragoman.dialects.bedrock_invoke.text_families import TEXT_FAMILIES, TextFamily
from dragoman.exchange import Loss, Reply, Request
from dragoman.message import ProviderRaw
from dragoman.wire.derivation import Arrangement, DerivedDialect, Wire
from dragoman.wire.prompt import drop_calls, to_prompt
from dragoman.wire.residue import get_notes

NAME: Final = "bedrock_invoke"
_VERSION: Final = "bedrock-2023-05-31"
CONVERSE_EVENTS: Final = (
    "messageStart",
    "contentBlockStart",
    "contentBlockDelta",
    "contentBlockStop",
    "messageStop",
    "metadata",
)


def _same(wire: Wire) -> Wire:
    return wire


def _claude_from_base(base: Wire) -> Wire:
    """Return a request of Messages without the fields that are part of the URL."""
    body = {key: value for key, value in base.items() if key not in ("model", "stream")}
    return {"anthropic_version": _VERSION, **body}


def _chat_from_base(base: Wire) -> Wire:
    return {key: value for key, value in base.items() if key not in ("model", "stream")}


def _to_prompt(request: Request, losses: list[Loss]) -> Request:
    return to_prompt(request, NAME, losses, keeps_system=False)


def _drop_calls(reply: Reply, losses: list[Loss]) -> Reply:
    return drop_calls(reply, NAME, losses)


def _make_text_family(family: TextFamily) -> DerivedDialect:
    request, reply = family.arrange_request(), family.arrange_reply()
    hooks: dict[str, Any] = {"prepare": _to_prompt, "prepare_reply": _drop_calls}
    return DerivedDialect(NAME, openai_chat, request, reply, family=family.name, **hooks)


_SAME: Final = Arrangement(_same, _same)
_chat: Final = partial(DerivedDialect, NAME)
_COHERE_CHAT: Final = "cohere_chat"
FAMILIES: Final[dict[str, DerivedDialect]] = {
    "claude": _chat(anthropic, Arrangement(_same, _claude_from_base), _SAME, family="claude"),
    "nova": _chat(bedrock_converse, _SAME, _SAME, family="nova"),
    "openai": _chat(openai_chat, Arrangement(_same, _chat_from_base), _SAME, family="openai"),
    _COHERE_CHAT: _chat(cohere_v1, Arrangement(_same, _chat_from_base), _SAME, family=_COHERE_CHAT),
    **{family.name: _make_text_family(family) for family in TEXT_FAMILIES},
}
_MODELS: Final = {  # a part of the name of a model, and its family
    "amazon.nova": "nova",
    "amazon.titan": "titan",
    "anthropic.claude-v2": "claude_text",
    "anthropic.claude-instant": "claude_text",
    "cohere.command-r": _COHERE_CHAT,
    "cohere.command": "command",
    "ai21.j2": "jurassic",
    "meta.llama": "llama",
    "mistral.mistral-7b": "mistral",
    "mistral.mixtral": "mistral",
    "ai21.": "openai",
    "mistral.": "openai",
    "deepseek.": "openai",
    "openai.": "openai",
    "qwen.": "openai",
    "writer.": "openai",
}
_REQUEST_KEYS: Final = (  # keys of a request with a prompt, and its family
    (("inputText",), "titan"),
    (("max_gen_len",), "llama"),
    (("max_tokens_to_sample",), "claude_text"),
    (("maxTokens", "countPenalty", "numResults"), "jurassic"),
    (("p", "k", "num_generations", "stop_sequences", "return_likelihoods"), "command"),
    (("top_k",), "mistral"),
)
_REPLY_KEYS: Final = {
    "results": "titan",
    "outputText": "titan",
    "generation": "llama",
    "completion": "claude_text",
    "generations": "command",
    "completions": "jurassic",
    "outputs": "mistral",
    "output": "nova",
    "event_type": _COHERE_CHAT,
    "response_id": _COHERE_CHAT,
    "chat_history": _COHERE_CHAT,
    "is_finished": "command",
}


def family_of_request(body: Wire) -> DerivedDialect:
    """Return the family of a request."""
    if "anthropic_version" in body and ("messages" in body or "prompt" not in body):
        return FAMILIES["claude"]
    if "messages" in body:
        return FAMILIES["nova" if _has_converse_messages(body) else "openai"]
    if "message" in body:
        return FAMILIES[_COHERE_CHAT]
    names = (name for keys, name in _REQUEST_KEYS if any(key in body for key in keys))
    return FAMILIES[next(names, "completion")]


def _has_converse_messages(body: Wire) -> bool:
    """Return whether the parts of a message have no type, as in Converse."""
    if "inferenceConfig" in body or "schemaVersion" in body or "toolConfig" in body:
        return True
    messages = body["messages"] if isinstance(body["messages"], list) else []
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return bool(parts) and all(isinstance(part, dict) and "type" not in part for part in parts)


def family_of_reply(body: Wire) -> DerivedDialect:
    """Return the family of a reply or of an event of a stream."""
    if any(key in body for key in CONVERSE_EVENTS):
        return FAMILIES["nova"]
    if isinstance(body.get("choices"), list):
        is_text = any(isinstance(choice, dict) and "text" in choice for choice in body["choices"])
        return FAMILIES["completion" if is_text else "openai"]
    names = (name for key, name in _REPLY_KEYS.items() if key in body)
    return FAMILIES[next(names, "claude")]


def family_of_model(model: str | None) -> DerivedDialect:
    """Return the family of a model; Claude for any other name."""
    names = (family for part, family in _MODELS.items() if part in (model or ""))
    return FAMILIES[next(names, "claude")]


def family_from_notes(raw: ProviderRaw | None) -> DerivedDialect | None:
    """Return the family that the notes of a request or a reply name."""
    name: Any = get_notes(raw, NAME).get("family")
    return FAMILIES.get(name)
