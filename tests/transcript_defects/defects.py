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
from tests.transcript_defects.valid_transcripts import PICTURE, PNG, Numbers, calls_in, said, spoken

WORDS: Final = base64.b64encode(b"no picture at all").decode()
Found = tuple[str, str, str]  # rule, id of the message, place in it


class Broken(msgspec.Struct, frozen=True):
    """A scene that was broken, what must be found in it, and what need not survive."""

    scene: list[Message]
    found: tuple[Found, ...] = ()
    lost: frozenset[str] = frozenset()


Defect = Callable[[list[Message], Numbers], Broken]
DEFECTS: dict[str, Defect] = {}


def defect(make: Defect) -> Defect:
    DEFECTS[make.__name__] = make
    return make


def at(message: Message, kind: type[ContentBlock], which: int = 0) -> int:
    """Where in a message the block of that kind stands."""
    return [index for index, block in enumerate(message.content) if isinstance(block, kind)][which]


def with_block(message: Message, index: int, block: ContentBlock) -> Message:
    return message.replace(content=(*message.content[:index], block, *message.content[index + 1 :]))


def with_metadata(message: Message, **changes: object) -> Message:
    return message.replace(metadata=message.metadata.replace(**changes))


# --- calls and results -----------------------------------------------------------------------------------------------


