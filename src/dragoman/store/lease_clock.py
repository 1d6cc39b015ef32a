"""The clock of leases, which is independent of the wall clock.

    lease_now()          an SQL function of both engines: microseconds on that clock
    boot_id()            an id of the current boot of the machine
    restart_leases(id)   reset the leases that were stored on another clock

Leases, heartbeats of runs, and the delays of letters are stored as readings of this clock, never of the wall clock.
Setting the date of a machine neither ends nor prolongs them.

- SQLite: the machine's monotonic clock. A file in WAL mode is opened on one machine only, and all processes of a
  machine share that clock until it restarts. The first process that opens the file after a restart resets every lease
  to its full length.
- PostgreSQL: the clock of the database. The clocks of its clients do not matter. Where the database's clock was set
  back, the next store that opens it shortens every lease to its full length.

Invariant: a lease ends no sooner than its length after its last renewal, measured on this clock.
"""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Final

from dragoman.store.operation import Steps, operation

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_COARSE_S: Final = 600
_LEASE_COLUMNS: Final = (  # table, column of the end, column of the length, condition
    ("leases", "expires_at", "length_us", "1 = 1"),
    ("runs", "alive_until", "alive_us", "status = 'running'"),
    ("inbox", "available_at", "wait_us", "state = 'ready' AND available_at > 0"),
)


def boot_id() -> str:
    """Return an id of the current boot of the machine."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return _darwin_boot_id() if sys.platform == "darwin" else _rough_boot_id()


def _darwin_boot_id() -> str:
    buffer, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    system = ctypes.CDLL(None)
    if system.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, ctypes.c_size_t(0)) != 0:
        return _rough_boot_id()
    return buffer.value.decode("ascii")


def _rough_boot_id() -> str:
    """Return the approximate start time of the machine. Setting the wall clock changes it and prolongs leases once."""
    return f"about {round((time.time() - time.monotonic()) / _COARSE_S)}"


@operation
def restart_leases(clock_id: str | None) -> Steps[None]:
    """Reset every lease to its full length if it was stored on another clock than ``clock_id``.

    Without an id the clock is always the same, but may have been set back: leases longer than their length are
    shortened.
    """
    if clock_id is not None:
        rows = yield "SELECT id FROM lease_clock WHERE number = 1", ()
        if rows and rows[0][0] == clock_id:
            return
        yield (
            "INSERT INTO lease_clock (number, id) VALUES (1, ?) ON CONFLICT (number) DO UPDATE SET id = excluded.id",
            (clock_id,),
        )
    for table, expiry, length, condition in _LEASE_COLUMNS:
        limit = "" if clock_id is not None else f" AND {expiry} > lease_now() + {length}"
        yield f"UPDATE {table} SET {expiry} = lease_now() + {length} WHERE {condition}{limit}", ()
    yield (
        "UPDATE outbox SET available_at = lease_now() WHERE available_at > lease_now()",
        (),
    )  # a second delivery is harmless
