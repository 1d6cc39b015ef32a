"""The web page: what ``make setup`` built from ``web/``, served as it is.

    GET /                 the page itself, asked for anew each time
    GET /static/{name}    what it is made of; names hold a hash of the content, so browsers keep these for ever

Anybody may load the page; what it shows it asks the API for, with the key of whoever looks at it. The one rule: the
page runs what came with it and nothing else, so its policy allows no script, no style and no host but this one;
pictures may also come from where attachments are kept, if clients read them there.
"""

from __future__ import annotations

import functools
import gzip
import importlib.resources
import mimetypes
from typing import Final
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from dragoman.server.endpoint import Endpoint, Media, Query
from dragoman.server.local_token import PARAMETER, cookie_name
from dragoman.server.principal import uid_of
from dragoman.server.refusing import Refusal, not_found
from dragoman.server.state import doors_of

_PAGE: Final = "index.html"
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:{pictures}; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".txt": "text/plain; charset=utf-8"}


class Built(msgspec.Struct, frozen=True):
    """A file of the page."""

    data: bytes
    packed: bytes  # the same, compressed
    media_type: str


async def page(request: Request) -> Response:
    """The page. Who comes with the token of the server gets a cookie for it, and an address without it."""
    if PARAMETER in request.query_params:
        return await _admitted(request)
    built = built_files().get(_PAGE)
    if built is None:
        raise Refusal(404, "page_not_built", "The web page is not built here; make setup builds it.")
    policy = _POLICY.format(pictures=_elsewhere(doors_of(request).options.attachments))
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return _sent(request, built, headers)


async def _admitted(request: Request) -> Response:
    doors, uid = doors_of(request), await uid_of(request)
    sent = Response(status_code=303, headers={"location": "./"})
    if not doors.options.demands_keys and doors.token.is_token(request.query_params[PARAMETER]):
        sent.set_cookie(cookie_name(doors.options.port), doors.token.cookie(uid), httponly=True, samesite="strict")
    return sent


async def part(request: Request) -> Response:
    """A part of the page."""
    name = str(request.path_params["name"])
    built = built_files().get(name)
    if built is None or name == _PAGE:
        raise not_found()
    return _sent(request, built, {"cache-control": _FOR_EVER})


@functools.cache
def built_files() -> dict[str, Built]:
    """Every file of the page, by its name; none if it was not built."""
    folder = importlib.resources.files("dragoman").joinpath("web", "static")
    if not folder.is_dir():
        return {}
    return {one.name: _built(one.name, one.read_bytes()) for one in folder.iterdir() if one.is_file()}


def _built(name: str, data: bytes) -> Built:
    ending = f".{name.rpartition('.')[2]}"
    media_type = _TYPES.get(ending) or mimetypes.types_map.get(ending, "application/octet-stream")
    return Built(data, gzip.compress(data, mtime=0), media_type)


def _sent(request: Request, built: Built, headers: dict[str, str]) -> Response:
    accepted = {one.split(";")[0].strip() for one in request.headers.get("accept-encoding", "").split(",")}
    headers |= {"vary": "accept-encoding"}
    if "gzip" not in accepted:
        return Response(built.data, media_type=built.media_type, headers=headers)
    return Response(built.packed, media_type=built.media_type, headers={**headers, "content-encoding": "gzip"})


@functools.lru_cache(maxsize=8)
def _elsewhere(attachments: str | None) -> str:
    """Where pictures of messages are served by others, as a part of the policy."""
    parts = urlsplit(attachments or "")
    options = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    match parts.scheme:
        case "supabase":
            return "".join(f" https://{host}" for host in (parts.netloc, *options.get("also", "").split(",")) if host)
        case "s3" if options.get("direct") == "true" and options.get("endpoint"):
            endpoint = urlsplit(options["endpoint"])
            return f" {endpoint.scheme}://{endpoint.netloc}"
        case _:
            return ""


ENDPOINTS = (
    Endpoint(
        "GET",
        "/",
        page,
        name="page",
        summary="The web page",
        answers={200: Media("text/html", {"type": "string"}), 303: None},
        query=(Query(PARAMETER, summary="The token that the server printed, in return for a cookie"),),
        public=True,
    ),
    Endpoint(
        "GET",
        "/static/{name}",
        part,
        name="page_part",
        summary="What the web page is made of",
        answers={200: (Media("text/javascript"), Media("text/css"), Media("image/svg+xml"), Media("text/plain"))},
        public=True,
    ),
)
