"""Render a conversation as one HTML page.

Roles have a colour and a name, thinking and long results are collapsed, a result follows its call, and inline images
are embedded. The page loads nothing; an external image is a link. Invariant: every text is escaped, here or by the
Markdown renderer, which accepts no HTML; the content security policy forbids scripts.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from dragoman import message as msg
from dragoman.humanize import escape_controls
from dragoman.renderers.metadata import About, format_json, message_facts, placeholder, results_by_call

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
_PICTURES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/avif")
_SOUNDS: Final = re.compile(r"(audio|video)/[a-z0-9.+-]{1,40}")
# TeX between signs, without spaces inside of single ones and without a digit after them: amounts are no formulas.
_FORMULA: Final = re.compile(
    r"\$\$[^$`]+\$\$|\$(?![\s$])[^$`\n]*?[^\s$`\\]\$(?!\d)|\\\([^`]{1,2000}?\\\)|\\\[[^`]{1,2000}?\\\]"
)
_ROLES: Final = {role.value for role in (msg.Role.USER, msg.Role.ASSISTANT, msg.Role.SYSTEM, msg.Role.TOOL)}
_LONG_LINES: Final = 14
_LONG_CHARACTERS: Final = 1_600


def write_head(title: str) -> str:
    """Return the head of the page."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
    )


def write_foot() -> str:
    """Return the foot of the page."""
    return "</body>\n</html>\n"


def write_conversation(messages: Sequence[msg.Message], about: About) -> str:
    """Return a conversation with its heading."""
    answers, rendered = results_by_call(messages), set[int]()
    facts = "".join(f"<span>{_text(fact)}</span>" for fact in about.facts)
    lines = [f'<main>\n<header><h1>{_text(about.title)}</h1><p class="facts">{facts}</p></header>']
    for message in messages:
        if message.content and all(id(block) in rendered for block in message.content):
            continue  # a tool message whose result follows its call
        lines.append(_message(message, answers, rendered))
    return "\n".join([*lines, "</main>\n"])


def _message(message: msg.Message, answers: dict[str, msg.ToolResultBlock], rendered: set[int]) -> str:
    role = message.role.value
    facts = "".join(f"<span>{_text(fact)}</span>" for fact in message_facts(message))
    head = f'<div class="who"><b>{_text(role)}</b><span class="facts">{facts}</span></div>'
    body = "".join(_blocks(message.content, message.role, answers, rendered))
    attached = "".join(
        _aside(f"attached: {attachment.path} ({attachment.mime_type})") for attachment in message.metadata.attachments
    )
    return f'<article class="{role if role in _ROLES else "other"}">{head}{body}{attached}</article>'


def _blocks(
    content: Sequence[msg.ContentBlock], role: msg.Role, answers: dict[str, msg.ToolResultBlock], rendered: set[int]
) -> Iterator[str]:
    for block in content:
        if id(block) in rendered:
            continue
        match block:
            case msg.TextBlock() if role is msg.Role.SYSTEM and _is_long(block.text):
                yield _fold("instructions", f'<div class="words">{_render_markdown(block.text)}</div>', block.text)
            case msg.TextBlock():
                yield f'<div class="words">{_render_markdown(block.text)}</div>'
            case msg.ThinkingBlock() if block.text:
                yield _fold(
                    "thinking", f'<div class="words">{_render_markdown(block.text)}</div>', block.text, "thinking"
                )
            case msg.ToolUseBlock() | msg.InvalidToolUseBlock():
                yield _call(block, answers.get(block.id), rendered)
            case msg.ToolResultBlock():
                yield f'<div class="call">{_result(block)}</div>'
            case _:
                yield _medium(block)


