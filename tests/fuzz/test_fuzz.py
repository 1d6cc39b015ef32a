"""Mutated input of every kind is rejected with an error or can be used.

By default a run is short and always the same. ``make fuzz`` runs ``DRAGOMAN_FUZZ_COUNT`` inputs per subject with the seed
``DRAGOMAN_FUZZ_SEED``, for about half an hour.
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
def test_mutated_input_is_rejected_or_usable(subject: Subject) -> None:
    logging.disable(logging.WARNING)
    try:
        failures = run(subject, COUNT, SEED)
    finally:
        logging.disable(logging.NOTSET)
    assert not failures, "\n".join(map(str, failures))
