"""The README's Python is run, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli.command import fedgloss

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_in_the_readme_runs(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), names)
    if "history" in names:
        assert names["history"].reported() > 0.9  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line", [line for b in blocks("console") for line in b.splitlines() if "fedgloss " in line]
)
def test_commands_in_the_readme_exist(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = line.removeprefix("$ ").split("#")[0].split()[1:]
    command = [w for w in words[:2] if not w.startswith("-")]
    command = command[: 2 if command[0] in ("data",) else 1]
    help_text = fedgloss(capsys, *command, "--help").out
    for option in (w for w in words if w.startswith("--")):
        assert option in help_text


def test_links_in_the_readme_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        if not target.startswith("http"):
            assert (ROOT / target).exists(), target
