"""The processes that tests fork from one server, which has imported their modules.

A worker of the tests has one server, whatever modules use it. Without its imports, each process takes half a second of
CPU time to begin.
"""

from __future__ import annotations

import multiprocessing

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "dragoman.store.engines.postgres",
        "dragoman.store.engines.sqlite",
        "tests.mail.consumers",
        "tests.store.faults.harness",
        "tests.store.faults.test_concurrency",
    ]
)
