from __future__ import annotations

from pathlib import Path

import pytest
from reports.small_runs import make_study


@pytest.fixture(scope="session")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of twelve runs; tests read it and leave it as it is."""
    folder = tmp_path_factory.mktemp("study")
    make_study(folder)
    return folder
