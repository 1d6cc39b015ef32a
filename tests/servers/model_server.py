"""The embedded model with short, deterministic answers: ``python -m tests.servers.model_server WEIGHTS``."""

from __future__ import annotations

import sys

from dragoman.local.llama_process import make_parameters, serve

CONTEXT_TOKENS = 4096
ANSWER_TOKENS = 64

if __name__ == "__main__":
    parameters = make_parameters(sys.argv[1], 1, CONTEXT_TOKENS)
    parameters.api_prefix = ""
    parameters.n_predict = ANSWER_TOKENS  # if the request sets no limit
    parameters.sampling.temp = 0.0
    serve(parameters)
