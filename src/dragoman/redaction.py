"""Remove secrets from texts and JSON before they are logged, traced or sent.

    redact("Authorization: Bearer abc123…")     "Authorization: Bearer [redacted:authorization]"
    redact_json({"password": "hunter2"})        {"password": "[redacted:password]"}

The patterns find keys in the format of a known issuer (a provider, a cloud, a forge), other formats of secrets (a
private key, a signed token, a password in a URL), and random values behind a name such as ``api_key``. ``Redactor``
also accepts rules of the application and secrets by their value. Other long opaque texts stay: hashes, ids, images in
base64.

The patterns run in linear time. Invariant: if redaction fails, the text is withheld.
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from logging import LogRecord

WITHHELD: Final = "[withheld: it could not be redacted]"

# --- patterns of secrets ---------------------------------------------------------------------------------------------

# Issuers publish these formats for detection. A key starts at the start of a word; part of a longer text, such as an
# image in base64, does not match. The longest prefix is first.
_KEYS: Final = {
    "anthropic_key": r"sk-ant-[0-9A-Za-z_-]{16,}",
    "openrouter_key": r"sk-or-[0-9A-Za-z_-]{16,}",
    "langfuse_key": r"sk-lf-[0-9a-f-]{16,}",
    "api_key": r"sk-[0-9A-Za-z_-]{16,64}",  # OpenAI, DeepSeek, Moonshot, LiteLLM and others
    "google_key": r"AIza[0-9A-Za-z_-]{30,}|GOCSPX-[0-9A-Za-z_-]{20,}|ya29\.[0-9A-Za-z_-]{20,}",
    "dragoman_key": r"ak_[a-z]{1,8}_[0-9A-Za-z]{8}_[0-9A-Za-z_-]{43}_[0-9A-Za-z]{6}",
    "groq_key": r"gsk_[0-9A-Za-z]{20,}",
    "xai_key": r"xai-[0-9A-Za-z]{20,}",
    "perplexity_key": r"pplx-[0-9A-Za-z]{20,}",
    "cerebras_key": r"csk-[0-9a-z]{20,}",
    "fireworks_key": r"fw_[0-9A-Za-z]{20,}",
    "nvidia_key": r"nvapi-[0-9A-Za-z_-]{20,}",
    "replicate_key": r"r8_[0-9A-Za-z]{20,}",
    "huggingface_token": r"hf_[0-9A-Za-z]{20,}|api_org_[0-9A-Za-z]{20,}",
    "langsmith_key": r"lsv2_[0-9a-z_]{20,}",
    "tavily_key": r"tvly-[0-9A-Za-z-]{16,}",
    "aws_key": r"(?:AKIA|ASIA|AGPA|AIDA|AROA|ABIA|ACCA)[0-9A-Z]{16}|ABSK[0-9A-Za-z+/=]{60,}",
    "github_token": r"gh[oprsu]_[0-9A-Za-z]{30,}|github_pat_[0-9A-Za-z_]{22,}",
    "gitlab_token": r"gl(?:pat|dt|rt|ptt|ft|soat|cbt|imt|agent)-[0-9A-Za-z_.-]{16,}",
    "slack_token": r"xox[abcdeoprs]-[0-9A-Za-z-]{10,}|xapp-[0-9]-[0-9A-Za-z-]{10,}",
    "stripe_key": r"(?:sk|rk|pk)_(?:live|test)_[0-9A-Za-z]{16,}|whsec_[0-9A-Za-z+/=]{20,}",
    "sendgrid_key": r"SG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}",
    "package_token": r"npm_[0-9A-Za-z]{30,}|pypi-[0-9A-Za-z_-]{50,}|dckr_pat_[0-9A-Za-z_-]{20,}",
    "cloud_token": (
        r"do[opr]_v1_[0-9a-f]{40,}|dapi[0-9a-f]{32}|hv[sbr]\.[0-9A-Za-z_-]{20,}|sbp_[0-9a-f]{40}"
        r"|sb_secret_[0-9A-Za-z_-]{20,}|ATATT3[0-9A-Za-z_=-]{40,}|shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"
        r"|lin_api_[0-9A-Za-z]{30,}|ntn_[0-9A-Za-z]{40,}|dp\.(?:pt|st|ct|sa)\.[0-9A-Za-z]{30,}"
        r"|AGE-SECRET-KEY-1[0-9A-Z]{50,}|ops_eyJ[0-9A-Za-z_-]{50,}"
    ),
    "bot_token": r"(?:bot)?[0-9]{8,10}:AA[0-9A-Za-z_-]{32,}",
    "token": r"eyJ[0-9A-Za-z_-]{6,}\.[0-9A-Za-z_-]{6,}\.[0-9A-Za-z_-]*",  # JSON Web Token
}
_LEAD: Final = r"(?:^|[^0-9A-Za-z_-]|\\[bfnrt]|%[0-9A-Fa-f]{2})"  # a text may itself be the content of a JSON string

_ASSIGNS: Final = r"""["'\\]{0,3}\s{0,4}(?:=>|:=|=|:)\s{0,4}["'\\]{0,3}"""  # separators between a name and its value
_ASSIGNS_QUOTED: Final = r"""["'\\]{0,3}\s{0,4}(?:=>|:=|=|:)\s{0,4}\\?["']"""
_QUOTED: Final = r"""[^"'\\\r\n\[\]]"""
_VALUE: Final = r"""[^\s"'\\,;&<>(){}\[\]]"""
_PASSWORD_NAMES: Final = r"(?:passwords?|passwd|passphrase|passwort|pwd)"
_KEY_NAMES: Final = (
    r"(?:(?:api|access|account|secret|private|encryption|signing|master|subscription|service|auth)[ _-]?key(?:[_-]?id)?"
    r"|apikey|client[_-]?secret|secret[_-]?(?:access[_-]?key|token|value)|secret|credentials?|token|signature|sig|hmac"
    r"|connection[_-]?string|x-amz-(?:signature|credential|security-token)|session[_-]?id|cookie)"
)
_FORMS: Final = {
    "private_key": r"(?P<private_key>-----BEGIN [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)"
    r"(?:-----END [0-9A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----|\z))",
    "url_password": r"""[0-9A-Za-z+.]://[^\s/?#@:"'<>\\]{0,64}:(?P<url_password>[^\s/?#@"'<>\\]{1,128})@""",
    "authorization": r"(?i:authorization)" + _ASSIGNS + r"(?i:[a-z][0-9a-z-]{0,30} {1,4})?"
    rf"(?P<authorization>{_VALUE}{{8,64}})",
    "bearer": rf"(?i:\bbearer) {{1,4}}(?P<bearer>{_VALUE}{{8,64}})",
    "quoted": rf"(?i:{_PASSWORD_NAMES}|secret){_ASSIGNS_QUOTED}(?P<quoted>{_QUOTED}{{4,64}})",
    "password": rf"(?i:{_PASSWORD_NAMES}){_ASSIGNS}(?P<password>{_VALUE}{{4,64}})",
    "named": rf"(?i:{_KEY_NAMES}){_ASSIGNS}(?P<named>{_VALUE}{{8,64}})",
}
_CONTINUATIONS: Final = {  # values with a check are matched up to a length, so that texts full of names stay cheap
    **dict.fromkeys(("authorization", "bearer", "password", "named"), re.compile(_VALUE.encode() + b"*")),
    "quoted": re.compile(_QUOTED.encode() + b"*"),
    "api_key": re.compile(rb"[0-9A-Za-z_-]*"),
}
_EMAIL: Final = r"[0-9A-Za-z._%+-]{1,64}@(?:[0-9A-Za-z-]{1,63}\.){1,8}[A-Za-z]{2,24}"


# --- values that are not secrets -------------------------------------------------------------------------------------

_WORDS: Final = re.compile(r"[A-Za-z]+(?:[_.:/@-][A-Za-z]+)*[0-9]{0,3}[.!?:]*")
_NO_PASSWORD: Final = re.compile(
    "none|null|nil|undefined|true|false|string|str|text|bytes|int|required|optional|empty|hidden|redacted|example"
    "|password|passwd|secret|token|changeme|your-password"
)
_PLACEHOLDER: Final = re.compile(
    r"[$%@~/*.#?!|-]|(.)\1{3,}$|x{4,}|os\.environ|process\.env|getenv|self\.|settings\.|config\."
)


def _is_random(text: str) -> bool:
    """Whether a text looks random: mixed letters and digits, and not words."""
    if _PLACEHOLDER.match(text) or _WORDS.fullmatch(text):
        return False
    has_digit, has_letter = any(map(str.isdigit, text)), any(map(str.isalpha, text))
    return has_letter and (has_digit or len(text) >= 20) and _bits(text) >= 2.5


def _bits(text: str) -> float:
    """Shannon entropy in bits per character."""
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text[:512]).values())


