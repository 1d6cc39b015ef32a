"""The HTTP server: chat API, runs, mail API, health, metrics and the web page.

    serve(ServerConfig(store="sqlite:///chats.db"))       in ``supervisor``: until a signal
    async with open_app_state(config) as state: ...       in ``server``: the state that all requests share
    make_app(state)                                       in ``app``: the ASGI application

Each module of routes exports ``ENDPOINTS``, and ``app`` lists these modules. The routes, the OpenAPI document and the
tests of tenant isolation use these values. Invariants: a handler gets a session only from ``get_owned_session``, and
the caller only from ``get_principal``.
"""
