"""A local server that behaves like Supabase storage: objects, service keys and signed URLs.

A missing object returns status 400 with 404 in its body. Signed URLs are relative to ``/storage/v1``. Keys are ASCII.
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
    """Return a token as the server signs it."""
    parts = [_part({"alg": algorithm, "typ": "JWT", **head}), _part(claims)]
    digest = {"HS256": hashlib.sha256, "HS512": hashlib.sha512}.get(algorithm)
    signature = hmac.new(secret.encode(), ".".join(parts).encode(), digest).digest() if digest else b""
    return ".".join([*parts, _base64url(signature)])


def _part(value: dict[str, Any]) -> str:
    return _base64url(json.dumps(value).encode())


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class SupabaseServer:
    """The server and its objects. It signs with the secret of the project or with its own key."""

    def __init__(self) -> None:
        self.signing: dict[str, Any] = {}
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.requests: list[str] = []
        self.responses: dict[str, web.Response] = {}  # responses that replace the real ones, by method and route
        self.url = ""

    def sign_with_own_key(self) -> None:
        """Sign URLs with a key of the storage service, as newer projects do."""
        key = {"secret": "only-the-storage-knows-this-key-of-its-own", "algorithm": "HS512"}
        self.signing = {**key, "kid": "storage-url-signing-key_1"}

    def token(self, **claims: Any) -> str:
        """Return a token signed with the current key."""
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
        if (override := self.responses.get(request.method)) is not None:
            return override
        if not self._is_authorized(request):
            return web.json_response({"statusCode": "403", "error": "Unauthorized"}, status=400)
        match request.method:
            case "POST" if not _OBJECT_KEY.fullmatch(name):
                return web.json_response({"statusCode": "400", "error": "InvalidKey"}, status=400)
            case "POST" if name in self.objects:
                return web.json_response({"statusCode": "409", "error": "Duplicate"}, status=400)
            case "POST":
                self.objects[name] = await request.read(), request.headers["Content-Type"]
                return web.json_response({"Key": name, "Id": "1"})
            case "GET" | "HEAD" if name in self.objects:
                data, kind = self.objects[name]
                return web.Response(body=data, headers={"Content-Type": kind})
            case "DELETE" if name in self.objects:
                del self.objects[name]
                return web.json_response({"message": "Successfully deleted"})
            case _:
                return _reply_404()

    async def _sign(self, request: web.Request) -> web.Response:
        name = self._name(request)
        if request.method == "GET":
            assert "Authorization" not in request.headers  # with that header, an invalid token would be accepted
            return self.responses.get("GET sign") or self._serve_signed(name, request.query.get("token", ""))
        if (override := self.responses.get("sign")) is not None:
            return override
        if not self._is_authorized(request):
            return web.json_response({"statusCode": "403", "error": "Unauthorized"}, status=400)
        if name not in self.objects:
            return _reply_404()
        now, ttl_s = int(time.time()), (await request.json())["expiresIn"]
        token = self.token(url=name, scope="download", iat=now, exp=now + ttl_s)
        return web.json_response({"signedURL": f"/object/sign/{name}?token={token}"})

    async def _list(self, request: web.Request) -> web.Response:
        """List one level of names. A file has an id, a folder does not."""
        query = await request.json()
        prefix = f"{request.match_info['bucket']}/{query['prefix']}/"
        names = [name.removeprefix(prefix) for name in sorted(self.objects) if name.startswith(prefix)]
        ids = {name.partition("/")[0]: None if "/" in name else "1" for name in names}
        listed = [{"name": name, "id": object_id} for name, object_id in ids.items()]
        return self.responses.get("list") or web.json_response(listed[: query["limit"]])

    async def _remove(self, request: web.Request) -> web.Response:
        bucket, names = request.match_info["bucket"], (await request.json())["prefixes"]
        if "keep" not in self.responses:
            for name in names:
                self.objects.pop(f"{bucket}/{name}", None)
        return web.json_response([{"name": name} for name in names])

    def _serve_signed(self, name: str, token: str) -> web.Response:
        try:
            _, body, _ = token.split(".")
            claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except ValueError:
            claims = {}
        is_valid = self.token(**claims) == token and claims["url"] == name and claims["exp"] > time.time()
        if not is_valid or claims["scope"] != "download":
            return web.json_response({"statusCode": "400", "error": "InvalidJWT"}, status=400)
        if name not in self.objects:
            return _reply_404()
        data, kind = self.objects[name]
        return web.Response(body=data, headers={"Content-Type": kind})

    def _name(self, request: web.Request) -> str:
        self.requests.append(f"{request.method} {request.path}")
        return f"{request.match_info['bucket']}/{request.match_info['path']}"

    def _is_authorized(self, request: web.Request) -> bool:
        return request.headers.get("Authorization") == f"Bearer {KEY}" and request.headers.get("apikey") == KEY


def _reply_404() -> web.Response:
    return web.json_response({"statusCode": "404", "error": "not_found", "message": "Object not found"}, status=400)