def _is_password(text: str) -> bool:
    if _PLACEHOLDER.match(text):
        return False
    return not _NO_PASSWORD.fullmatch(text.lower().rstrip(".")) and not re.fullmatch(
        r"[A-Za-z_]+(?:\.[A-Za-z_]+)+", text
    )


_CHECKS: Final[Mapping[str, Callable[[str], bool]]] = {
    "api_key": lambda text: _is_random(text[3:]),
    "quoted": _is_password,
    "password": _is_password,
    "authorization": _is_random,
    "bearer": _is_random,
    "named": _is_random,
}
_LABELS: Final = {"bearer": "authorization", "named": "secret", "quoted": "password"}


# --- redacting -------------------------------------------------------------------------------------------------------


class Rule(msgspec.Struct, frozen=True):
    """A secret of the application: its kind and a regular expression in RE2 syntax.

    The first group is removed, or the whole match if there is no group.
    """

    kind: str
    pattern: str


class Redactor:
    """Removes secrets. ``emails`` also removes e-mail addresses; ``secrets`` are known values."""

    def __init__(self, *, emails: bool = False, rules: Iterable[Rule] = (), secrets: Iterable[str] = ()) -> None:
        known_secrets = sorted({secret for secret in secrets if len(secret) >= 4}, key=len, reverse=True)
        all_rules = list(rules)
        if known_secrets:
            all_rules.insert(0, Rule("secret", "|".join(_escape(secret) for secret in known_secrets)))
        if emails:
            all_rules.append(Rule("email", _EMAIL))
        self._own = tuple((rule.kind, _compile(rule.pattern)) for rule in all_rules)

    def text(self, text: str) -> str:
        """Return the text without secrets, or ``WITHHELD`` if redaction fails."""
        try:
            data = text.encode("utf-8", "surrogatepass")
            redacted = self._redact_bytes(data)
            return text if redacted is data else redacted.decode("utf-8", "surrogatepass")
        except Exception:  # noqa: BLE001  on any error, the text is withheld
            return WITHHELD

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets, or ``WITHHELD`` if redaction fails."""
        try:
            return self._redact_value(value)
        except Exception:  # noqa: BLE001  on any error, the text is withheld
            return WITHHELD

    def json(self, data: bytes) -> bytes:
        """Return JSON text without secrets. Text that is not JSON is withheld."""
        try:
            value = msgspec.json.decode(data)
            if self._is_clean(value):
                return data
            return msgspec.json.encode(self.value(value))
        except Exception:  # noqa: BLE001  on any error, the text is withheld
            return msgspec.json.encode(WITHHELD)

    def json_list(self, texts: Sequence[bytes]) -> list[bytes]:
        """Return several JSON texts without secrets. All of them are checked at once; usually none has a secret."""
        try:
            is_clean = self._is_clean(msgspec.json.decode(b"[%b]" % b",".join(texts)))
        except Exception:  # noqa: BLE001  on any error, each text is checked separately
            is_clean = False
        return list(texts) if is_clean else [self.json(text) for text in texts]

    def _is_clean(self, value: Any) -> bool:
        """Fast check whether there is nothing to remove, which is the usual case."""
        texts: list[str] = []
        if not _collect(value, texts):
            return False
        text = "\n".join(texts)
        return self.text(text) == text

    def _redact_value(self, value: Any) -> Any:
        match value:
            case str():
                return self.text(value)
            case dict():
                result: dict[Any, Any] = {}
                for name, inner in value.items():
                    result[self._redact_name(name, result)] = self._redact_field(name, inner)
                return result
            case list() | tuple():
                return [self._redact_value(inner) for inner in value]
            case None | bool() | int() | float():
                return value
            case _:
                raise TypeError(f"{type(value).__name__} is not JSON")

    def _redact_name(self, name: Any, used: Mapping[Any, Any]) -> Any:
        candidate = self.text(name) if isinstance(name, str) else name
        number = 1
        while candidate != name and candidate in used:  # two secrets as names stay two names
            number += 1
            candidate = f"{self.text(name)} ({number})"
        return candidate

    def _redact_field(self, name: Any, value: Any) -> Any:
        kind = _kind_of_name(name) if isinstance(name, str) else None
        if kind is None:
            return self._redact_value(value)
        match value:
            case str():
                is_secret = _is_password(value) if kind == "password" else _is_random(value)
                return _marker(kind) if is_secret and not _MARKER.fullmatch(value) else self.text(value)
            case int() | float() if kind == "password" and not isinstance(value, bool):
                return _marker(kind)
            case dict():
                return {inner: self._redact_field(name, item) for inner, item in self._redact_value(value).items()}
            case list() | tuple():
                return [self._redact_field(name, item) for item in value]
            case _:
                return self._redact_value(value)

    def _redact_bytes(self, data: bytes) -> bytes:
        for kind, pattern in self._own:
            data = _remove_secrets(data, pattern, kind)
        return _remove_secrets(data, _patterns(), None)


def _collect(value: Any, texts: list[str]) -> bool:
    """Collect every text of a JSON value. Return false if a name indicates a secret."""
    kind = type(value)
    if kind is str:
        texts.append(value)
        return True
    if kind is dict:
        texts.extend(value)
        if any(map(_kind_of_name, value)):
            return False
    elif kind is not list:
        return True
    for inner in value.values() if kind is dict else value:
        kind = type(inner)
        if kind is str:
            texts.append(inner)
        elif (kind is dict or kind is list) and not _collect(inner, texts):
            return False
    return True


_MARKER: Final = re.compile(r"\[redacted:[0-9a-z_]+\]")


def _marker(kind: str) -> str:
    return f"[redacted:{_LABELS.get(kind, kind)}]"


def _remove_secrets(data: bytes, pattern: Any, kind: str | None) -> bytes:
    pieces: list[bytes] = []
    copied_to = at = 0
    while (match := pattern.search(data, at)) is not None:
        name, (start, end) = _locate(match, kind)
        secret = data[start:end]
        check = _CHECKS.get(name) if kind is None else None
        if start == end or (check is not None and not check(secret.decode("utf-8", "replace"))):
            at = max(start, at + 1)  # a rejected match may contain a secret
            continue
        if kind is None:
            end = _extend_end(name, data, end)
        pieces.extend((data[copied_to:start], _marker(name).encode()))
        copied_to = at = end
    return b"".join([*pieces, data[copied_to:]]) if pieces else data


def _locate(match: Any, kind: str | None) -> tuple[str, tuple[int, int]]:
    """Return the kind of a match and its span."""
    if kind is not None:
        groups = match.re.groups
        return kind, match.span(1) if groups and match.span(1)[0] >= 0 else match.span()
    for number, name in _names():
        if (span := match.span(number))[0] >= 0:
            return name, span
    raise LookupError("a pattern without a name")


def _extend_end(name: str, data: bytes, end: int) -> int:
    more = _CONTINUATIONS[name].match(data, end) if name in _CONTINUATIONS else None
    return end if more is None else more.end()


@functools.cache
def _patterns() -> Any:
    """All patterns as one."""
    keys = "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KEYS.items())
    return _compile("|".join((f"{_LEAD}(?:{keys})", *_FORMS.values())))


@functools.cache
def _names() -> tuple[tuple[int, str], ...]:
    return tuple(sorted((number, name.decode()) for name, number in _patterns().groupindex.items()))


def _compile(pattern: str) -> Any:
    import re2  # type: ignore[import-untyped]  # noqa: PLC0415  loaded only to redact

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # bytes, so that a lone surrogate is not an error
    options.log_errors = False
    options.max_mem = 64 << 20
    return re2.compile(pattern.encode(), options)


def _escape(text: str) -> str:
    return re.sub(r"([^0-9A-Za-z_])", r"\\\1", text) if text.isascii() else re.escape(text)


_NAMES: Final = re.compile(r"[^0-9a-z]")
_PASSWORDS: Final = ("password", "passwords", "passwd", "passphrase", "passwort", "pwd", "secret", "secrets")
_TOKENS: Final = ("apikey", "accesskey", "secretkey", "privatekey", "signingkey", "encryptionkey", "masterkey")
_MORE_TOKENS: Final = (
    "token",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "connectionstring",
    "accesskeyid",
)


@functools.lru_cache(maxsize=4_096)
def _kind_of_name(name: str) -> str | None:
    """Return the kind of secret that a name indicates."""
    plain = _NAMES.sub("", name.lower())
    if plain.endswith(_PASSWORDS):
        return "password"
    return "secret" if plain.endswith((*_TOKENS, *_MORE_TOKENS)) else None


_DEFAULT: Final = Redactor()


def redact(text: str) -> str:
    """Return the text without secrets."""
    return _DEFAULT.text(text)


def redact_json(value: Any) -> Any:
    """Return a JSON value without secrets."""
    return _DEFAULT.value(value)


# --- logs ------------------------------------------------------------------------------------------------------------


def redact_record(record: LogRecord) -> bool:
    """Filter for a logging handler: remove secrets from the message, its fields and its traceback."""
    try:
        text = record.getMessage()
        if record.exc_info is not None and record.exc_text is None:
            record.exc_text = "".join(_traceback(record.exc_info)).rstrip("\n")
    except Exception:  # noqa: BLE001  the message does not match its arguments, so it is withheld
        text = WITHHELD
    record.msg, record.args = redact(text), None
    if record.exc_text is not None:
        record.exc_text, record.exc_info = redact(record.exc_text), None
    for name, value in record.__dict__.items():
        if name not in _STANDARD_FIELDS and isinstance(value, str):
            record.__dict__[name] = redact(value)
    return True


def _traceback(exc_info: Any) -> list[str]:
    import traceback  # noqa: PLC0415  loaded only to log an error

    return traceback.format_exception(exc_info[1])


_STANDARD_FIELDS: Final = frozenset(
    ("name", "msg", "levelname", "pathname", "filename", "module", "exc_text", "funcName", "threadName", "processName")
)
