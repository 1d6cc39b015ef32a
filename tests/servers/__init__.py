"""Servers that tests connect to over real sockets.

    llama_server     llama.cpp with an untrained model of two megabytes; OpenAI chat and Responses, Anthropic
    aimock_server    aimock, which sends ``ANSWERS`` in every dialect
    FaultyServer     sends exactly the bytes, delays and connection errors that a test defines

The first two are fixtures (``fixtures.py``, imported by ``tests/conftest.py``). Each process of the tests starts them once,
when a test first requests them. ``processes.py`` starts them with other answers. ``faulty_server.py`` is used with
``async with``. Invariant: no server connects to another machine; only the installation of aimock with npm does.
"""
