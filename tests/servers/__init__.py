"""Servers that tests talk to over real sockets.

    llama_server     llama.cpp around a model of two megabytes that was never trained; OpenAI chat and Responses, Anthropic
    aimock_server    aimock, which answers every dialect as ``ANSWERS`` says
    faulty           a server of our own that sends exactly the bytes it is told, and goes wrong as it is told

The first two are fixtures (``fixtures.py``, known everywhere through ``tests/conftest.py``), started once for each
process of the tests when the first one asks. ``processes.py`` starts them with other answers; ``faulty_server.py`` is used with
``async with``. Invariant: nothing here leaves this machine, except that aimock is installed once with npm.
"""
