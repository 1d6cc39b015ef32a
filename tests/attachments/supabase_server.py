"""A server that behaves as Supabase storage does, on this machine: objects, keys of a service, and URLs that it signs.

What is missing is a 400 whose body says 404; a signed URL is answered relative to ``/storage/v1``; keys are ASCII.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import time
from typing import Any

from aiohttp import web

KEY = "service-role-key"
SECRET = "a-secret-of-at-least-thirty-two-characters"
_OBJECT_KEY = re.compile(r"[A-Za-z0-9_/!.*'() &$=@;:+,?-]+")


def jwt(claims: dict[str, Any], *, secret: str = SECRET, algorithm: str = "HS256", **head: Any) -> str:
    """A token, as that server signs them."""
    parts = [_part({"alg": algorithm, "typ": "JWT", **head}), _part(claims)]
    digest = {"HS256": hashlib.sha256, "HS512": hashlib.sha512}.get(algorithm)
    signed = hmac.new(secret.encode(), ".".join(parts).encode(), digest).digest() if digest else b""
    return ".".join([*parts, _base64url(signed)])


def _part(value: dict[str, Any]) -> str:
    return _base64url(json.dumps(value).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SupabaseServer:
    """The server, and what it keeps. It signs with the secret of the project, or with a key that only it has."""

    def __init__(self) -> None:
        self.signing: dict[str, Any] = {}
        self.kept: dict[str, tuple[bytes, str]] = {}
        self.asked: list[str] = []
        self.answers: dict[str, web.Response] = {}  # what to answer instead, by method and route
        self.url = ""

    def sign_with_own_key(self) -> None:
        """Sign URLs as newer projects do, with a key of the storage service itself."""
        key = {"secret": "only-the-storage-knows-this-key-of-its-own", "algorithm": "HS512"}
        self.signing = {**key, "kid": "storage-url-signing-key_1"}

    def token(self, **claims: Any) -> str:
        """A token, signed as this server signs."""
        return jwt(claims, **self.signing)

    async def start(self) -> web.AppRunner:
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_route("*", "/storage/v1/object/sign/{bucket}/{path:.+}", self._sign)
        app.router.add_route("*", "/storage/v1/object/authenticated/{bucket}/{path:.+}", self._object)
        app.router.add_post("/storage/v1/object/list/{bucket}", self._list)
        app.router.add_route("*", "/storage/v1/object/{bucket}/{path:.+}", self._object)
        app.router.add_delete("/storage/v1/object/{bucket}", self._remove)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def _object(self, request: web.Request) -> web.Response:
        name = self._name(request)
        if (instead := self.answers.get(request.method)) is not None:
            return instead
        if not self._is_ours(request):
            return web.json_response({"statusCode": "403", "error": "Unauthorized"}, status=400)
        match request.method:
            case "POST" if not _OBJECT_KEY.fullmatch(name):
                return web.json_response({"statusCode": "400", "error": "InvalidKey"}, status=400)
            case "POST" if name in self.kept:
                return web.json_response({"statusCode": "409", "error": "Duplicate"}, status=400)
            case "POST":
                self.kept[name] = await request.read(), request.headers["Content-Type"]
                return web.json_response({"Key": name, "Id": "1"})
            case "GET" | "HEAD" if name in self.kept:
                data, kind = self.kept[name]
                return web.Response(body=data, headers={"Content-Type": kind})
            case "DELETE" if name in self.kept:
                del self.kept[name]
                return web.json_response({"message": "Successfully deleted"})
            case _:
                return _missing()

    async def _sign(self, request: web.Request) -> web.Response:
        name = self._name(request)
        if request.method == "GET":
            assert "Authorization" not in request.headers  # else a bad token would do
            return self.answers.get("GET sign") or self._served(name, request.query.get("token", ""))
        if (instead := self.answers.get("sign")) is not None:
            return instead
        if not self._is_ours(request):
            return web.json_response({"statusCode": "403", "error": "Unauthorized"}, status=400)
        if name not in self.kept:
            return _missing()
        now, lasts = int(time.time()), (await request.json())["expiresIn"]
        token = self.token(url=name, scope="download", iat=now, exp=now + lasts)
        return web.json_response({"signedURL": f"/object/sign/{name}?token={token}"})

    async def _list(self, request: web.Request) -> web.Response:
        """One level of names: a file has an id, and a folder has none."""
        asked = await request.json()
        before = f"{request.match_info['bucket']}/{asked['prefix']}/"
        names = [name.removeprefix(before) for name in sorted(self.kept) if name.startswith(before)]
        found = {name.partition("/")[0]: None if "/" in name else "1" for name in names}
        listed = [{"name": name, "id": known} for name, known in found.items()]
        return self.answers.get("list") or web.json_response(listed[: asked["limit"]])

    async def _remove(self, request: web.Request) -> web.Response:
        bucket, names = request.match_info["bucket"], (await request.json())["prefixes"]
        if "keep" not in self.answers:
            for name in names:
                self.kept.pop(f"{bucket}/{name}", None)
        return web.json_response([{"name": name} for name in names])

    def _served(self, name: str, token: str) -> web.Response:
        try:
            _, body, _ = token.split(".")
            claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except ValueError:
            claims = {}
        is_good = self.token(**claims) == token and claims["url"] == name and claims["exp"] > time.time()
        if not is_good or claims["scope"] != "download":
            return web.json_response({"statusCode": "400", "error": "InvalidJWT"}, status=400)
        if name not in self.kept:
            return _missing()
        data, kind = self.kept[name]
        return web.Response(body=data, headers={"Content-Type": kind})

    def _name(self, request: web.Request) -> str:
        self.asked.append(f"{request.method} {request.path}")
        return f"{request.match_info['bucket']}/{request.match_info['path']}"

    def _is_ours(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer {KEY}" and request.headers.get("apikey") == KEY


def _missing() -> web.Response:
    return web.json_response({"statusCode": "404", "error": "not_found", "message": "Object not found"}, status=400)
