from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import order

FILES = {
    "tests/client/test_a.py": 7,
    "tests/mail/test_b.py": 3,
    "tests/test_z.py": 40,
    "tests/turn/test_c.py": 2,
    "tests/web/test_d.py": 4,
    "tests/web/test_e.py": 1,
}
ITEMS: list[Any] = [
    SimpleNamespace(path=Path(file), nodeid=f"{file}::test_{number}")
    for file, count in FILES.items()
    for number in range(count)
]


def _files(items: list[Any]) -> list[str]:
    return list(dict.fromkeys(str(item.path) for item in items))


def test_part_of_each_worker_begins_with_slow_tests():
    result = order.spread(ITEMS, 2)
    middle = len(ITEMS) // 2
    assert _files(result[:middle])[:2] == ["tests/web/test_d.py", "tests/mail/test_b.py"]
    assert _files(result[middle:])[:2] == ["tests/web/test_e.py", "tests/turn/test_c.py"]


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 60, 100])
def test_every_test_is_scheduled_once_and_slow_files_stay_together(workers: int):
    result = order.spread(ITEMS, workers)
    assert sorted(item.nodeid for item in result) == sorted(item.nodeid for item in ITEMS)
    for file, count in FILES.items():
        if file.startswith(order.SLOW_TESTS):
            places = [place for place, item in enumerate(result) if str(item.path) == file]
            assert places == list(range(places[0], places[0] + count))


def test_every_listed_folder_and_file_exists():
    root = Path(__file__).parent.parent
    for name in order.SLOW_TESTS:
        assert list(root.glob(f"{name}*")) or list(root.glob(f"{name}/*")), name
