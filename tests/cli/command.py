"""The command line, called as a user calls it but in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgloss.cli import main


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def fedgloss(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> Answer:
    """What `fedgloss ARGUMENTS` answers."""
    capsys.readouterr()
    before = sys.argv
    sys.argv = ["fedgloss", *map(str, arguments)]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    return Answer(code, captured.out, captured.err)
