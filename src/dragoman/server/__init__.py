"""The doors of a server: the chat API, its web page, health, and whatever else answers over HTTP.

    options = ServeOptions(store="sqlite:///chats.db")
    serve(options)                                     until it is told to stop
    async with opened_doors(options) as doors: ...     what all requests share
    make_app(doors)                                    the ASGI application over it

Each module of routes exports ``ENDPOINTS``; ``app`` lists the modules, and the routes, the OpenAPI document and the
tests of who may see what all come from these values. The one rule: a route gets a session only from ``owned_session``,
and who calls only from ``principal_of``.
"""
