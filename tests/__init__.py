"""The tests. They write bytecode: without it, each process compiles all its imports, which takes a second of CPU time."""

import os
import sys

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
