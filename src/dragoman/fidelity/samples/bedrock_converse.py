"""Requests with fields of Bedrock Converse only. Bytes are base64, as the API's own JSON has them."""

from __future__ import annotations

from typing import Any, Final

_USER: Final = {"role": "user", "content": [{"text": "Hello."}]}
_MODEL: Final = "anthropic.claude-sonnet-4-5-20250929-v1:0"


def _request(*blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    assistant = [{"role": "assistant", "content": [*blocks, {"text": "Hi."}]}] if blocks else []
    asked = [{"role": "user", "content": [{"text": "Go on."}]}] if blocks else []
    return {"messages": [_USER, *assistant, *asked], **more}


def _request_with_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Return a request with fields of the model family."""
    return _request(modelId=_MODEL, additionalModelRequestFields=fields)


_THOUGHT: Final = {"reasoningContent": {"reasoningText": {"text": "A greeting.", "signature": "EqQBCkYIAxgC"}}}
_S3_VIDEO: Final = {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://bucket/a.mp4"}}}}
_S3_IMAGE: Final = {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://bucket/a.png"}}}}
_S3_DOCUMENT: Final = {
    "document": {"format": "pdf", "name": "report", "source": {"s3Location": {"uri": "s3://bucket/a.pdf"}}}
}

WIRES: Final[dict[str, Any]] = {
    "thinking": _request(_THOUGHT),
    "signature of thinking": _request(_THOUGHT),
    "redacted_thinking": _request({"reasoningContent": {"redactedContent": "EmwKAhgBEgy3"}}),
    "opaque": {
        "messages": [{"role": "user", "content": [{"text": "Hello."}, {"guardContent": {"text": {"text": "Hello."}}}]}]
    },
    "opaque tool": _request(toolConfig={"tools": [{"systemTool": {"name": "nova_grounding"}}]}),
    "image, url": {"messages": [{"role": "user", "content": [{"text": "Look."}, _S3_IMAGE]}]},
    "document, url": {"messages": [{"role": "user", "content": [{"text": "Look."}, _S3_DOCUMENT]}]},
    "video, url": {"messages": [{"role": "user", "content": [{"text": "Look."}, _S3_VIDEO]}]},
    "model": _request(modelId=_MODEL),
    "top_k": _request_with_fields({"top_k": 40}),
    "reasoning on": _request_with_fields({"thinking": {"type": "adaptive"}}),
    "reasoning off": _request_with_fields({"thinking": {"type": "disabled"}}),
    "reasoning effort": _request_with_fields({"output_config": {"effort": "high"}}),
    "reasoning budget": _request_with_fields({"thinking": {"type": "enabled", "budget_tokens": 2048}}),
    "effort and budget": _request_with_fields(
        {"thinking": {"type": "enabled", "budget_tokens": 2048}, "output_config": {"effort": "high"}}
    ),
    "web search": _request(toolConfig={"tools": [{"systemTool": {"name": "nova_grounding"}}]}),
    "code execution": _request(toolConfig={"tools": [{"systemTool": {"name": "nova_code_interpreter"}}]}),
    "in its own words": _request(guardrailConfig={"guardrailIdentifier": "gr-1", "guardrailVersion": "1"}),
}
