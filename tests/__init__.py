"""The tests, which use compiled modules: a process without them compiles everything it imports, a second of CPU for each."""

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