@defect
def orphaned_call(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    place = f".content[{at(calling, ToolUseBlock, 1)}]"
    lost = frozenset(_texts(second))
    return Broken([asked, calling, first, told], (("call-is-answered", calling.id, place),), lost)


@defect
def unanswered_parallel_calls(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    places = [f".content[{at(calling, ToolUseBlock, which)}]" for which in (0, 1)]
    found = tuple(("call-is-answered", calling.id, place) for place in places)
    return Broken([asked, calling, told], found, frozenset([*_texts(first), *_texts(second)]))


@defect
def orphaned_result(scene: list[Message], numbers: Numbers) -> Broken:
    stray = ToolResultBlock("tu_01KE0000000000000000009999", (TextBlock("of nobody"),))
    message = said(numbers, Role.TOOL, stray, parent_tool_use_id=stray.tool_use_id)
    found = (("result-has-call", message.id, ".content[0]"),)
    return Broken([*scene[:4], message, scene[4]], found, frozenset({"of nobody"}))


@defect
def duplicate_answer(scene: list[Message], numbers: Numbers) -> Broken:
    (result,) = scene[2].content
    again = said(
        numbers,
        Role.TOOL,
        ToolResultBlock(result.tool_use_id, (TextBlock("said twice"),)),
        parent_tool_use_id=result.tool_use_id,
    )
    found = (("one-result-per-call", again.id, ".content[0]"),)
    return Broken([*scene[:3], again, *scene[3:]], found, frozenset({"said twice"}))


@defect
def result_before_its_call(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    place = f".content[{at(calling, ToolUseBlock, 0)}]"
    found = (("result-has-call", first.id, ".content[0]"), ("call-is-answered", calling.id, place))
    return Broken([asked, first, calling, second, told], found)


@defect
def interleaved(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    between = said(numbers, Role.USER, TextBlock("Are you there?"))
    place = f".content[{at(calling, ToolUseBlock, 1)}]"
    return Broken([asked, calling, first, between, second, told], (("call-is-answered", calling.id, place),))


@defect
def id_of_another_s_making(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    index = at(calling, ToolUseBlock)
    foreign = "functions.read_file:0"
    calling = with_block(calling, index, calling.content[index].replace(id=foreign))
    (result,) = first.content
    first = with_metadata(first.replace(content=(result.replace(tool_use_id=foreign),)), parent_tool_use_id=foreign)
    return Broken([asked, calling, first, second, told], (("tool-id-is-ours", calling.id, f".content[{index}].id"),))


@defect
def one_id_for_two_calls(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    name, index = calls_in(calling)[0].id, at(calling, ToolUseBlock, 1)
    calling = with_block(calling, index, calling.content[index].replace(id=name))
    (result,) = second.content
    second = with_metadata(second.replace(content=(result.replace(tool_use_id=name),)), parent_tool_use_id=name)
    found = (
        ("call-id-once", calling.id, f".content[{index}].id"),
        ("one-result-per-call", second.id, ".content[0]"),
    )
    return Broken([asked, calling, first, second, told], found)


@defect
def result_that_names_no_call(scene: list[Message], numbers: Numbers) -> Broken:
    odd = with_metadata(scene[2], parent_tool_use_id=None)
    found = (("tool-names-parent", odd.id, ".metadata.parent_tool_use_id"),)
    return Broken([*scene[:2], odd, *scene[3:]], found)


@defect
def two_results_in_one_message(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    both = first.replace(content=(*first.content, *second.content))
    found = (
        ("tool-content", both.id, ".content"),
        ("tool-names-parent", both.id, ".content[1].tool_use_id"),
    )
    return Broken([asked, calling, both, told], found)


@defect
def bare_words_in_place_of_a_result(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    (result,) = first.content
    bare = first.replace(content=result.content)
    place = f".content[{at(calling, ToolUseBlock)}]"
    found = (("tool-content", bare.id, ".content[0]"), ("call-is-answered", calling.id, place))
    return Broken([asked, calling, bare, second, told], found)


@defect
def call_inside_a_result(scene: list[Message], numbers: Numbers) -> Broken:
    (result,) = scene[2].content
    inner = ToolUseBlock("tu_01KE0000000000000000008888", "read_file", {"path": "x"})
    odd = scene[2].replace(content=(result.replace(content=(*result.content, inner)),))
    return Broken([*scene[:2], odd, *scene[3:]], (("result-content", odd.id, ".content[0].content[1]"),))


# --- inputs ----------------------------------------------------------------------------------------------------------


@defect
def input_cut_off_and_never_answered(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    index = at(calling, ToolUseBlock, 1)
    whole = calling.content[index]
    cut = InvalidToolUseBlock(whole.id, whole.name, '{"deep": tr', "cut off", whole.provider_raw)
    calling = with_block(calling, index, cut)
    found = (("call-is-answered", calling.id, f".content[{index}]"),)
    return Broken([asked, calling, first, told], found, frozenset(_texts(second)))


@defect
def input_cut_off_and_answered_as_such(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    index = at(calling, ToolUseBlock, 1)
    whole = calling.content[index]
    cut = InvalidToolUseBlock(whole.id, whole.name, '{"deep": tr', "cut off", whole.provider_raw)
    (result,) = second.content
    second = second.replace(content=(result.replace(is_error=True),))
    return Broken([asked, with_block(calling, index, cut), first, second, told])


@defect
def input_that_does_not_fit(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    index = at(calling, ToolUseBlock)
    calling = with_block(calling, index, calling.content[index].replace(input={}))
    return Broken([asked, calling, *rest], (("tool-input-fits", calling.id, f".content[{index}].input"),))


# --- empty, blank, cut -----------------------------------------------------------------------------------------------


@defect
def empty_question(scene: list[Message], numbers: Numbers) -> Broken:
    empty = said(numbers, Role.USER)
    return Broken([scene[0], empty, *scene[1:]], (("content-not-empty", empty.id, ".content"),))


@defect
def empty_answer(scene: list[Message], numbers: Numbers) -> Broken:
    empty = scene[4].replace(id=numbers.next()[0], content=())
    return Broken([*scene, empty], (("content-not-empty", empty.id, ".content"),))


@defect
def blank_question(scene: list[Message], numbers: Numbers) -> Broken:
    blank = said(numbers, Role.USER, TextBlock(" \n"))
    return Broken([scene[0], blank, *scene[1:]], (("text-says-something", blank.id, ".content[0]"),))


@defect
def blank_words_before_a_call(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    index = at(calling, TextBlock)
    lost = frozenset({calling.content[index].text})
    calling = with_block(calling, index, TextBlock("\n\n"))
    found = (("text-says-something", calling.id, f".content[{index}]"),)
    return Broken([asked, calling, *rest], found, lost)


@defect
def blank_result(scene: list[Message], numbers: Numbers) -> Broken:
    (result,) = scene[2].content
    lost = frozenset(_texts(scene[2]))
    blank = scene[2].replace(content=(result.replace(content=(TextBlock(""),), is_error=True),))
    found = (("text-says-something", blank.id, ".content[0].content[0]"),)
    return Broken([*scene[:2], blank, *scene[3:]], found, lost)


@defect
def result_without_content(scene: list[Message], numbers: Numbers) -> Broken:
    (result,) = scene[2].content
    silent = scene[2].replace(content=(result.replace(content=()),))
    return Broken([*scene[:2], silent, *scene[3:]], (), frozenset(_texts(scene[2])))


@defect
def failure_without_content(scene: list[Message], numbers: Numbers) -> Broken:
    (result,) = scene[2].content
    silent = scene[2].replace(content=(result.replace(content=(), is_error=True),))
    return Broken([*scene[:2], silent, *scene[3:]], (), frozenset(_texts(scene[2])))


@defect
def left_streaming_by_a_crash(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    left = with_metadata(calling, status=MessageStatus.PARTIAL, usage=None, routing=None)
    lost = frozenset([*_texts(first), *_texts(second)])
    return Broken([asked, left, told], (("partial-is-last", left.id, ".metadata.status"),), lost)


@defect
def left_thinking_by_a_crash(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    left = with_metadata(calling, status=MessageStatus.PARTIAL, usage=None, routing=None)
    left = left.replace(id=numbers.next()[0], content=left.content[: at(left, ThinkingBlock) + 1])
    return Broken([asked, left, calling, *rest], (("partial-is-last", left.id, ".metadata.status"),))


@defect
def cancelled_before_the_first_word(scene: list[Message], numbers: Numbers) -> Broken:
    empty = with_metadata(scene[4], status=MessageStatus.CANCELLED, usage=None).replace(
        id=numbers.next()[0], content=()
    )
    return Broken([*scene, empty])


@defect
def cancelled_while_thinking(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    left = with_metadata(calling, status=MessageStatus.CANCELLED, usage=None)
    left = left.replace(id=numbers.next()[0], content=left.content[: at(left, ThinkingBlock) + 1])
    return Broken([asked, left, calling, *rest])


@defect
def failed_with_open_calls(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    failed = with_metadata(calling, status=MessageStatus.ERROR, usage=None)
    places = [f".content[{at(failed, ToolUseBlock, which)}]" for which in (0, 1)]
    found = tuple(("call-is-answered", failed.id, place) for place in places)
    return Broken([asked, failed, told], found, frozenset([*_texts(first), *_texts(second)]))


# --- roles and sessions ----------------------------------------------------------------------------------------------


@defect
def call_by_the_user(scene: list[Message], numbers: Numbers) -> Broken:
    asked = scene[0].replace(content=(*scene[0].content, ToolUseBlock("tu_01KE0000000000000000007777", "x", {})))
    return Broken([asked, *scene[1:]], (("user-content", asked.id, ".content[2]"),))


@defect
def result_by_the_user(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, first, second, told = scene
    odd = said(numbers, Role.USER, *first.content)
    place = f".content[{at(calling, ToolUseBlock)}]"
    found = (("user-content", odd.id, ".content[0]"), ("call-is-answered", calling.id, place))
    return Broken([asked, calling, second, odd, told], found)


@defect
def document_by_the_assistant(scene: list[Message], numbers: Numbers) -> Broken:
    told = scene[4].replace(content=(*scene[4].content, DocumentBlock(PICTURE.source, "application/pdf")))
    return Broken([*scene[:4], told], (("assistant-content", told.id, f".content[{len(told.content) - 1}]"),))


@defect
def picture_in_a_system_prompt(scene: list[Message], numbers: Numbers) -> Broken:
    prompt = said(numbers, Role.SYSTEM, TextBlock("Be kind."), PICTURE)
    return Broken([prompt, *scene], (("system-content", prompt.id, ".content[1]"),))


@defect
def system_prompts_in_the_middle(scene: list[Message], numbers: Numbers) -> Broken:
    prompts = [said(numbers, Role.SYSTEM, TextBlock(text)) for text in ("Be kind.", "Be quick.")]
    return Broken([*scene[:4], *prompts, scene[4]])


@defect
def an_answer_to_no_question(scene: list[Message], numbers: Numbers) -> Broken:
    return Broken(scene[1:], (), frozenset(_texts(scene[0])))


@defect
def message_twice(scene: list[Message], numbers: Numbers) -> Broken:
    return Broken([scene[0], *scene], (("message-id-once", scene[0].id, ".id"),))


@defect
def one_id_for_two_messages(scene: list[Message], numbers: Numbers) -> Broken:
    other = said(numbers, Role.USER, TextBlock("Another one.")).replace(id=scene[0].id)
    return Broken([scene[0], other, *scene[1:]], (("message-id-once", other.id, ".id"),))


@defect
def message_of_another_session(scene: list[Message], numbers: Numbers) -> Broken:
    stray = said(numbers, Role.USER, TextBlock("Who am I?")).replace(session_id="sess_other")
    return Broken([*scene, stray], (("one-session", stray.id, ".session_id"),), frozenset({"Who am I?"}))


@defect
def nul_in_a_name(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    index = at(calling, ToolUseBlock, 1)
    calling = with_block(calling, index, calling.content[index].replace(name="list_\0files"))
    return Broken([asked, calling, *rest], (("names-are-plain", calling.id, f".content[{index}].name"),))


@defect
def name_that_some_refuse(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    index = at(calling, ToolUseBlock, 1)
    calling = with_block(calling, index, calling.content[index].replace(name="functions.list_files:0"))
    return Broken([asked, calling, *rest], (("tool-name-is-plain", calling.id, f".content[{index}].name"),))


@defect
def nothing_recorded_about_an_answer(scene: list[Message], numbers: Numbers) -> Broken:
    told = with_metadata(scene[4], routing=None, usage=None)
    found = (
        ("assistant-has-routing", told.id, ".metadata.routing"),
        ("assistant-has-usage", told.id, ".metadata.usage"),
    )
    return Broken([*scene[:4], told], found)


# --- signatures ------------------------------------------------------------------------------------------------------


@defect
def signature_without_an_origin(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    calling = with_metadata(calling, provider=None, model=None)
    found = (
        ("assistant-names-model", calling.id, ".metadata.model"),
        ("assistant-names-model", calling.id, ".metadata.provider"),
        ("reasoning-names-origin", calling.id, f".content[{at(calling, ThinkingBlock)}]"),
    )
    return Broken([asked, calling, *rest], found)


@defect
def signature_of_another_provider(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    index = at(calling, ThinkingBlock)
    own = calling.metadata.provider
    other = next(name for name in ("anthropic", "gemini") if name != own)
    borrowed = spoken(numbers, other, thinking_part("Borrowed."), text_part("x")).content[0]
    lost = frozenset({calling.content[index].text})
    return Broken([asked, with_block(calling, index, borrowed), *rest], (), lost)


@defect
def answer_that_another_provider_claims(scene: list[Message], numbers: Numbers) -> Broken:
    asked, calling, *rest = scene
    other = next(name for name in ("anthropic", "gemini") if name != calling.metadata.provider)
    return Broken([asked, with_metadata(calling, provider=other), *rest])


# --- pictures --------------------------------------------------------------------------------------------------------


def _with_picture(scene: list[Message], picture: ContentBlock) -> list[Message]:
    return [scene[0].replace(content=(scene[0].content[0], picture)), *scene[1:]]


@defect
def picture_that_is_no_base64(scene: list[Message], numbers: Numbers) -> Broken:
    broken = _with_picture(scene, ImageBlock(ImageSource("base64", PNG[:9] + "#"), "image/png"))
    return Broken(broken, (("media-is-readable", scene[0].id, ".content[1].source.data"),))


@defect
def picture_under_another_type(scene: list[Message], numbers: Numbers) -> Broken:
    broken = _with_picture(scene, ImageBlock(ImageSource("base64", PNG), "image/jpeg"))
    return Broken(broken, (("media-is-readable", scene[0].id, ".content[1].media_type"),))


@defect
def picture_of_no_known_type(scene: list[Message], numbers: Numbers) -> Broken:
    broken = _with_picture(scene, ImageBlock(ImageSource("base64", PNG), "png"))
    return Broken(broken, (("media-is-readable", scene[0].id, ".content[1].media_type"),))


@defect
def words_that_claim_to_be_a_picture(scene: list[Message], numbers: Numbers) -> Broken:
    broken = _with_picture(scene, ImageBlock(ImageSource("base64", WORDS), "image/png"))
    return Broken(broken, (("media-is-readable", scene[0].id, ".content[1].source.data"),))


@defect
def picture_in_the_workspace(scene: list[Message], numbers: Numbers) -> Broken:
    return Broken(_with_picture(scene, ImageBlock(ImageSource("file_ref", "pictures/a.png"), "image/png")))


@defect
def document_that_is_none(scene: list[Message], numbers: Numbers) -> Broken:
    broken = _with_picture(scene, DocumentBlock(ImageSource("base64", WORDS), "application/pdf"))
    return Broken(broken, (("media-is-readable", scene[0].id, ".content[1].source.data"),))


@defect
def broken_picture_in_a_result(scene: list[Message], numbers: Numbers) -> Broken:
    (result,) = scene[3].content
    odd = scene[3].replace(
        content=(result.replace(content=(result.content[0], ImageBlock(ImageSource("base64", "?"), "image/png"))),)
    )
    found = (("media-is-readable", odd.id, ".content[0].content[1].source.data"),)
    return Broken([*scene[:3], odd, scene[4]], found)


def _texts(message: Message) -> list[str]:
    """Every word of a message, those inside results too."""
    found = []
    for block in message.content:
        inner = block.content if isinstance(block, ToolResultBlock) else ()
        found.extend(piece.text for piece in (block, *inner) if isinstance(piece, TextBlock | ThinkingBlock))
    return found


texts = _texts
NAMES: Final = tuple(DEFECTS)
