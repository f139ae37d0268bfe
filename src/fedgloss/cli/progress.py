"""Progress on the terminal: a live bar, plain lines where there is no terminal, nothing when quiet."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from ..run import Job
from ..training import Step

LINES = 20  # how many plain lines a run prints where there is no terminal


def bar(console: Console) -> Progress:
    """A line a task, with the time left; a narrow terminal folds the name."""
    return Progress(
        TextColumn("[bold]{task.description}", table_column=Column(overflow="fold")),
        BarColumn(bar_width=12),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True)),
        console=console,
    )


def figures_of(step: Step, accuracy: float | None, rate: float) -> str:
    shown = f"accuracy {accuracy:.2%} " if accuracy is not None else ""
    return f"{shown}loss {step.round.loss:.3f} |w| {step.round.norms['params']:.3g} {rate:.3g} rounds/s"


class ShowProgress:
    """One run's progress (a ``Tracker``), in a ``with``: the terminal gets its cursor back however the run ends."""

    def __init__(self, console: Console, name: str) -> None:
        self._console = console
        self._name = escape(name)
        self._accuracy: float | None = None
        self._progress: Progress | None = None
        self._rate = 0.0

    def __enter__(self) -> ShowProgress:
        return self

    def __exit__(self, *error: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def started(self, job: Job, done: int, notices: Sequence[str]) -> None:
        for notice in notices:
            self._console.print(f"[yellow]note:[/yellow] {escape(notice)}", highlight=False, soft_wrap=True)
        if done:
            self._console.print(f"going on after round {done}", highlight=False)
        self._every = max(1, job.plan.rounds // LINES)
        self._total = job.plan.rounds
        self._began = time.monotonic()
        self._done_before = done
        if self._console.is_terminal:
            self._progress = bar(self._console)
            self._progress.start()
            self._task = self._progress.add_task(self._name, total=job.plan.rounds, completed=done, figures="")

    def stepped(self, step: Step, seconds: float) -> None:
        done = step.state.round
        if step.evaluation is not None:
            self._accuracy = step.evaluation.metrics.get("accuracy")
        rate = (done - self._done_before) / max(time.monotonic() - self._began, 1e-9)
        shown = figures_of(step, self._accuracy, rate)
        if self._progress is not None:
            self._progress.update(self._task, completed=done, figures=shown)
        elif done % self._every == 0 or done == self._total:
            self._console.print(
                f"{self._name}  round {done}/{self._total}  {shown}", highlight=False, soft_wrap=True
            )

    def ended(self, summary: Mapping[str, Any]) -> None: ...
