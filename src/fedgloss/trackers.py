"""Who looks on while a run goes: TensorBoard, Weights & Biases, or a tracker of your own.

Nothing is sent anywhere unless asked for by ``--track``. A tracker is anything with ``started``, ``stepped`` and
``ended`` (see ``fedgloss.run.Tracker``); ``--track my_package:make_tracker`` calls ``make_tracker(folder)``. The
run's folder is there from ``started`` on.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import InvalidInput
from .plugins import find
from .run import Job, Tracker
from .training import Step


def figures(step: Step, judged: str) -> Iterator[tuple[str, float]]:
    """A step's numbers under the names trackers show; ``judged`` is what the model is evaluated on."""
    record = step.round
    yield "train/loss", record.loss
    yield "train/mean_delta_norm", record.mean_delta_norm
    for name, value in record.norms.items():
        yield f"norm/{name}", value
    for name, value in record.delta_eps.items():
        yield f"delta_eps/{name}", value
    yield "bytes/down", float(record.down.bytes)
    yield "bytes/up", float(record.up.bytes)
    if step.evaluation is not None:
        for name, value in step.evaluation.metrics.items():
            yield f"{judged}/{name}", value


class TensorBoard:
    """Scalars for TensorBoard, in ``RUN/tensorboard``."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard.writer import SummaryWriter
        except ImportError:
            raise InvalidInput("--track tensorboard: pip install 'fedgloss[tensorboard]'") from None
        self._open: Callable[[], Any] = lambda: SummaryWriter(str(folder / "tensorboard"))

    def started(self, job: Job, done: int, notices: Sequence[str]) -> None:
        self._judged = job.evaluate_on
        self._writer = self._open()
        self._writer.add_text("config", f"```toml\n{job.config}```", done)

    def stepped(self, step: Step, seconds: float) -> None:
        for name, value in figures(step, self._judged):
            self._writer.add_scalar(name, value, step.round.round + 1)

    def ended(self, summary: Mapping[str, Any]) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A W&B run, offline unless WANDB_MODE says otherwise; its files are in ``RUN/wandb``."""

    def __init__(self, folder: Path) -> None:
        try:
            import wandb
        except ImportError:
            raise InvalidInput("--track wandb: pip install 'fedgloss[wandb]'") from None
        mode = os.environ.get("WANDB_MODE", "offline")
        self._open: Callable[[], Any] = lambda: wandb.init(
            dir=str(folder), name=folder.name, project="fedgloss", mode=mode
        )

    def started(self, job: Job, done: int, notices: Sequence[str]) -> None:
        self._judged = job.evaluate_on
        self._run = self._open()
        self._run.config.update({"config": job.config})

    def stepped(self, step: Step, seconds: float) -> None:
        self._run.log(dict(figures(step, self._judged)), step=step.round.round + 1)

    def ended(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(summary["reported"]))
        self._run.finish()


BUILT_IN: Mapping[str, Callable[[Path], Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}


def make_tracker(name: str, folder: Path) -> Tracker:
    """A tracker by name, or by ``package:function``."""
    if name in BUILT_IN:
        return BUILT_IN[name](folder)
    if ":" not in name:
        raise InvalidInput(
            f"--track {name}: there are {', '.join(BUILT_IN)}, or write your own as package:function"
        )
    make = find(name, "tracker")
    try:
        inspect.signature(make).bind(folder)
    except (TypeError, ValueError):
        raise InvalidInput(f"--track {name}: cannot be called with the run's folder alone") from None
    tracker: Tracker = make(folder)
    absent = [part for part in ("started", "stepped", "ended") if not callable(getattr(tracker, part, None))]
    if absent:
        raise InvalidInput(f"--track {name}: is no tracker, it has no {absent[0]}()")
    return tracker
