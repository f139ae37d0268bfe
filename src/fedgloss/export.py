"""A run's model on its way out: weights under the network's own names, in torch's own order."""

from __future__ import annotations

import io
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from .algorithms import tail_mean
from .checkpoint import Checkpoints
from .config import Config, resolve
from .errors import InvalidInput
from .files import disk_errors, write_atomically
from .job import build_plan, build_problem
from .records import RunFolder
from .vectors import Layout, Vector


def run_config(folder: RunFolder) -> Config:
    return resolve(folder.require().config).config


def run_weights(folder: RunFolder, *, average: bool = False, done: int | None = None) -> Vector:
    """The weights of a checkpoint, the newest by default; or the mean of the last models of the run."""
    checkpoints = Checkpoints(folder)
    kept = checkpoints.rounds()
    if not kept:
        raise InvalidInput(f"{folder.path}: has no checkpoint yet")
    if done is not None and done not in kept:
        raise InvalidInput(
            f"{folder.path}: no checkpoint after round {done}; there are {', '.join(map(str, kept))}"
        )
    state = checkpoints.state(kept[-1] if done is None else done)
    if not average:
        return state.evaluated
    plan = build_plan(run_config(folder))
    mean = tail_mean(state, plan.rounds - plan.evaluation_window)
    if mean is None:
        raise InvalidInput(f"{folder.path}: the run has not seen all of its last {plan.evaluation_window} models")
    return mean


def run_model(folder: RunFolder, *, average: bool = False) -> nn.Module:
    """The network of a run with its trained weights."""
    config = run_config(folder)
    module = build_problem(config).build(config.training.seed)
    Layout.of(module).load(module, run_weights(folder, average=average))
    return module


def export_model(folder: RunFolder, path: Path, *, average: bool = False) -> int:
    """Write the model's state dict as safetensors or, for ``.pt``, with ``torch.save``; returns the rounds it has
    seen."""
    weights = run_model(folder, average=average).state_dict()
    plain = torch.contiguous_format
    state = {name: tensor.clone(memory_format=plain) for name, tensor in weights.items()}  # tied ones, one each
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise InvalidInput(f"{folder.path}: its weights {name!r} hold a NaN or infinity: no model to export")
    if path.suffix == ".pt":
        buffer = io.BytesIO()
        torch.save(state, buffer)
        data = buffer.getvalue()
    else:
        data = safetensors.torch.save(state)
    with disk_errors(path):
        write_atomically(path, data)
    return Checkpoints(folder).rounds()[-1]
