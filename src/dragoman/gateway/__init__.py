"""The gateway: endpoints of seven provider APIs in front of any configured model.

    gateway = Gateway(services, config)
    endpoint = endpoints.match("POST", "/v1/messages")
    response = await gateway.handle(endpoint, request)     a response, whole or streamed, in the caller's own dialect

A request and a response are plain values (``types``), so that any HTTP server can call the gateway: the routes of
``dragoman.server`` do. One call passes these modules:

    endpoints         method and path -> dialect and operation
    client_request    the top level of the body: model, stream, dialect
    model_names       the name in the request -> the models to try, in order
    chat_call         the attempts before the first token, and the response
    translation       the caller's request -> the provider's request, and replies and streams back
    streams           streams in the same dialect, frame by frame
    upstream          the HTTP request to a provider
    recorder          usage, cost and history, as one session that grows
    response_state    previous responses and conversations of the Responses API
    error_shapes      every failure in the caller's own dialect

Invariants: in the same dialect, body, query and protocol headers pass unchanged. The caller's key never reaches a
provider. A stream that breaks never ends like a complete one.
"""

from __future__ import annotations

from dragoman.gateway.config import GatewayConfig
from dragoman.gateway.gateway import Gateway, make_gateway
from dragoman.gateway.types import Caller, GatewayRequest, GatewayResponse

__all__ = ["Caller", "Gateway", "GatewayConfig", "GatewayRequest", "GatewayResponse", "make_gateway"]
