"""Attachments in Supabase storage: ``supabase://project.supabase.co/bucket``.

The storage stores and serves the files and signs their URLs. The service key and optionally the token secret come from
the environment (``SUPABASE_SERVICE_ROLE_KEY``, ``SUPABASE_JWT_SECRET``). A token is a JWT. If it is signed with the
secret (HS256), it is verified here: signature, scope, exact path, expiry. Newer projects sign URLs with a key that only
the storage has; such a token is sent to the storage, which verifies it. Invariant: only the configured host is called,
never a host from a client.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

import msgspec

from dragoman.attachments.paths import not_found_error, validate_bucket, validate_owner
from dragoman.attachments.signed_urls import (
    bad_signature_error,
    expired_error,
    from_base64url,
    parse_signed_url,
    validate_base_url,
)
from dragoman.attachments.types import MAX_TTL_S, SKEW_S, Chunks, Location, Owner
from dragoman.errors import (
    AttachmentUrlError,
    DragomanError,
    SettingsError,
    StorageError,
    StoreUnusableError,
    UnknownAttachmentError,
)
from dragoman.settings import Secret

if TYPE_CHECKING:
    import aiohttp

KEY_VARIABLE: Final = "SUPABASE_SERVICE_ROLE_KEY"
JWT_VARIABLE: Final = "SUPABASE_JWT_SECRET"
_TIMEOUT_S: Final = 60
_FIRST_BYTE: Final = {"Range": "bytes=0-0"}
_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class SupabaseStorage:
    """A bucket of a project, and the signer of its URLs."""

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        bucket = parts.path.strip("/")
        scheme = options.get("scheme", "https")
        is_local = parts.hostname in _LOCAL_HOSTS
        if not parts.hostname or parts.username or not bucket or "/" in bucket or set(options) - {"scheme", "also"}:
            raise _url_error("not the URL of a bucket of Supabase storage")
        if scheme not in ("https", "http") or (scheme == "http" and not is_local):
            raise _url_error("http would send the key in plain text")
        self.bucket = validate_bucket(bucket)
        self._base = validate_base_url(f"{scheme}://{parts.netloc}")
        also = tuple(validate_base_url(f"https://{host}") for host in options.get("also", "").split(",") if host)
        self._bases = (self._base, *also)
        self._key = _key_from_environment(environment, KEY_VARIABLE)
        self._secret = Secret(environment[JWT_VARIABLE]) if environment.get(JWT_VARIABLE) else None
        self._session: aiohttp.ClientSession | None = None

    # --- bytes -------------------------------------------------------------------------------------------------------

    async def write(self, path: str, data: bytes, headers: Mapping[str, str]) -> None:
        request_headers = {
            "Content-Type": headers["Content-Type"],
            "Cache-Control": "private, no-store",
            "x-upsert": "false",
        }
        await self._request("POST", "object", path, data=data, headers=request_headers)

    async def size(self, path: str) -> int:
        size, chunks = await self.stream(path, method="HEAD")
        await chunks.close()
        return size

    async def stream(self, path: str, method: str = "GET") -> tuple[int, Chunks]:
        response = await self._send(method, "object/authenticated", path)
        if response.status >= 300:
            raise await _error_from(response)
        chunks = Chunks(_chunks(response), response.release)
        if "Content-Length" not in response.headers:
            await chunks.close()
            raise _storage_error("the response has no Content-Length")
        return int(response.headers["Content-Length"]), chunks

    async def delete(self, path: str) -> bool:
        try:
            await self._request("DELETE", "object", path)
        except UnknownAttachmentError:
            return False
        return True

    async def delete_under(self, prefix: str) -> int:
        deleted = 0
        previous: list[tuple[str, bool]] = []
        while entries := await self._list(prefix):
            if entries == previous:
                raise _storage_error("a deletion had no effect")
            previous = entries
            for name, is_folder in entries:
                deleted += await self.delete_under(f"{prefix}{name}/") if is_folder else 1
            files = [prefix + name for name, is_folder in entries if not is_folder]
            if files:
                await self._request("DELETE", "object", None, json={"prefixes": files})
        return deleted

    async def _list(self, prefix: str) -> list[tuple[str, bool]]:
        """The first 1,000 entries of a folder: names, and whether each is a folder."""
        body = await self._request(
            "POST", "object/list", None, json={"prefix": prefix.rstrip("/"), "limit": 1_000, "offset": 0}
        )
        try:
            items = msgspec.json.decode(body, type=list[dict[str, Any]])
            return [(str(item["name"]), item.get("id") is None) for item in items]
        except (msgspec.MsgspecError, KeyError):
            raise _storage_error("the response is not a list") from None

    async def direct_url(self, path: str, ttl_s: int) -> str | None:  # noqa: ARG002  its signed URLs are direct
        return None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, method: str, route: str, path: str | None, *, json: object = None, **fields: Any) -> bytes:
        if json is not None:
            fields = {"data": msgspec.json.encode(json), "headers": {"Content-Type": "application/json"}}
        response = await self._send(method, route, path, **fields)
        if response.status >= 300:
            raise await _error_from(response)
        return b"".join([chunk async for chunk in _chunks(response)])

    async def _send(
        self,
        method: str,
        route: str,
        path: str | None,
        *,
        headers: Mapping[str, str] | None = None,
        data: bytes | None = None,
        query: str = "",
        with_key: bool = True,
    ) -> aiohttp.ClientResponse:
        """Send a request about an object, or about the bucket if there is no path."""
        import aiohttp  # noqa: PLC0415  slow to import
        from yarl import URL  # noqa: PLC0415

        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S, sock_connect=5), cookie_jar=aiohttp.DummyCookieJar()
            )
        secret = self._key.reveal()
        auth_headers = {"Authorization": f"Bearer {secret}", "apikey": secret} if with_key else {}
        object_path = quote(self.bucket, safe="") + ("" if path is None else f"/{quote(path)}")
        address = URL(f"{self._base}/storage/v1/{route}/{object_path}{query}", encoded=True)
        try:
            return await self._session.request(
                method,
                address,
                data=None if data is None else io.BytesIO(data),  # aiohttp sends large bytes in one blocking step
                headers={**auth_headers, "Accept-Encoding": "identity", **(headers or {})},
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _storage_error(type(error).__name__) from error

    # --- URLs --------------------------------------------------------------------------------------------------------

    async def sign(self, path: str, owner: Owner, ttl_s: int, now: float) -> str:  # noqa: ARG002  own clock
        """A URL signed by the storage, checked for its location."""
        expires_in_s = max(1, min(ttl_s, MAX_TTL_S))
        answer = await self._request("POST", "object/sign", path, json={"expiresIn": expires_in_s})
        try:
            relative = msgspec.json.decode(answer, type=dict[str, Any])["signedURL"]
            url = f"{self._base}/storage/v1{relative}"
            is_right = self.locate(url) == Location(self.bucket, path)
        except (msgspec.MsgspecError, KeyError, DragomanError):
            is_right = False
        if not is_right:
            raise _storage_error("the storage signed a different URL")
        return url

    def locate(self, url: str) -> Location:
        """The location in a URL of this storage."""
        location = parse_signed_url(url, self._bases).location
        if location.bucket != self.bucket:
            raise not_found_error()
        return location

    def verify(self, url: str, now: float) -> tuple[Location, None]:
        """The location in a URL with a valid token. The token has no owner; the path has."""
        location = self.locate(url)
        if self._secret is None:
            raise AttachmentUrlError(
                "the token cannot be verified without its secret",
                remedy=f"Set {JWT_VARIABLE}",
            )
        claims = verify_claims(parse_signed_url(url, self._bases).token, self._secret.reveal())
        scope = claims.get("scope", "upload" if "upsert" in claims else "download")
        expires_at, issued_at = claims.get("exp"), claims.get("iat", 0)
        if claims.get("url") != f"{location.bucket}/{location.path}" or scope != "download":
            raise bad_signature_error()
        if type(expires_at) is not int or type(issued_at) is not int or issued_at > now + SKEW_S:
            raise bad_signature_error()
        if expires_at <= now:
            raise expired_error()
        return location, None

    async def confirm(self, url: str, owner: Owner, now: float) -> tuple[Location, None]:
        """The same, but send a token with another signature to the storage, if the path is this owner's."""
        signed_url = parse_signed_url(url, self._bases)
        if self._has_own_signature(signed_url.token):
            return self.verify(url, now)
        location = self.locate(url)
        validate_owner(location.path, owner)
        expires_at = _read_claims_without_check(signed_url.token).get("exp")
        if type(expires_at) is int and expires_at <= now:
            raise expired_error()
        await self._check_with_storage(location.path, signed_url.token)
        return location, None

    def _has_own_signature(self, token: str) -> bool:
        if self._secret is None:
            return False
        try:
            verify_claims(token, self._secret.reveal())
        except AttachmentUrlError:
            return False
        return True

    async def _check_with_storage(self, path: str, token: str) -> None:
        """Verify a token by reading the first byte of the file with it."""
        response = await self._send(
            "GET", "object/sign", path, query=f"?token={token}", headers=_FIRST_BYTE, with_key=False
        )
        if response.status in (200, 206):
            response.close()
            return
        error = await _error_from(response)
        raise bad_signature_error() if response.status in (400, 401, 403) and isinstance(error, StorageError) else error