def _call(
    block: msg.ToolUseBlock | msg.InvalidToolUseBlock, answer: msg.ToolResultBlock | None, rendered: set[int]
) -> str:
    if isinstance(block, msg.ToolUseBlock):
        markup = f'<div class="name">→ {_text(block.name)}</div>'
        input_text = format_json(block.input) if block.input else ""
    else:
        markup = f'<div class="name failed">→ {_text(block.name)} was not called: {_text(block.reason)}</div>'
        input_text = block.input_text
    markup += _lines(input_text, "input") if input_text else ""
    if answer is not None and id(answer) not in rendered:
        rendered.add(id(answer))
        markup += _result(answer)
    return f'<div class="call">{markup}</div>'


def _result(block: msg.ToolResultBlock) -> str:
    name = '<div class="name failed">✗ failed</div>' if block.is_error else '<div class="name">← result</div>'
    parts = [
        _lines(part.text, "result") if isinstance(part, msg.TextBlock) else _medium(part) for part in block.content
    ]
    return name + ("".join(parts) or _aside("nothing"))


def _lines(text: str, what: str) -> str:
    """Return preformatted text, collapsed if it is long."""
    body = f"<pre>{_text(text)}</pre>"
    return _fold(what, body, text) if _is_long(text) else body


def _fold(what: str, body: str, text: str, kind: str = "") -> str:
    first, _, more = escape_controls(text).strip().partition("\n")
    first = f"{first[:90]}…" if more or len(first) > 90 else first
    count = f"{text.count(chr(10)) + 1:,} lines" if "\n" in text.strip() else f"{len(text):,} characters"
    summary = f"<b>{_text(what)}</b> <i>{escape(first)}</i> <small>{count}</small>"
    return f'<details class="{kind}"><summary>{summary}</summary>{body}</details>'


def _is_long(text: str) -> bool:
    return text.count("\n") >= _LONG_LINES or len(text) > _LONG_CHARACTERS


# --- pictures and sounds ---------------------------------------------------------------------------------------------


def _medium(block: msg.ContentBlock) -> str:
    match block:
        case msg.ImageBlock() if _is_inline(block.source) and block.media_type in _PICTURES:
            return f'<img alt="{_text(placeholder(block))}" src="data:{block.media_type};base64,{_data(block.source)}">'
        case msg.AudioBlock() | msg.VideoBlock() if _is_inline(block.source) and _SOUNDS.fullmatch(block.media_type):
            kind = "audio" if isinstance(block, msg.AudioBlock) else "video"
            return f'<{kind} controls src="data:{block.media_type};base64,{_data(block.source)}"></{kind}>'
        case _:
            return _aside(placeholder(block))


def _is_inline(source: msg.ImageSource) -> bool:
    return source.kind == "base64" and _BASE64.fullmatch(source.data) is not None


def _data(source: msg.ImageSource) -> str:
    return "".join(source.data.split())


def _aside(text: str) -> str:
    return f'<p class="aside">{_text(text)}</p>'


# --- words -----------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return escape(escape_controls(text))


def _render_markdown(text: str) -> str:
    return str(_markdown().render(escape_controls(text)))


@functools.cache
def _markdown() -> Any:
    """A Markdown renderer without HTML, images, and links with scripts."""
    from markdown_it import MarkdownIt  # noqa: PLC0415  only a page needs it

    renderer = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    renderer.disable(["image", "html_block", "html_inline"])
    renderer.add_render_rule("link_open", _link)
    renderer.inline.ruler.before("escape", "formula", _read_formula)
    return renderer


def _read_formula(state: Any, is_check: bool) -> bool:
    """Read TeX as code, so that Markdown changes nothing in it. Return whether there is a formula here."""
    formula = _FORMULA.match(state.src, state.pos)
    if formula is None:
        return False
    if not is_check:
        state.push("code_inline", "code", 0).content = formula[0]
    state.pos = formula.end()
    return True


def _link(_renderer: Any, tokens: Any, index: int, _options: Any, _env: Any) -> str:
    target = str(tokens[index].attrGet("href") or "")
    if not re.match(r"(https?://|mailto:|#)", target, re.IGNORECASE):
        return "<a>"
    return f'<a href="{escape(target)}" rel="noopener noreferrer nofollow">'


