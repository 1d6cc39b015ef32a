"""The gateway: dispatches a request to its operation, and writes every failure in the caller's dialect.

One instance per event loop. Invariant: ``handle`` raises nothing but cancellation.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

from dragoman import dialects
from dragoman.catalog import Model
from dragoman.client import Timeouts
from dragoman.errors import DragomanError, InputError
from dragoman.exchange import ErrorClass, Fault, Request
from dragoman.gateway import client_request as requests
from dragoman.gateway import compaction, response_objects, session_chain
from dragoman.gateway.bedrock_invoke import invoke
from dragoman.gateway.chat_call import ChatCall
from dragoman.gateway.config import GatewayConfig, config_from
from dragoman.gateway.embeddings import embed
from dragoman.gateway.endpoints import Match, detect_dialect
from dragoman.gateway.error_shapes import error_response, fault_from
from dragoman.gateway.fast_path import RequestTemplates
from dragoman.gateway.hooks import Hooks, load_hook
from dragoman.gateway.model_lists import (
    OLLAMA_VERSION,
    confirm_load,
    describe_prices,
    json_response,
    list_models,
    show_model,
)
from dragoman.gateway.model_names import ModelNames
from dragoman.gateway.record_fast_path import RecordTemplates
from dragoman.gateway.recorder import Recorder
from dragoman.gateway.response_state import DIALECT, resolve_state
from dragoman.gateway.token_counts import count_tokens
from dragoman.gateway.types import GatewayError, GatewayRequest, GatewayResponse
from dragoman.gateway.upstream import Target
from dragoman.offload import run_off_loop
from dragoman.turn.services import AgentServices

_log: Final = logging.getLogger("dragoman.gateway")
_INTERNAL: Final = Fault(
    code="server_error",
    message="An unexpected error occurred. The log has details under the request id.",
    error_class=ErrorClass.SERVER_ERROR,
    status=500,
)


def make_gateway(services: AgentServices, record: str = "durable") -> Gateway:
    """Return the gateway of the settings; ``record`` is ``durable`` or ``off``."""
    config = config_from(services.settings.gateway, services.settings.file)
    hooks = Hooks(load_hook(config.before_call, "before_call"), load_hook(config.after_call, "after_call"))
    return Gateway(services, config, recorder=None if record == "off" else Recorder(services), hooks=hooks)


class Gateway:
    """Provider-compatible endpoints over the models of the settings."""

    def __init__(
        self,
        services: AgentServices,
        config: GatewayConfig,
        *,
        recorder: Recorder | None = None,
        hooks: Hooks = Hooks(),  # noqa: B008  an immutable value
        timeouts: Timeouts = Timeouts(),  # noqa: B008  an immutable value
    ) -> None:
        self.services = services
        self.config = config
        self.recorder = recorder
        self.hooks = hooks
        self.timeouts = timeouts
        self.names = ModelNames(services.registry, config)
        self.client = services.client
        self._operations: dict[str, Callable[[Match, GatewayRequest], Awaitable[GatewayResponse]]] = {
            "chat": self._chat,
            "compact": self._compact,
            "invoke": self._invoke,
            "count": self._count,
            "embed": self._embed,
            "models": self._list_models,
            "model": self._show_model,
            "show": self._show_local_model,
            "version": self._version,
            "processes": self._processes,
            "hello": self._hello,
            "model_info": self._model_info,
        }
        self.active_calls = 0
        self.templates = RequestTemplates()
        self.record_templates = RecordTemplates()
        self.without_counter: set[str] = set()  # models for which the counting endpoint does not answer

    def reload_models(self) -> None:
        """Use the models of the services as they are now."""
        self.names = ModelNames(self.services.registry, self.config)

    @property
    def operations(self) -> set[str]:
        """The names of all operations."""
        return {*self._operations, *response_objects.OPERATIONS}

    async def handle(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        """Return the response to a request."""
        try:
            operation = found.endpoint.operation
            if operation in response_objects.OPERATIONS:
                return await response_objects.OPERATIONS[operation](self, found.values, request)
            return await self._operations[operation](found, request)
        except GatewayError as error:
            fault = error.fault
        except DragomanError as error:
            fault = fault_from(error)
            _log.warning("%s", error, extra={"request_id": request.request_id})
        except Exception:  # noqa: BLE001  an entry point
            _log.exception("unexpected error", extra={"request_id": request.request_id})
            fault = _INTERNAL
        return error_response(detect_dialect(found, request.path, request.headers), fault, request.request_id)

    async def target(self, model: Model) -> Target:
        """Return how a model is reached."""
        endpoint = await self.services.endpoint(model.provider)
        return Target(model, endpoint.provider, endpoint)

    def new_id(self) -> str:
        """Return a new ULID."""
        return self.services.store.new_id()

    async def _chat(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        client_request = await run_off_loop(len(request.body), requests.parse, found, request)
        requests.check_content(client_request)
        state = None
        if client_request.dialect == DIALECT:
            client_request, state = await resolve_state(self, client_request)
        seed = await self._affinity_seed(client_request) if self.names.has_weights else ""
        resolution = self.names.find(client_request.model, client_request.reply_dialect, seed)
        if requests.is_load(client_request) and not self._speaks(resolution.models[0], "ollama"):
            return confirm_load(client_request, self.services.clock())
        if compaction.has_trigger(client_request) and not self._speaks(resolution.models[0], client_request.dialect):
            return await compaction.answer_trigger(self, client_request, resolution)
        return await ChatCall(self, compaction.open_compactions(client_request), resolution, state).run()

    def _speaks(self, model: Model, dialect: str) -> bool:
        """Whether the provider of a model speaks a dialect."""
        return self.services.registry.catalog.provider(model.provider).dialect == dialect

    async def _invoke(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        return await invoke(self, found, request)

    async def _compact(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        return await compaction.compact(self, await self._parse(found, request))

    async def _affinity_seed(self, client_request: requests.ClientRequest) -> str:
        """Return what the calls of one session have in common, so that weights choose one model for all of them."""
        request = client_request.request
        key = session_chain.session_key(request.headers)
        if key is not None:
            return key.session
        try:
            read = dialects.load(client_request.dialect).read_request
            canonical: Request = await run_off_loop(len(request.body), read, request.body)
        except InputError:
            return ""
        _, messages = session_chain.split_system(canonical.messages)
        return session_chain.chain_hashes(session_chain.seed_of(request.caller), messages[:1])[-1].hex()

    async def _parse(self, found: Match, request: GatewayRequest) -> requests.ClientRequest:
        return await run_off_loop(len(request.body), requests.parse, found, request)

    async def _count(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        return await count_tokens(self, await self._parse(found, request))

    async def _embed(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        return await embed(self, await self._parse(found, request))

    async def _show_local_model(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        client_request = await self._parse(found, request)
        return show_model(self.names, "ollama", client_request.model)

    async def _version(self, found: Match, request: GatewayRequest) -> GatewayResponse:  # noqa: ARG002
        return json_response({"version": OLLAMA_VERSION})

    async def _processes(self, found: Match, request: GatewayRequest) -> GatewayResponse:  # noqa: ARG002
        return json_response({"models": []})

    async def _hello(self, found: Match, request: GatewayRequest) -> GatewayResponse:  # noqa: ARG002
        return GatewayResponse()

    async def _model_info(self, found: Match, request: GatewayRequest) -> GatewayResponse:  # noqa: ARG002
        return describe_prices(self.names, self.services.price_table, self.services.clock())

    async def _list_models(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        return list_models(self.names, detect_dialect(found, request.path, request.headers), request.query)

    async def _show_model(self, found: Match, request: GatewayRequest) -> GatewayResponse:
        return show_model(self.names, detect_dialect(found, request.path, request.headers), found.values["model"])
