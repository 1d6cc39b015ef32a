"""Tests of other modules with PostgreSQL behind PgBouncer in transaction mode. The default run is a sample."""

from __future__ import annotations

import pytest

from tests.store.test_append import *  # noqa: F403
from tests.store.test_entries import *  # noqa: F403
from tests.store.test_leases import *  # noqa: F403
from tests.store.test_pooler import database_location, store_location
from tests.store.test_runs import *  # noqa: F403
from tests.store.test_turns import *  # noqa: F403

__all__ = ["database_location", "store_location"]

pytestmark = pytest.mark.sampled(3)
