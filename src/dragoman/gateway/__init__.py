"""The gateway: endpoints of seven provider APIs in front of any configured model.

    gateway = Gateway(services, config)
    endpoint = endpoints.match("POST", "/v1/messages")
    response = await gateway.handle(endpoint, request)     a response, whole or streamed, in the caller's own dialect

A request and a response are plain values (``types``), so that any HTTP server can call the gateway: the routes of
``dragoman.server`` do. One call passes these modules:

    endpoints       method and path -> dialect and operation
    model_names     the name in the request -> the models to try, in order
    translation     the caller's request -> the request of the model's provider, and replies back
    upstream        the provider call, with retries and fallbacks before the first token
    reply           the response: the provider's bytes in the same dialect, else the translated reply
    recorder        usage, cost and history, as one session that grows
    error_shapes    every failure in the caller's own dialect

Invariants: in the same dialect, body, query and protocol headers pass unchanged. The caller's key never reaches a
provider. A stream that breaks never ends like a complete one.
"""

from __future__ import annotations

from dragoman.gateway.config import GatewayConfig
from dragoman.gateway.gateway import Gateway, make_gateway
from dragoman.gateway.types import Caller, GatewayRequest, GatewayResponse

__all__ = ["Caller", "Gateway", "GatewayConfig", "GatewayRequest", "GatewayResponse", "make_gateway"]
