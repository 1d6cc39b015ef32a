"""Signed URLs: ``{base}/storage/v1/object/sign/{bucket}/{path}?token={token}``, made and known again.

``parse_signed_url`` takes a URL apart and refuses whatever is not of our storage; ``OwnUrls`` signs for storages that
we serve ourselves. A token is ``v1.{kid}.{exp}.{whose}.{signature}``; the signature is an HMAC-SHA256 over the method,
bucket, path, user, team, end and key. Until it is over, a URL can be used any number of times by whoever has it, as a
picture in a page has to be. The one rule: a URL is good only if it is, sign for sign, the one that we would make now.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from typing import Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from dragoman.attachments.keys import SigningKey, SigningKeys
from dragoman.attachments.paths import checked_bucket, checked_path, missing
from dragoman.attachments.values import MAX_TTL_S, SKEW_S, Owner, Place
from dragoman.errors import AttachmentError, AttachmentUrlError, InputError, SettingsError

ROUTE: Final = "/storage/v1/object/sign/"
_MAX_URL: Final = 4_096
_ROUTES: Final = re.compile(r"/storage/v1/(?:object|render/image)/sign/([^/]+)/(.+)")
_ORIGIN: Final = re.compile(
    r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~-]+)*"
)
_ANY_BASE: Final = re.compile(rf"({_ORIGIN.pattern}?)/storage/v1/")  # the shortest, so that a path cannot be a base
_ESCAPE: Final = re.compile(
    r"%(?![0-9A-Fa-f]{2})|%(?:4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9Aa]|3[0-9]|2[DdEeFf]|5[Ff]|7[Ee])"
)
_TOKEN: Final = re.compile(
    r"v1\.(?P<kid>[A-Za-z0-9_-]{1,32})\.(?P<exp>[1-9][0-9]{0,11})\.(?P<whose>[A-Za-z0-9_-]+)\.[A-Za-z0-9_-]{43}"
)


class SignedUrl(msgspec.Struct, frozen=True):
    """A URL, taken apart."""

    place: Place
    token: str

    @property
    def bucket(self) -> str:
        """The bucket of the object."""
        return self.place.bucket

    @property
    def path(self) -> str:
        """The path of the object in its bucket."""
        return self.place.path

    def __repr__(self) -> str:
        return f"SignedUrl({self.place!r})"


def parse_signed_url(url: str, bases: tuple[str, ...] | None = None) -> SignedUrl:
    """The bucket, the path and the token of a signed URL. The token is not verified.

    With ``bases``, the URL has to begin with one of them exactly. Without, it may be of any storage that signs in this
    format: who acts on the result asks ``Attachments.verify`` whether the URL is ours.
    """
    if not isinstance(url, str):
        raise InputError(f"a signed URL is a text, not {type(url).__name__}", remedy="Give the URL as a str")
    whole, _, query = url.partition("?")
    if bases is None:
        found_base = _ANY_BASE.match(whole)
        bases = (found_base[1],) if found_base else ()
    base = next((base for base in bases if whole.startswith(f"{base}/storage/v1/")), None)
    if base is None or len(url) > _MAX_URL or not re.fullmatch(r"[!-~]+", url) or "#" in url or "\\" in url:
        raise _foreign()
    found = _ROUTES.fullmatch(whole.removeprefix(base))
    if found is None:
        raise _foreign()
    bucket, path = (_decoded(part) for part in found.groups())
    return SignedUrl(Place(checked_bucket(bucket), checked_path(path)), _token(query))


def checked_base(base: str) -> str:
    """A base of URLs: a scheme, a host in small letters, perhaps a port and a path; no slash at its end."""
    if not _ORIGIN.fullmatch(base):
        raise SettingsError(
            "it cannot be what the URLs of attachments begin with",
            where=base[:200],
            remedy="Write it as https://host, in small letters and without a slash at its end",
            code="invalid_base_url",
        )
    return base


def changed() -> AttachmentUrlError:
    """A token that we did not make for this URL."""
    return AttachmentUrlError("the URL was changed, or was not signed by us", remedy="Ask for a new one")


def over() -> AttachmentUrlError:
    """A token that was good."""
    return AttachmentUrlError("the URL is over", remedy="Ask for a new one", code="url_expired")


def _foreign() -> AttachmentUrlError:
    return AttachmentUrlError(
        "the URL does not lead to an attachment in our storage",
        remedy="Upload the file first, and send the URL that is answered",
        code="foreign_attachment_url",
    )


def _decoded(part: str) -> str:
    """Decoded once. An escape that nobody needs to write is a way to write one path in two ways."""
    if _ESCAPE.search(part):
        raise AttachmentError("the path has an escape that it does not need, or half of one", code="invalid_path")
    try:
        return unquote_to_bytes(part).decode("utf-8")
    except UnicodeDecodeError:
        raise AttachmentError("the path is not UTF-8", code="invalid_path") from None


def _token(query: str) -> str:
    """The token of a query that is nothing else: one more name could mean something to somebody who reads it later."""
    found = re.fullmatch(r"token=([A-Za-z0-9_.-]+)", query)
    if found is None:
        raise changed()
    return found[1]


# --- our own ---------------------------------------------------------------------------------------------------------


class OwnUrls:
    """URLs that this server itself answers."""

    def __init__(self, base_url: str, bucket: str, keys: SigningKeys) -> None:
        self._base = checked_base(base_url)
        self._bucket = checked_bucket(bucket)
        self._keys = keys

    async def made(self, path: str, owner: Owner, ttl_s: int, now: float) -> str:
        """A URL to read one attachment, for a while."""
        expires = int(now) + max(1, min(ttl_s, MAX_TTL_S))
        return self._url(path, _signed(self._keys.signing, "GET", Place(self._bucket, path), owner, expires))

    def place(self, url: str) -> Place:
        """Where a URL leads, if it can be one of ours."""
        place = parse_signed_url(url, (self._base,)).place
        if place.bucket != self._bucket:
            raise missing()
        return place

    def verified(self, url: str, now: float, method: str = "GET") -> tuple[Place, Owner]:
        """Where a URL of ours leads, and for whom it was made."""
        place = self.place(url)
        token = parse_signed_url(url, (self._base,)).token
        owner, expires = self._said(place, token, method)
        if not hmac.compare_digest(url.encode(), self._url(place.path, token).encode()):
            raise changed()
        if expires > now + MAX_TTL_S + SKEW_S:  # no URL is ever good for so long: the clock was set back
            raise changed()
        if expires <= now:
            raise over()
        return place, owner

    async def confirmed(self, url: str, owner: Owner, now: float) -> tuple[Place, Owner]:  # noqa: ARG002
        """The same: we have every key that signs our own URLs."""
        return self.verified(url, now)

    def _said(self, place: Place, token: str, method: str) -> tuple[Owner, int]:
        """What a token says, if it is the one that we would make to say so."""
        found = _TOKEN.fullmatch(token)
        key = self._keys.named(found["kid"]) if found else None
        owner = _owner_from(found["whose"]) if found else None
        if found is None or key is None or owner is None:
            raise changed()
        expires = int(found["exp"])
        made = _signed(key, method, place, owner, expires)
        if not hmac.compare_digest(made.encode(), token.encode()) or not key.may_have_signed(expires):
            raise changed()
        return owner, expires

    def _url(self, path: str, token: str) -> str:
        return f"{self._base}{ROUTE}{quote(self._bucket, safe='')}/{quote(path)}?token={token}"


def _signed(key: SigningKey, method: str, place: Place, owner: Owner, expires: int) -> str:
    whose = msgspec.json.encode((owner.user_id, owner.team_id))
    fields = ("v1", method, place.bucket, place.path, owner.user_id, _team(owner), str(expires), key.kid)
    # Each with its length before it: no two lists of fields are written alike.
    written = b"".join(b"%d:%s," % (len(data), data) for data in (field.encode() for field in fields))
    digest = hmac.new(key.secret.encode(), written, hashlib.sha256).digest()
    return f"v1.{key.kid}.{expires}.{base64url(whose)}.{base64url(digest)}"


def _team(owner: Owner) -> str:
    return "-" if owner.team_id is None else f"+{owner.team_id}"


def _owner_from(text: str) -> Owner | None:
    try:
        user, team = msgspec.json.decode(from_base64url(text), type=tuple[str, str | None])
    except (ValueError, msgspec.MsgspecError):
        return None
    return Owner(user, team)


def base64url(data: bytes) -> str:
    """In the alphabet of URLs, without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def from_base64url(text: str) -> bytes:
    """What was written so; ``ValueError`` for everything that ``base64url`` would not have written."""
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if base64url(data) != text:
        raise ValueError("not as we write it")
    return data
