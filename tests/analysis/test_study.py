"""The study of docs/flatness-study.md, from nothing: about half an hour on two idle cores."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgloss.data.datasets import DATA_SETS, where
from fedgloss.records import RunFolder, read_json

PASSED = 0.30
"""The accuracy that every method passes."""


@pytest.mark.slow
def test_five_methods_on_fashion_mnist(tmp_path: Path) -> None:
    if where("fashion-mnist") is None:
        pytest.skip(f"fashion-mnist: {DATA_SETS['fashion-mnist'].by_hand}")
    from flatness_study import METHODS, main

    largest = main(tmp_path)
    assert set(largest) == set(METHODS)
    for name in METHODS:
        summary = read_json(RunFolder(tmp_path / name.lower()).summary)
        assert summary["reported"]["accuracy"] > PASSED, name
        assert largest[name] > 0
    assert (tmp_path / "table.md").read_text().count("\n") == 2 + len(METHODS)
    assert {p.suffix for p in tmp_path.glob("surfaces-*")} == {".png", ".svg"}
