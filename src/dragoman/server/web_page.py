"""The web page that ``make setup`` builds from ``web/``.

    GET /                     the page, revalidated on every load
    GET /service-worker.js    opens the page without a connection; revalidated on every load
    GET /static/{name}        its files; names contain a hash of the content, so browsers cache them for ever
    GET /frame                the page for previews of HTML and diagrams, in a sandbox without origin and network

The page itself needs no API key; it sends one with its API requests. Its content security policy allows scripts, styles
and connections only from this server. Images may also come from the attachment storage, if clients read them there.
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

from dragoman.server.auth.local_access import PARAMETER, cookie_name
from dragoman.server.auth.principal import get_peer_uid
from dragoman.server.http.endpoint import Media, Query, public_endpoint
from dragoman.server.http.http_errors import ApiError, not_found_error
from dragoman.server.http.requests import app_state
from dragoman.server.http.responses import accepts_gzip

_PAGE: Final = "index.html"
_WORKER: Final = "service-worker.js"
_FRAME: Final = "frame.html"
# Scripts in a preview run without the origin of the server, and no request leaves the frame.
_FRAME_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
    "media-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
)
_IMMUTABLE: Final = "public, max-age=31536000, immutable"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:{pictures}; "
    "connect-src 'self'; font-src 'self'; frame-src 'self'; manifest-src 'self'; worker-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES: Final = {
    ".js": "text/javascript; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
}


class PageFile(msgspec.Struct, frozen=True):
    """A file of the page."""

    data: bytes
    media_type: str


async def get_page(request: Request) -> Response:
    """Return the page. A request with the local token gets a cookie, and a redirect to the URL without the token."""
    if PARAMETER in request.query_params:
        return await _set_token_cookie(request)
    file = load_page_files().get(_PAGE)
    if file is None:
        raise ApiError(404, "page_not_built", "The web page is not built. Run make setup.")
    policy = _POLICY.format(pictures=_image_sources(app_state(request).config.attachments))
    headers = {"content-security-policy": policy, "cache-control": "no-cache"}
    return _file_response(request, file, headers)


async def get_frame(request: Request) -> Response:
    """Return the page for previews."""
    file = load_page_files().get(_FRAME)
    if file is None:
        raise not_found_error()
    headers = {
        "content-security-policy": _FRAME_POLICY,
        "cache-control": "no-cache",
        "x-frame-options": "SAMEORIGIN",
    }
    return _file_response(request, file, headers)


async def _set_token_cookie(request: Request) -> Response:
    state, uid = app_state(request), await get_peer_uid(request)
    response = Response(status_code=303, headers={"location": "./"})
    if not state.requires_keys and state.token.is_token(request.query_params[PARAMETER]):
        response.set_cookie(cookie_name(state.config.port), state.token.cookie(uid), httponly=True, samesite="strict")
    return response


async def get_page_file(request: Request) -> Response:
    """Return a file of the page."""
    name = str(request.path_params["name"])
    file = load_page_files().get(name)
    if file is None or name in (_PAGE, _FRAME, _WORKER):
        raise not_found_error()
    return _file_response(request, file, {"cache-control": _IMMUTABLE})


async def get_service_worker(request: Request) -> Response:
    """Return the service worker. Its path is its scope, so it is beside the page."""
    file = load_page_files().get(_WORKER)
    if file is None:
        raise not_found_error()
    policy = "default-src 'none'; script-src 'self'; connect-src 'self'"
    return _file_response(request, file, {"content-security-policy": policy, "cache-control": "no-cache"})


@functools.cache
def load_page_files() -> dict[str, PageFile]:
    """All files of the page by name; empty if it is not built."""
    folder = importlib.resources.files("dragoman").joinpath("web", "static")
    if not folder.is_dir():
        return {}
    return {
        entry.name: _make_page_file(entry.name, entry.read_bytes()) for entry in folder.iterdir() if entry.is_file()
    }


def _make_page_file(name: str, data: bytes) -> PageFile:
    ending = f".{name.rpartition('.')[2]}"
    media_type = _TYPES.get(ending) or mimetypes.types_map.get(ending, "application/octet-stream")
    return PageFile(data, media_type)


@functools.cache
def _compress(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def _file_response(request: Request, file: PageFile, headers: dict[str, str]) -> Response:
    headers |= {"vary": "accept-encoding"}
    if not accepts_gzip(request):
        return Response(file.data, media_type=file.media_type, headers=headers)
    return Response(_compress(file.data), media_type=file.media_type, headers={**headers, "content-encoding": "gzip"})


@functools.lru_cache(maxsize=8)
def _image_sources(attachments: str | None) -> str:
    """Hosts that serve attachments directly, as a part of the policy."""
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
    public_endpoint(
        "GET",
        "/",
        get_page,
        "The web page",
        {200: Media("text/html", {"type": "string"}), 303: None},
        name="page",
        query=(Query(PARAMETER, summary="The token that the server printed; the response sets a cookie"),),
    ),
    public_endpoint(
        "GET",
        "/frame",
        get_frame,
        "The page for previews of HTML and diagrams, in a sandbox",
        {200: Media("text/html", {"type": "string"})},
        name="preview_frame",
    ),
    public_endpoint(
        "GET",
        f"/{_WORKER}",
        get_service_worker,
        "The service worker of the web page",
        {200: Media("text/javascript")},
        name="service_worker",
    ),
    public_endpoint(
        "GET",
        "/static/{name}",
        get_page_file,
        "A file of the web page",
        {200: (Media("text/javascript"), Media("text/css"), Media("image/svg+xml"), Media("text/plain"))},
        name="page_part",
    ),
)
