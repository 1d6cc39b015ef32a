"""Defects of a transcript: each damages one scene and names the violations that a check must report.

A defect receives a scene and returns it damaged, with the expected violations (rule, message, path) and the texts that
repair cannot keep. Defects that break no rule are included: a check must report nothing, and providers must accept the
transcript.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Final

import msgspec

from dragoman.message import (
    ContentBlock,
    DocumentBlock,
    ImageBlock,
    ImageSource,
    InvalidToolUseBlock,
    Message,
    MessageStatus,
    Role,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from tests.fake_providers import text_part, thinking_part
from tests.transcript_defects.valid_transcripts import IMAGE, PNG, Numbers, calls_in, make_answer, make_message

TEXT_DATA: Final = base64.b64encode(b"not an image").decode()
Found = tuple[str, str, str]  # rule, id of the message, path in it


class DamagedScene(msgspec.Struct, frozen=True):
    """A damaged scene, the violations in it, and the texts that need not survive."""

    scene: list[Message]
    found: tuple[Found, ...] = ()
    lost: frozenset[str] = frozenset()


Defect = Callable[[list[Message], Numbers], DamagedScene]
DEFECTS: dict[str, Defect] = {}


def defect(make: Defect) -> Defect:
    DEFECTS[make.__name__] = make
    return make


def at(message: Message, kind: type[ContentBlock], which: int = 0) -> int:
    """Return the index of the block of that type."""
    return [index for index, block in enumerate(message.content) if isinstance(block, kind)][which]


def with_block(message: Message, index: int, block: ContentBlock) -> Message:
    return message.replace(content=(*message.content[:index], block, *message.content[index + 1 :]))


def with_metadata(message: Message, **changes: object) -> Message:
    return message.replace(metadata=message.metadata.replace(**changes))


# --- calls and results -----------------------------------------------------------------------------------------------


@defect
def call_without_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    place = f".content[{at(call_message, ToolUseBlock, 1)}]"
    lost = frozenset(_texts(second))
    return DamagedScene([question, call_message, first, summary], (("call-is-answered", call_message.id, place),), lost)


@defect
def parallel_calls_without_results(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    places = [f".content[{at(call_message, ToolUseBlock, which)}]" for which in (0, 1)]
    found = tuple(("call-is-answered", call_message.id, place) for place in places)
    return DamagedScene([question, call_message, summary], found, frozenset([*_texts(first), *_texts(second)]))


@defect
def result_without_call(scene: list[Message], numbers: Numbers) -> DamagedScene:
    stray = ToolResultBlock("tu_01KE0000000000000000009999", (TextBlock("no call"),))
    message = make_message(numbers, Role.TOOL, stray, parent_tool_use_id=stray.tool_use_id)
    found = (("result-has-call", message.id, ".content[0]"),)
    return DamagedScene([*scene[:4], message, scene[4]], found, frozenset({"no call"}))


@defect
def duplicate_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    (result,) = scene[2].content
    again = make_message(
        numbers,
        Role.TOOL,
        ToolResultBlock(result.tool_use_id, (TextBlock("second result"),)),
        parent_tool_use_id=result.tool_use_id,
    )
    found = (("one-result-per-call", again.id, ".content[0]"),)
    return DamagedScene([*scene[:3], again, *scene[3:]], found, frozenset({"second result"}))


@defect
def result_before_call(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    place = f".content[{at(call_message, ToolUseBlock, 0)}]"
    found = (("result-has-call", first.id, ".content[0]"), ("call-is-answered", call_message.id, place))
    return DamagedScene([question, first, call_message, second, summary], found)


@defect
def question_between_results(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    between = make_message(numbers, Role.USER, TextBlock("Are you there?"))
    place = f".content[{at(call_message, ToolUseBlock, 1)}]"
    return DamagedScene(
        [question, call_message, first, between, second, summary], (("call-is-answered", call_message.id, place),)
    )


@defect
def foreign_call_id(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    index = at(call_message, ToolUseBlock)
    foreign = "functions.read_file:0"
    call_message = with_block(call_message, index, call_message.content[index].replace(id=foreign))
    (result,) = first.content
    first = with_metadata(first.replace(content=(result.replace(tool_use_id=foreign),)), parent_tool_use_id=foreign)
    return DamagedScene(
        [question, call_message, first, second, summary],
        (("tool-id-is-ours", call_message.id, f".content[{index}].id"),),
    )


@defect
def duplicate_call_id(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    name, index = calls_in(call_message)[0].id, at(call_message, ToolUseBlock, 1)
    call_message = with_block(call_message, index, call_message.content[index].replace(id=name))
    (result,) = second.content
    second = with_metadata(second.replace(content=(result.replace(tool_use_id=name),)), parent_tool_use_id=name)
    found = (
        ("call-id-once", call_message.id, f".content[{index}].id"),
        ("one-result-per-call", second.id, ".content[0]"),
    )
    return DamagedScene([question, call_message, first, second, summary], found)


@defect
def result_without_parent(scene: list[Message], numbers: Numbers) -> DamagedScene:
    odd = with_metadata(scene[2], parent_tool_use_id=None)
    found = (("tool-names-parent", odd.id, ".metadata.parent_tool_use_id"),)
    return DamagedScene([*scene[:2], odd, *scene[3:]], found)


@defect
def two_results_in_one_message(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    both = first.replace(content=(*first.content, *second.content))
    found = (
        ("tool-content", both.id, ".content"),
        ("tool-names-parent", both.id, ".content[1].tool_use_id"),
    )
    return DamagedScene([question, call_message, both, summary], found)


@defect
def bare_text_as_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    (result,) = first.content
    bare = first.replace(content=result.content)
    place = f".content[{at(call_message, ToolUseBlock)}]"
    found = (("tool-content", bare.id, ".content[0]"), ("call-is-answered", call_message.id, place))
    return DamagedScene([question, call_message, bare, second, summary], found)


@defect
def call_inside_a_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    (result,) = scene[2].content
    inner = ToolUseBlock("tu_01KE0000000000000000008888", "read_file", {"path": "x"})
    odd = scene[2].replace(content=(result.replace(content=(*result.content, inner)),))
    return DamagedScene([*scene[:2], odd, *scene[3:]], (("result-content", odd.id, ".content[0].content[1]"),))


# --- inputs ----------------------------------------------------------------------------------------------------------


@defect
def invalid_input_without_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    index = at(call_message, ToolUseBlock, 1)
    whole = call_message.content[index]
    cut = InvalidToolUseBlock(whole.id, whole.name, '{"deep": tr', "cut off", whole.provider_raw)
    call_message = with_block(call_message, index, cut)
    found = (("call-is-answered", call_message.id, f".content[{index}]"),)
    return DamagedScene([question, call_message, first, summary], found, frozenset(_texts(second)))


@defect
def invalid_input_with_error_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    index = at(call_message, ToolUseBlock, 1)
    whole = call_message.content[index]
    cut = InvalidToolUseBlock(whole.id, whole.name, '{"deep": tr', "cut off", whole.provider_raw)
    (result,) = second.content
    second = second.replace(content=(result.replace(is_error=True),))
    return DamagedScene([question, with_block(call_message, index, cut), first, second, summary])


@defect
def input_outside_schema(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    index = at(call_message, ToolUseBlock)
    call_message = with_block(call_message, index, call_message.content[index].replace(input={}))
    return DamagedScene(
        [question, call_message, *rest], (("tool-input-fits", call_message.id, f".content[{index}].input"),)
    )


# --- empty, blank, cut -----------------------------------------------------------------------------------------------


@defect
def empty_question(scene: list[Message], numbers: Numbers) -> DamagedScene:
    empty = make_message(numbers, Role.USER)
    return DamagedScene([scene[0], empty, *scene[1:]], (("content-not-empty", empty.id, ".content"),))


@defect
def empty_answer(scene: list[Message], numbers: Numbers) -> DamagedScene:
    empty = scene[4].replace(id=numbers.next()[0], content=())
    return DamagedScene([*scene, empty], (("content-not-empty", empty.id, ".content"),))


@defect
def blank_question(scene: list[Message], numbers: Numbers) -> DamagedScene:
    blank = make_message(numbers, Role.USER, TextBlock(" \n"))
    return DamagedScene([scene[0], blank, *scene[1:]], (("text-says-something", blank.id, ".content[0]"),))


@defect
def blank_text_before_call(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    index = at(call_message, TextBlock)
    lost = frozenset({call_message.content[index].text})
    call_message = with_block(call_message, index, TextBlock("\n\n"))
    found = (("text-says-something", call_message.id, f".content[{index}]"),)
    return DamagedScene([question, call_message, *rest], found, lost)


@defect
def blank_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    (result,) = scene[2].content
    lost = frozenset(_texts(scene[2]))
    blank = scene[2].replace(content=(result.replace(content=(TextBlock(""),), is_error=True),))
    found = (("text-says-something", blank.id, ".content[0].content[0]"),)
    return DamagedScene([*scene[:2], blank, *scene[3:]], found, lost)


@defect
def result_without_content(scene: list[Message], numbers: Numbers) -> DamagedScene:
    (result,) = scene[2].content
    empty_result = scene[2].replace(content=(result.replace(content=()),))
    return DamagedScene([*scene[:2], empty_result, *scene[3:]], (), frozenset(_texts(scene[2])))


@defect
def error_without_content(scene: list[Message], numbers: Numbers) -> DamagedScene:
    (result,) = scene[2].content
    empty_result = scene[2].replace(content=(result.replace(content=(), is_error=True),))
    return DamagedScene([*scene[:2], empty_result, *scene[3:]], (), frozenset(_texts(scene[2])))


@defect
def partial_answer_after_crash(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    partial = with_metadata(call_message, status=MessageStatus.PARTIAL, usage=None, routing=None)
    lost = frozenset([*_texts(first), *_texts(second)])
    return DamagedScene([question, partial, summary], (("partial-is-last", partial.id, ".metadata.status"),), lost)


@defect
def partial_thinking_after_crash(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    partial = with_metadata(call_message, status=MessageStatus.PARTIAL, usage=None, routing=None)
    partial = partial.replace(id=numbers.next()[0], content=partial.content[: at(partial, ThinkingBlock) + 1])
    return DamagedScene(
        [question, partial, call_message, *rest], (("partial-is-last", partial.id, ".metadata.status"),)
    )


@defect
def empty_cancelled_answer(scene: list[Message], numbers: Numbers) -> DamagedScene:
    empty = with_metadata(scene[4], status=MessageStatus.CANCELLED, usage=None).replace(
        id=numbers.next()[0], content=()
    )
    return DamagedScene([*scene, empty])


@defect
def cancellation_during_thinking(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    partial = with_metadata(call_message, status=MessageStatus.CANCELLED, usage=None)
    partial = partial.replace(id=numbers.next()[0], content=partial.content[: at(partial, ThinkingBlock) + 1])
    return DamagedScene([question, partial, call_message, *rest])


@defect
def error_with_open_calls(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    failed = with_metadata(call_message, status=MessageStatus.ERROR, usage=None)
    places = [f".content[{at(failed, ToolUseBlock, which)}]" for which in (0, 1)]
    found = tuple(("call-is-answered", failed.id, place) for place in places)
    return DamagedScene([question, failed, summary], found, frozenset([*_texts(first), *_texts(second)]))


# --- roles and sessions ----------------------------------------------------------------------------------------------


@defect
def call_by_user(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question = scene[0].replace(content=(*scene[0].content, ToolUseBlock("tu_01KE0000000000000000007777", "x", {})))
    return DamagedScene([question, *scene[1:]], (("user-content", question.id, ".content[2]"),))


@defect
def result_by_user(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, first, second, summary = scene
    odd = make_message(numbers, Role.USER, *first.content)
    place = f".content[{at(call_message, ToolUseBlock)}]"
    found = (("user-content", odd.id, ".content[0]"), ("call-is-answered", call_message.id, place))
    return DamagedScene([question, call_message, second, odd, summary], found)


@defect
def document_by_assistant(scene: list[Message], numbers: Numbers) -> DamagedScene:
    summary = scene[4].replace(content=(*scene[4].content, DocumentBlock(IMAGE.source, "application/pdf")))
    return DamagedScene(
        [*scene[:4], summary], (("assistant-content", summary.id, f".content[{len(summary.content) - 1}]"),)
    )


@defect
def image_in_system_prompt(scene: list[Message], numbers: Numbers) -> DamagedScene:
    prompt = make_message(numbers, Role.SYSTEM, TextBlock("Be kind."), IMAGE)
    return DamagedScene([prompt, *scene], (("system-content", prompt.id, ".content[1]"),))


@defect
def system_prompts_in_the_middle(scene: list[Message], numbers: Numbers) -> DamagedScene:
    prompts = [make_message(numbers, Role.SYSTEM, TextBlock(text)) for text in ("Be kind.", "Be quick.")]
    return DamagedScene([*scene[:4], *prompts, scene[4]])


@defect
def answer_without_question(scene: list[Message], numbers: Numbers) -> DamagedScene:
    return DamagedScene(scene[1:], (), frozenset(_texts(scene[0])))


@defect
def duplicate_message(scene: list[Message], numbers: Numbers) -> DamagedScene:
    return DamagedScene([scene[0], *scene], (("message-id-once", scene[0].id, ".id"),))


@defect
def duplicate_message_id(scene: list[Message], numbers: Numbers) -> DamagedScene:
    other = make_message(numbers, Role.USER, TextBlock("Another one.")).replace(id=scene[0].id)
    return DamagedScene([scene[0], other, *scene[1:]], (("message-id-once", other.id, ".id"),))


@defect
def message_of_another_session(scene: list[Message], numbers: Numbers) -> DamagedScene:
    stray = make_message(numbers, Role.USER, TextBlock("Who am I?")).replace(session_id="sess_other")
    return DamagedScene([*scene, stray], (("one-session", stray.id, ".session_id"),), frozenset({"Who am I?"}))


@defect
def nul_in_name(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    index = at(call_message, ToolUseBlock, 1)
    call_message = with_block(call_message, index, call_message.content[index].replace(name="list_\0files"))
    return DamagedScene(
        [question, call_message, *rest], (("names-are-plain", call_message.id, f".content[{index}].name"),)
    )


@defect
def name_with_special_characters(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    index = at(call_message, ToolUseBlock, 1)
    call_message = with_block(call_message, index, call_message.content[index].replace(name="functions.list_files:0"))
    return DamagedScene(
        [question, call_message, *rest], (("tool-name-is-plain", call_message.id, f".content[{index}].name"),)
    )


@defect
def answer_without_metadata(scene: list[Message], numbers: Numbers) -> DamagedScene:
    summary = with_metadata(scene[4], routing=None, usage=None)
    found = (
        ("assistant-has-routing", summary.id, ".metadata.routing"),
        ("assistant-has-usage", summary.id, ".metadata.usage"),
    )
    return DamagedScene([*scene[:4], summary], found)


# --- signatures ------------------------------------------------------------------------------------------------------


@defect
def signature_without_origin(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    call_message = with_metadata(call_message, provider=None, model=None)
    found = (
        ("assistant-names-model", call_message.id, ".metadata.model"),
        ("assistant-names-model", call_message.id, ".metadata.provider"),
        ("reasoning-names-origin", call_message.id, f".content[{at(call_message, ThinkingBlock)}]"),
    )
    return DamagedScene([question, call_message, *rest], found)


@defect
def signature_of_another_provider(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    index = at(call_message, ThinkingBlock)
    own = call_message.metadata.provider
    other = next(name for name in ("anthropic", "gemini") if name != own)
    borrowed = make_answer(numbers, other, thinking_part("Borrowed."), text_part("x")).content[0]
    lost = frozenset({call_message.content[index].text})
    return DamagedScene([question, with_block(call_message, index, borrowed), *rest], (), lost)


@defect
def answer_with_foreign_provider(scene: list[Message], numbers: Numbers) -> DamagedScene:
    question, call_message, *rest = scene
    other = next(name for name in ("anthropic", "gemini") if name != call_message.metadata.provider)
    return DamagedScene([question, with_metadata(call_message, provider=other), *rest])


# --- images ----------------------------------------------------------------------------------------------------------


def _replace_image(scene: list[Message], image: ContentBlock) -> list[Message]:
    return [scene[0].replace(content=(scene[0].content[0], image)), *scene[1:]]


@defect
def image_with_invalid_base64(scene: list[Message], numbers: Numbers) -> DamagedScene:
    damaged = _replace_image(scene, ImageBlock(ImageSource("base64", PNG[:9] + "#"), "image/png"))
    return DamagedScene(damaged, (("media-is-readable", scene[0].id, ".content[1].source.data"),))


@defect
def image_with_wrong_type(scene: list[Message], numbers: Numbers) -> DamagedScene:
    damaged = _replace_image(scene, ImageBlock(ImageSource("base64", PNG), "image/jpeg"))
    return DamagedScene(damaged, (("media-is-readable", scene[0].id, ".content[1].media_type"),))


@defect
def image_with_unknown_type(scene: list[Message], numbers: Numbers) -> DamagedScene:
    damaged = _replace_image(scene, ImageBlock(ImageSource("base64", PNG), "png"))
    return DamagedScene(damaged, (("media-is-readable", scene[0].id, ".content[1].media_type"),))


@defect
def text_as_image(scene: list[Message], numbers: Numbers) -> DamagedScene:
    damaged = _replace_image(scene, ImageBlock(ImageSource("base64", TEXT_DATA), "image/png"))
    return DamagedScene(damaged, (("media-is-readable", scene[0].id, ".content[1].source.data"),))


@defect
def image_in_workspace(scene: list[Message], numbers: Numbers) -> DamagedScene:
    return DamagedScene(_replace_image(scene, ImageBlock(ImageSource("file_ref", "images/a.png"), "image/png")))


@defect
def text_as_document(scene: list[Message], numbers: Numbers) -> DamagedScene:
    damaged = _replace_image(scene, DocumentBlock(ImageSource("base64", TEXT_DATA), "application/pdf"))
    return DamagedScene(damaged, (("media-is-readable", scene[0].id, ".content[1].source.data"),))


@defect
def invalid_image_in_result(scene: list[Message], numbers: Numbers) -> DamagedScene:
    (result,) = scene[3].content
    odd = scene[3].replace(
        content=(result.replace(content=(result.content[0], ImageBlock(ImageSource("base64", "?"), "image/png"))),)
    )
    found = (("media-is-readable", odd.id, ".content[0].content[1].source.data"),)
    return DamagedScene([*scene[:3], odd, scene[4]], found)


def _texts(message: Message) -> list[str]:
    """Return every text of a message, including those inside results."""
    texts_found = []
    for block in message.content:
        inner = block.content if isinstance(block, ToolResultBlock) else ()
        texts_found.extend(piece.text for piece in (block, *inner) if isinstance(piece, TextBlock | ThinkingBlock))
    return texts_found


texts = _texts
NAMES: Final = tuple(DEFECTS)