# --- style ---------------------------------------------------------------------------------------------------------

# Light and dark. It loads no font, image or style sheet.
_STYLE: Final = """
:root{--page:#f6f6f4;--card:#fff;--ink:#1c1d20;--soft:#6a6d75;--line:#dfdfda;--code:#f2f2ee;
--user:#2f7d4f;--assistant:#2c5fb3;--system:#97701a;--tool:#8b4a9e;--bad:#b3342c}
@media (prefers-color-scheme:dark){:root{--page:#16171a;--card:#1f2125;--ink:#e6e6e3;--soft:#9a9ea8;--line:#33363c;
--code:#17181b;--user:#6fc08f;--assistant:#83adf0;--system:#d9b25c;--tool:#cb93db;--bad:#f08a80}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.55 system-ui,sans-serif}
main{max-width:52rem;margin:0 auto;padding:2rem 1rem 3rem}
header h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
.facts{color:var(--soft);font-size:.85rem;margin:0}
.facts span+span::before{content:" · "}
header{padding-bottom:1rem}
article{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--soft);border-radius:6px;
margin:.9rem 0;padding:.75rem 1rem}
article.user{border-left-color:var(--user)}article.user .who b{color:var(--user)}
article.assistant{border-left-color:var(--assistant)}article.assistant .who b{color:var(--assistant)}
article.system{border-left-color:var(--system)}article.system .who b{color:var(--system)}
article.tool{border-left-color:var(--tool)}article.tool .who b{color:var(--tool)}
.who{display:flex;flex-wrap:wrap;gap:.1rem .75rem;align-items:baseline;justify-content:space-between;
margin-bottom:.35rem}
.words{overflow-wrap:anywhere}
.words>:first-child{margin-top:0}.words>:last-child{margin-bottom:0}
.words h1,.words h2,.words h3,.words h4,.words h5,.words h6{font-size:1.05rem;margin:1rem 0 .4rem}
.words p,.words ul,.words ol{margin:.5rem 0}.words ul,.words ol{padding-left:1.5rem}
.words blockquote{margin:.5rem 0;padding-left:.9rem;border-left:3px solid var(--line);color:var(--soft)}
.words table{border-collapse:collapse;display:block;overflow-x:auto;margin:.6rem 0}
.words td,.words th{border:1px solid var(--line);padding:.25rem .6rem;text-align:left;overflow-wrap:normal}
a{color:var(--assistant)}
code,pre,.name{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86rem}
code{background:var(--code);border-radius:4px;padding:.1em .3em;overflow-wrap:anywhere}
pre{background:var(--code);border:1px solid var(--line);border-radius:6px;padding:.6rem .8rem;margin:.4rem 0;
white-space:pre-wrap;overflow-wrap:anywhere}
pre code{background:none;padding:0}
.call{border:1px solid var(--line);border-radius:6px;padding:.5rem .8rem;margin:.6rem 0}
.call .name{color:var(--tool);font-weight:600;overflow-wrap:anywhere}.call .name.failed{color:var(--bad)}
.call pre+.name,.call details+.name{margin-top:.5rem}
details{margin:.5rem 0;border:1px dashed var(--line);border-radius:6px;padding:.35rem .8rem}
summary{cursor:pointer;color:var(--soft);font-size:.88rem;overflow-wrap:anywhere}
summary i{font-style:normal;opacity:.8}details[open] summary{margin-bottom:.4rem}details[open] summary i{display:none}
details.thinking .words{color:var(--soft)}
.aside{color:var(--soft);font-style:italic;font-size:.9rem;margin:.4rem 0;overflow-wrap:anywhere}
img,video{max-width:100%;max-height:32rem;border-radius:6px;display:block;margin:.5rem 0}audio{width:100%}
@media print{body{background:#fff}article{break-inside:avoid}}
"""
