"""The token of a server without keys, for callers on this machine that are not the server's own user.

    token = LocalToken()
    token.url(address)               the address with the token in it, to be printed once
    token.is_bearer(header)          whether an Authorization header holds it
    token.cookie(uid)                what a browser of that user keeps after its first visit

A browser sends a cookie to every port of a host, so also to servers of other users. Therefore a cookie is not the
token: it is good only from the user to whom it was given.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

PARAMETER: Final = "token"


def cookie_name(port: int | None) -> str:
    """The name of the cookie: servers at other ports of this machine have their own."""
    return f"dragoman_token_{port}"


class LocalToken:
    """A secret that is made when a server starts, and forgotten when it ends."""

    def __init__(self, text: str | None = None) -> None:
        self.text = text or secrets.token_urlsafe(32)

    def __repr__(self) -> str:
        return "LocalToken(…)"

    def url(self, address: str) -> str:
        """The address of the page with the token in it."""
        return f"{address}/?{PARAMETER}={self.text}"

    def is_token(self, text: str) -> bool:
        """Whether a text is the token."""
        return hmac.compare_digest(text.encode("utf-8", "replace"), self.text.encode())

    def is_bearer(self, authorization: str) -> bool:
        """Whether the value of an Authorization header holds the token."""
        scheme, _, text = authorization.partition(" ")
        return scheme.lower() == "bearer" and self.is_token(text.strip())

    def cookie(self, uid: int | None) -> str:
        """What a browser of this user keeps."""
        return hmac.new(self.text.encode(), f"cookie of user {uid}".encode(), "sha256").hexdigest()

    def is_cookie(self, text: str | None, uid: int | None) -> bool:
        """Whether a browser of this user has been given this."""
        return text is not None and hmac.compare_digest(text.encode("utf-8", "replace"), self.cookie(uid).encode())
