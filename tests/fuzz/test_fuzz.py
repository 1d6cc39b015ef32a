"""Mutated input of every kind is rejected with an error or can be used.

Short by default and always the same. ``make fuzz`` runs it for minutes: ``DRAGOMAN_FUZZ_COUNT`` inputs for each
subject, from ``DRAGOMAN_FUZZ_SEED`` on.
"""

from __future__ import annotations

import logging
import os

import pytest

from tests.fuzz.run import run
from tests.fuzz.seeds import COUNT
from tests.fuzz.subjects import Subject, subjects

SEED = int(os.environ.get("DRAGOMAN_FUZZ_SEED", "1"))


@pytest.mark.parametrize("subject", subjects(), ids=lambda subject: subject.name)
def test_every_mutated_input_is_rejected_with_an_error_or_usable(subject: Subject) -> None:
    logging.disable(logging.WARNING)
    try:
        failures = run(subject, COUNT, SEED)
    finally:
        logging.disable(logging.NOTSET)
    assert not failures, "\n".join(map(str, failures))