def _read_claims_without_check(token: str) -> dict[str, Any]:
    """The claims of a JWT without verification, for an error message only."""
    try:
        return msgspec.json.decode(from_base64url(token.split(".")[1]), type=dict[str, Any])
    except (ValueError, IndexError, msgspec.MsgspecError):
        raise bad_signature_error() from None


def verify_claims(token: str, secret: str) -> dict[str, Any]:
    """The claims of a JWT that is signed with the secret (HS256)."""
    head, _, remainder = token.partition(".")
    payload, _, signature = remainder.partition(".")
    try:
        header = msgspec.json.decode(from_base64url(head), type=dict[str, Any])
        actual = from_base64url(signature)
        claims = msgspec.json.decode(from_base64url(payload), type=dict[str, Any])
    except (ValueError, msgspec.MsgspecError):
        raise bad_signature_error() from None
    digest = hmac.new(secret.encode(), f"{head}.{payload}".encode(), hashlib.sha256).digest()
    if header.get("alg") != "HS256" or "crit" in header or not hmac.compare_digest(digest, actual):
        raise bad_signature_error()
    return claims


async def _chunks(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    import aiohttp  # noqa: PLC0415

    try:
        async for chunk in response.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise _storage_error(type(error).__name__) from error
    finally:
        response.release()


async def _error_from(response: aiohttp.ClientResponse) -> DragomanError:
    """The error of a failed response. A missing file may be a 400 with 404 in its body."""
    try:
        text = await response.content.read(4_096)
        details = msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except msgspec.MsgspecError:
        details = {}
    finally:
        response.release()
    is_missing = response.status == 404 or (response.status == 400 and str(details.get("statusCode")) == "404")
    is_head = response.method == "HEAD" and response.status == 400  # without a body
    return not_found_error() if is_missing or is_head else _storage_error(f"status {response.status}")


def _storage_error(reason: str) -> StorageError:
    return StorageError(f"a request to Supabase storage failed ({reason})")


def _key_from_environment(environment: Mapping[str, str], variable: str) -> Secret:
    text = environment.get(variable, "").strip()
    if not text:
        raise SettingsError("there is no key for Supabase storage", remedy=f"Set {variable}", code="missing_key")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise SettingsError(
            "the key has an invalid character", where=variable, remedy="Copy the key again", code="invalid_key"
        )
    return Secret(text)


def _url_error(reason: str) -> StoreUnusableError:
    return StoreUnusableError(reason, remedy="Use supabase://project.supabase.co/bucket", code="not_a_store")
