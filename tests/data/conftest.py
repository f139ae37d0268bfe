from __future__ import annotations

from pathlib import Path

import pytest

from fedgloss.data.datasets import DataSet, load
from fedgloss.errors import InvalidInput


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a cache of its own."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDGLOSS_CACHE", str(folder))
    return folder


@pytest.fixture
def stored(cache: Path):
    """What has been put into the cache's stores."""
    return lambda: sorted(str(file.relative_to(cache)) for file in cache.glob("stores/**/*") if file.is_file())


@pytest.fixture
def refused(stored):
    """Loading must end in one clear line about this, with nothing left behind."""

    def check(name: str, *words: str, **options: object) -> str:
        before = stored()
        with pytest.raises(InvalidInput) as caught:
            load(name, **options)
        message = str(caught.value)
        assert "\n" not in message
        for word in words:
            assert word in message
        assert stored() == before
        return message

    return check


@pytest.fixture
def loaded():
    def check(name: str, **options: object) -> DataSet:
        data = load(name, **options)
        assert isinstance(data, DataSet)
        return data

    return check
