"""The HTTP server: chat API, runs, mail API, health, metrics and the web page.

    app("chats.db", model="gpt-5")                        in ``asgi``: to mount into FastAPI or Starlette
    serve(ServerConfig(store="sqlite:///chats.db"))       in ``supervisor``: until a signal
    async with open_app_state(config) as state: ...       in ``server``: the state that all requests share
    make_app(state)                                       in ``application``: the routes over that state

Each module of routes exports ``ENDPOINTS``, and ``application`` lists these modules. The routes, the OpenAPI document
and the tests of tenant isolation use these values. Invariants: a handler gets a session only from
``get_owned_session``, and the caller only from ``get_principal``.
"""

from typing import TYPE_CHECKING, Any

from dragoman.errors import SettingsError

if TYPE_CHECKING:
    from dragoman.server.asgi import MountableApp, app


def __getattr__(name: str) -> Any:
    """Import the application on first use: it needs the extra ``server``."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from dragoman.server import asgi  # noqa: PLC0415
    except ImportError as error:
        raise SettingsError(
            f"the server cannot be imported ({error})",
            remedy="Run pip install 'dragoman[server]'",
            code="missing_package",
        ) from None
    return getattr(asgi, name)


__all__ = ["MountableApp", "app"]
