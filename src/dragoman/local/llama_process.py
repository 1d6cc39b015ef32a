"""The process of the embedded model. It serves until its standard input is closed.

    python -m dragoman.local.llama_process WEIGHTS THREADS CONTEXT_TOKENS

When the server is ready, it prints its base URL as the first line.
"""

from __future__ import annotations

import os
import secrets
import sys
import threading
from typing import Any, Final

# The format that the model was trained with. The template of the model file adds a name and a maker when there is no
# system prompt, which makes the answers worse.
CHAT_TEMPLATE: Final = """
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nYou are a helpful assistant.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""


def make_parameters(weights: str, threads: int, context_tokens: int) -> Any:
    """Return the parameters of the server: one request at a time, on a free loopback port."""
    import xllamacpp  # noqa: PLC0415  an extra

    parameters = xllamacpp.CommonParams()
    parameters.model.path = weights
    parameters.model_alias = {"smollm2-135m"}
    parameters.n_ctx = context_tokens
    parameters.n_parallel = 1
    parameters.cpuparams.n_threads = threads
    parameters.cpuparams_batch.n_threads = threads
    parameters.use_jinja = True
    parameters.sampling.temp = 0.2  # recommended by its authors; a request may override it
    parameters.sampling.top_p = 0.9
    parameters.sampling.penalty_repeat = 1.1
    parameters.chat_template = CHAT_TEMPLATE
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    parameters.api_prefix = f"/{secrets.token_urlsafe(16)}"  # web pages and other users cannot guess it
    return parameters


def _exit_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def serve(parameters: Any) -> None:
    """Print the base URL and serve until standard input is closed."""
    import xllamacpp  # noqa: PLC0415

    threading.Thread(target=_exit_with_parent, daemon=True).start()
    server = xllamacpp.Server(parameters)
    sys.stdout.write(f"{server.listening_address}{parameters.api_prefix}/v1\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    serve(make_parameters(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
