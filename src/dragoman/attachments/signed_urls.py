"""Signed URLs: ``{base}/storage/v1/object/sign/{bucket}/{path}?token={token}``.

``parse_signed_url`` parses a URL; ``UrlSigner`` signs and verifies URLs of files that our server sends. A token is
``v1.{kid}.{exp}.{owner}.{signature}``; the signature is an HMAC-SHA256 over method, bucket, path, user, team, expiry
and key id. Until it expires, anyone with the URL can use it any number of times, as an image in a page requires.
Invariant: a URL is valid only if it equals, byte for byte, the URL that we would sign.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from dragoman.attachments.paths import not_found_error, validate_bucket, validate_path
from dragoman.attachments.signing_keys import SigningKey, SigningKeys
from dragoman.attachments.types import MAX_TTL_S, SKEW_S, Location, Owner
from dragoman.errors import AttachmentError, AttachmentUrlError, InputError, SettingsError

ROUTE: Final = "/storage/v1/object/sign/"
_MAX_URL: Final = 4_096
_ROUTES: Final = re.compile(r"/storage/v1/(?:object|render/image)/sign/([^/]+)/(.+)")
_ORIGIN: Final = re.compile(
    r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]+)*"
)
_ANY_BASE: Final = re.compile(rf"({_ORIGIN.pattern}?)/storage/v1/")  # non-greedy, so that a path cannot be a base
_ESCAPE: Final = re.compile(
    r"%(?![0-9A-Fa-f]{2})|%(?:4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa]|3[0-9]|2[DdEeFf]|5[Ff]|7[Ee])"
)
_TOKEN: Final = re.compile(
    r"v1\.(?P<kid>[A-Za-z0-9_-]{1,32})\.(?P<exp>[1-9][0-9]{0,11})\.(?P<whose>[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]{43}"
)


class SignedUrl(msgspec.Struct, frozen=True):
    """A parsed URL."""

    location: Location
    token: str

    @property
    def bucket(self) -> str:
        """The bucket of the object."""
        return self.location.bucket

    @property
    def path(self) -> str:
        """The path of the object in its bucket."""
        return self.location.path

    def __repr__(self) -> str:
        return f"SignedUrl({self.location!r})"


def parse_signed_url(url: str, bases: tuple[str, ...] | None = None) -> SignedUrl:
    """Parse the bucket, the path and the token of a signed URL. The token is not verified.

    With ``bases``, the URL must begin with one of them. Without, any host is accepted: call ``Attachments.verify``
    before you use the result.
    """
    if not isinstance(url, str):
        raise InputError(f"a signed URL is a str, not {type(url).__name__}", remedy="Pass the URL as a str")
    whole, _, query = url.partition("?")
    if bases is None:
        base_match = _ANY_BASE.match(whole)
        bases = (base_match[1],) if base_match else ()
    base = next((base for base in bases if whole.startswith(f"{base}/storage/v1/")), None)
    if base is None or len(url) > _MAX_URL or not re.fullmatch(r"[!-~]+", url) or "#" in url or "\\" in url:
        raise _foreign_url_error()
    match = _ROUTES.fullmatch(whole.removeprefix(base))
    if match is None:
        raise _foreign_url_error()
    bucket, path = (_decode_part(part) for part in match.groups())
    return SignedUrl(Location(validate_bucket(bucket), validate_path(path)), _parse_token(query))


def validate_base_url(base: str) -> str:
    """The base of signed URLs: scheme, host in lower case, optional port and path, no trailing slash."""
    if not _ORIGIN.fullmatch(base):
        raise SettingsError(
            "not a valid base URL for attachments",
            where=base[:200],
            remedy="Use https://host, in lower case and without a trailing slash",
            code="invalid_base_url",
        )
    return base


def bad_signature_error() -> AttachmentUrlError:
    """The error of a token that was not signed for this URL."""
    return AttachmentUrlError("the signature of the URL is not valid", remedy="Request a new URL")


def expired_error() -> AttachmentUrlError:
    """The error of an expired token."""
    return AttachmentUrlError("the URL has expired", remedy="Request a new URL", code="url_expired")


def _foreign_url_error() -> AttachmentUrlError:
    return AttachmentUrlError(
        "not the URL of an attachment in our storage",
        remedy="Upload the file, and send the URL of the response",
        code="foreign_attachment_url",
    )


def _decode_part(part: str) -> str:
    """Decode a path segment once. An unnecessary escape is rejected: it would be a second spelling of a path."""
    if _ESCAPE.search(part):
        raise AttachmentError("the path has an unnecessary or incomplete percent escape", code="invalid_path")
    try:
        return unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError:
        raise AttachmentError("the path is not UTF-8", code="invalid_path") from None


def _parse_token(query: str) -> str:
    """The token of a query without other parameters."""
    match = re.fullmatch(r"token=([A-Za-z0-9_.-]+)", query)
    if match is None:
        raise bad_signature_error()
    return match[1]


# --- signing ---------------------------------------------------------------------------------------------------------


class UrlSigner:
    """Signs and verifies the URLs that our server answers.

    Without a base URL it signs paths, and verifies URLs with any base: a token is valid for one file of one owner.
    """

    def __init__(self, base_url: str | None, bucket: str, keys: SigningKeys) -> None:
        self._base = "" if base_url is None else validate_base_url(base_url)
        self._bucket = validate_bucket(bucket)
        self._keys = keys

    async def sign(self, path: str, owner: Owner, ttl_s: int, now: float) -> str:
        """A URL to read one attachment for a limited time."""
        expires = int(now) + max(1, min(ttl_s, MAX_TTL_S))
        return self._url(path, _make_token(self._keys.current, "GET", Location(self._bucket, path), owner, expires))

    def locate(self, url: str) -> Location:
        """The location in a URL of our format."""
        location = self._parse(url).location
        if location.bucket != self._bucket:
            raise not_found_error()
        return location

    def verify(self, url: str, now: float, method: str = "GET") -> tuple[Location, Owner]:
        """The location in a URL with a valid token, and its owner."""
        location = self.locate(url)
        token = self._parse(url).token
        owner, expires = self._read_token(location, token, method)
        expected = self._url(location.path, token)
        spelled = url if self._base else url[-len(expected) :]
        if not hmac.compare_digest(spelled.encode(), expected.encode()):
            raise bad_signature_error()
        if expires > now + MAX_TTL_S + SKEW_S:  # longer than any URL is valid: the clock was set back
            raise bad_signature_error()
        if expires <= now:
            raise expired_error()
        return location, owner

    def _parse(self, url: str) -> SignedUrl:
        return parse_signed_url(url, (self._base,) if self._base else None)

    async def confirm(self, url: str, owner: Owner, now: float) -> tuple[Location, Owner]:  # noqa: ARG002
        """The same as ``verify``."""
        return self.verify(url, now)

    def _read_token(self, location: Location, token: str, method: str) -> tuple[Owner, int]:
        """The owner and the expiry of a token with a valid signature."""
        match = _TOKEN.fullmatch(token)
        key = self._keys.get(match["kid"]) if match else None
        owner = _parse_owner(match["whose"]) if match else None
        if match is None or key is None or owner is None:
            raise bad_signature_error()
        expires = int(match["exp"])
        token_now = _make_token(key, method, location, owner, expires)
        if not hmac.compare_digest(token_now.encode(), token.encode()) or not key.can_have_signed(expires):
            raise bad_signature_error()
        return owner, expires

    def _url(self, path: str, token: str) -> str:
        return f"{self._base}{ROUTE}{quote(self._bucket, safe='')}/{quote(path)}?token={token}"


def _make_token(key: SigningKey, method: str, location: Location, owner: Owner, expires: int) -> str:
    owner_json = msgspec.json.encode((owner.user_id, owner.team_id))
    fields = ("v1", method, location.bucket, location.path, owner.user_id, _team(owner), str(expires), key.kid)
    # Length prefixes make the encoding of the fields unique.
    payload = b"".join(b"%d:%s," % (len(data), data) for data in (field.encode() for field in fields))
    digest = hmac.new(key.secret.encode(), payload, hashlib.sha256).digest()
    return f"v1.{key.kid}.{expires}.{to_base64url(owner_json)}.{to_base64url(digest)}"


def _team(owner: Owner) -> str:
    return "-" if owner.team_id is None else f"+{owner.team_id}"


def _parse_owner(text: str) -> Owner | None:
    try:
        user, team = msgspec.json.decode(from_base64url(text), type=tuple[str, str | None])
    except (ValueError, msgspec.MsgspecError):
        return None
    return Owner(user, team)


def to_base64url(data: bytes) -> str:
    """Encode with the URL alphabet, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_base64url(text: str) -> bytes:
    """Decode; ``ValueError`` for any text that ``to_base64url`` would not write."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if to_base64url(data) != text:
        raise ValueError("not canonical base64url")
    return data
