"""An untrained model of two megabytes, served by the real llama.cpp server. For cassettes and tests.

The weights are a hand-written table of token transitions. The server tokenizes, samples, parses tool calls and
reasoning, counts and streams as for any other model. The last token of the prompt, set by the chat template, selects
the reply:

    a plain question          text
    a question with tools     a call of read_file
    a tool result             text
    "think" in the question   reasoning, then text

``python -m scripts.local_model FOLDER`` writes the model to the folder, prints the address of the server, and serves
until standard input is closed. Requires xllamacpp and numpy. Invariant: the replies do not depend on time or
randomness.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Final

import numpy as np
import xllamacpp

from scripts.gguf_file import TokenType, write_gguf

ARCHITECTURE: Final = "llama"
WIDTH: Final = 320  # one dimension per token: a token is its own embedding
HEADS: Final = 10
CONTEXT: Final = 1024  # short, for tests of prompts that are too long

END: Final = "<|end|>"
PREFIXES: Final = ("<|say|>", "<|call|>", "<|think|>")  # last tokens of a prompt, which select the reply
WORDS: Final = (
    "It",
    " is",
    " the",
    " read",
    "me",
    " of",
    " Project",
    " Foo",
    "\u00a0–",
    " très",
    " bref",
    "! \U0001f600",
)
CALL: Final = ('{"name": "read_file", "arguments": ', '{"path":', ' "', "README", ".md", '"}', "}")
THINKING: Final = ("The", " user", " wants", " it", " short", ".")
REPLIES: Final = {
    "<|say|>": (*WORDS, END),
    "<|call|>": ("<tool_call>", "\n", *CALL, "\n\n", "</tool_call>", END),
    "<|think|>": ("<think>", *THINKING, "</think>", *WORDS, END),
}

CHAT_TEMPLATE: Final = """
{%- macro said(role, text) -%}
    {{- '<|' + role + '|>\\n' + text + '<|end|>\\n' -}}
{%- endmacro -%}
{%- if tools -%}
    {{- '<|tools|>\\n' -}}
    {%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}
    {{- 'Call as <tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call>.<|end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}
        {{- '<|assistant|>\\n' -}}
        {%- if message.reasoning_content -%}
            {{- '<think>' + message.reasoning_content + '</think>' -}}
        {%- endif -%}
        {%- if message.content -%}{{- message.content -}}{%- endif -%}
        {%- for call in message.tool_calls or [] -%}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
        {%- endfor -%}
        {{- '<|end|>\\n' -}}
    {%- elif message.role == 'tool' -%}
        {{- said('user', '<tool_response>\\n' + message.content + '\\n</tool_response>') -}}
    {%- else -%}
        {{- said(message.role, message.content) -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>\\n' -}}
    {%- if messages[-1].role == 'user' and tools -%}
        {{- '<|call|>' -}}
    {%- elif 'think' in messages[-1].content -%}
        {{- '<|think|>' -}}
    {%- else -%}
        {{- '<|say|>' -}}
    {%- endif -%}
{%- endif -%}
"""


def vocabulary() -> dict[str, int]:
    """Return all tokens with their llama.cpp types."""
    kinds = TokenType
    tokens = {"<unk>": kinds.UNKNOWN}
    tokens |= {f"<0x{byte:02X}>": kinds.BYTE for byte in range(256)}
    tokens |= {END: kinds.CONTROL} | dict.fromkeys(PREFIXES, kinds.CONTROL)
    for token in itertools.chain(*REPLIES.values()):
        tokens.setdefault(token, kinds.USER_DEFINED)
    return tokens


def transition_matrix(tokens: dict[str, int]) -> np.ndarray:
    """Return the weight of each token (row) after each other token (column)."""
    number = {token: at for at, token in enumerate(tokens)}
    weights = np.zeros((len(tokens), WIDTH), np.float32)
    weights[number[END], :] = 0.5  # default: end the reply
    for prefix, tokens_of_reply in REPLIES.items():
        for before, after in itertools.pairwise((prefix, *tokens_of_reply)):
            weights[number[after], number[before]] = 2.0
    return weights


def write_model(path: Path) -> None:
    """Write the model as a file for llama.cpp: one layer that passes its input through."""
    tokens = vocabulary()
    fields = {
        "general.architecture": ARCHITECTURE,
        "general.name": "tiny",
        "general.file_type": 0,  # 32-bit floats
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": 1,
        "llama.feed_forward_length": 32,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": list(tokens),
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": list(tokens.values()),
        "tokenizer.ggml.eos_token_id": list(tokens).index(END),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (WIDTH, WIDTH),
        "attn_v": (WIDTH, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (32, WIDTH),
        "ffn_up": (32, WIDTH),
        "ffn_down": (WIDTH, 32),
    }
    tensors = {
        "token_embd.weight": np.eye(len(tokens), WIDTH, dtype=np.float32),
        "output_norm.weight": np.ones(WIDTH, np.float32),
        "output.weight": transition_matrix(tokens),
        **{f"blk.0.{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()},
        **{f"blk.0.{name}.weight": np.ones(WIDTH, np.float32) for name in ("attn_norm", "ffn_norm")},
    }
    write_gguf(path, fields, tensors)


def serve(path: Path) -> xllamacpp.Server:
    """Start the server on a free loopback port: one reply at a time, always the most likely token."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.model_alias = {"tiny"}
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = 1
    parameters.n_predict = 64
    parameters.warmup = False
    parameters.use_jinja = True
    parameters.sampling.temp = 0.0
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    return xllamacpp.Server(parameters)


def main() -> None:
    """Write the model, and serve it until standard input is closed."""
    path = Path(sys.argv[1]) / "tiny.gguf"
    write_model(path)
    server = serve(path)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
