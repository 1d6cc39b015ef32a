"""Start the gateway of TensorZero out of its wheel, and write its address to a file: ``… CONFIG FILE``."""

import sys
import threading
from pathlib import Path

from tensorzero import _start_http_gateway

gateway = _start_http_gateway(
    config_file=sys.argv[1], clickhouse_url=None, postgres_url=None, valkey_url=None, async_setup=False
)
Path(sys.argv[2]).write_text(gateway.base_url)
threading.Event().wait()
