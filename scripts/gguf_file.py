"""Write a model as a GGUF file that llama.cpp loads: fields, and tensors of 32-bit floats. Requires numpy.

The layout is version 3: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. For tests: supports only the value
types that they need.
"""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any, Final

import numpy as np

ALIGNMENT: Final = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # value types of a field
_FLOATS: Final = 0  # type of a tensor


class TokenType:
    """Token types of llama.cpp."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    BYTE = 6


def write_gguf(path: Path, fields: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Write a file with these fields and tensors."""
    out = io.BytesIO()
    out.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
    for name, value in fields.items():
        kind, data = _value(value)
        out.write(_string(name) + struct.pack("<I", kind) + data)
    offset = 0
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]  # fastest dimension first
        out.write(_string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
        out.write(struct.pack("<IQ", _FLOATS, offset))
        offset += _pad(tensor.nbytes)
    out.write(bytes(_pad(out.tell()) - out.tell()))
    for tensor in tensors.values():
        out.write(tensor.astype("<f4").tobytes() + bytes(_pad(tensor.nbytes) - tensor.nbytes))
    path.write_bytes(out.getvalue())


def _pad(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> tuple[int, bytes]:
    match value:
        case bool():
            return _BOOL, struct.pack("<?", value)
        case int():
            return _UINT32, struct.pack("<I", value)
        case float():
            return _FLOAT32, struct.pack("<f", value)
        case str():
            return _STRING, _string(value)
        case [str(), *_]:
            return _ARRAY, struct.pack("<IQ", _STRING, len(value)) + b"".join(map(_string, value))
        case [float(), *_]:
            return _ARRAY, struct.pack(f"<IQ{len(value)}f", _FLOAT32, len(value), *value)
        case [int(), *_]:
            return _ARRAY, struct.pack(f"<IQ{len(value)}i", _INT32, len(value), *value)
        case _:
            raise TypeError(f"unsupported value: {value!r}")
