"""Who is who among Flower's nodes, and the rules that an app is given; no network, no SuperLink."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from federation.sites import SITES, learning

from fedgloss import InvalidInput
from fedgloss.federation import Reply

pytestmark = pytest.mark.integration
pytest.importorskip("flwr")
from fedgloss.transports.flower import FlowerPost, server_app  # noqa: E402


@dataclass(frozen=True)
class Node:
    node_id: int
    name: str


class Nodes:
    """A grid that knows its nodes and nothing else."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes: Sequence[Node] = nodes

    def get_nodes(self) -> Sequence[Node]:
        return self.nodes

    answered: Sequence[str] = ("", "")

    def push_messages(self, messages: Sequence[Any]) -> Sequence[str]:
        """What Flower answers where nodes are gone: no number for their letters, or no answer at all."""
        return self.answered[: len(messages)]


def test_a_site_is_the_node_that_is_registered_under_its_number(caplog: pytest.LogCaptureFixture) -> None:
    grid = Nodes(Node(70, "site-0"), Node(71, "site-1"), Node(79, "site-9"), Node(80, "office"))
    post = FlowerPost(grid, sites=SITES, minimum=1, timeout=1.0, wait=0.01)
    with caplog.at_level(logging.WARNING, "fedgloss"):
        assert post.connected([0, 1, 2]) == {0, 1}
        assert post.connected([0, 1]) == {0, 1}
    assert sorted(record.getMessage() for record in caplog.records) == [
        "node 79 says that it is site 9, there are 3; it takes no part",
        "node 80 is registered as 'office', not as site-<number>; it takes no part",
    ]  # once each


def test_a_node_registered_twice_takes_part_once_the_first_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """A key that is rotated the other way round: the new one is let in before the old one is shut out."""
    grid = Nodes(Node(70, "site-0"), Node(90, "site-0"))
    post = FlowerPost(grid, sites=SITES, minimum=1, timeout=1.0, wait=0.01)
    with caplog.at_level(logging.WARNING, "fedgloss"):
        assert post.connected([0]) == {0}
    assert post._nodes == {0: 70}
    assert [r.getMessage() for r in caplog.records] == [
        "node 90 says that it is site 0, which another node is; it takes no part"
    ]
    grid.nodes = [Node(90, "site-0")]
    assert post.connected([0]) == {0}
    assert post._nodes == {0: 90}


def test_a_letter_that_cannot_be_sent_costs_nobody_but_its_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedgloss.transports.flower.Message", lambda content, **options: content)  # needs a run
    grid = Nodes(Node(70, "site-0"), Node(71, "site-1"))
    post = FlowerPost(grid, sites=SITES, minimum=1, timeout=60.0, wait=0.01)
    assert post.connected([0, 1]) == {0, 1}
    for answered in (("", ""), ("",), ("letter",), ()):  # of one number alone nobody can tell whose letter it is
        grid.answered = answered
        replies = list(post.exchange({0: {"run": "a"}, 1: {"run": "a"}}, "0-train"))
        assert replies == [Reply(site, error="could not be sent its letter") for site in (0, 1)]
    assert list(post.exchange({}, "1-train")) == []


@dataclass(frozen=True)
class Settings:
    run_config: dict[str, Any]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("timeout", -3, "timeout: must be a positive number, got -3"),
        ("wait", "long", "wait: must be a positive number, got 'long'"),
        ("max-norm", float("inf"), "max-norm: must be a positive number, got inf"),
        ("max-norm", float("nan"), "max-norm: must be a positive number, got nan"),
        ("minimum-sites", True, "minimum-sites: must be a positive number, got True"),
        ("minimum-sites", 0.5, "minimum-sites: must be a whole number, got 0.5"),
        ("run-folder", "", "run-folder: say where the server keeps the run"),
    ],
)
def test_rules_that_are_none_are_refused(key: str, value: object, reason: str, tmp_path: Path) -> None:
    good = {"run-folder": str(tmp_path / "run"), "minimum-sites": 1, "timeout": 1, "wait": 1, "max-norm": 1e6}
    main = server_app(learning("fedgloss"))._main
    with pytest.raises(InvalidInput, match=rf"^pyproject\.toml: tool\.flwr\.app\.config\.{re.escape(reason)}$"):
        main(Nodes(), Settings(good | {key: value}))
    assert not list(tmp_path.iterdir())
