"""Without the extra, Ray costs nothing but one helpful line."""

from __future__ import annotations

import sys

import pytest
from pool_toys import marked_problem

import fedgloss.transports
from fedgloss import FedAvg, InvalidInput, train


def test_an_absent_extra_gives_one_helpful_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "fedgloss.transports.ray", raising=False)
    monkeypatch.delattr(fedgloss.transports, "ray", raising=False)
    line = r"^run.transport: ray needs other packages .*pip install 'fedgloss\[ray\]'$"
    with pytest.raises(InvalidInput, match=line):
        train(FedAvg(), marked_problem(), rounds=1, cohort=2, transport="ray")
