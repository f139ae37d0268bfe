"""Small real runs for tests of the report: Gaussian blobs, a tiny network, every file as a run writes it."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from toys import blobs, small_network

from fedgloss import LocalTraining
from fedgloss.algorithms import build
from fedgloss.divergence import Limits
from fedgloss.records import RunFolder
from fedgloss.run import Execution, Job, execute
from fedgloss.sampling import ExactCohort
from fedgloss.tasks import Problem
from fedgloss.training import Plan


def make_run(
    folder: Path,
    method: str = "fedavg",
    *,
    seed: int = 0,
    rounds: int = 12,
    classes: tuple[str, ...] = (),
    note: str | None = None,
    clients: int = 6,
    lr: float = 0.1,
    client_accuracy: bool = True,
    max_norm: float = 1e6,
    **options: Any,
) -> Path:
    """Train for a moment and return the run's folder."""
    chosen = {"name": method, **options}
    config = "\n".join(
        [
            'fidelity = "paper"',
            f'[data]\nname = "blobs"\nsplit = "hsu"\nclients = {clients}\nalpha = 0.0\nseed = 0',
            '[model]\nname = "small"',
            f"[local]\nlr = {lr}\nepochs = 1\nbatch_size = 8\nweight_decay = 0.0",
            "[algorithm]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in chosen.items()),
            f"[training]\nrounds = {rounds}\ncohort = 3\nseed = {seed}\neval_every = 2",
            '[run]\ndevice = "cpu"' + ("" if note is None else f"\nnote = {json.dumps(note)}"),
        ]
    )
    federation = dataclasses.replace(blobs(clients=clients), classes=classes or ("zero", "one", "two"))
    job = Job(
        algorithm=build(method, LocalTraining(lr=lr, batch_size=8), **options),
        problem=Problem(federation, small_network),
        plan=Plan(
            rounds=rounds, sampling=ExactCohort(3), seed=seed, eval_every=2, window=2, limits=Limits(max_norm)
        ),
        config=config + "\n",
        client_accuracy=client_accuracy,
    )
    execute(job, RunFolder(folder), Execution(checkpoint_seconds=3600))
    return folder


def make_study(folder: Path, *, seeds: tuple[int, ...] = (0, 1, 2)) -> list[Path]:
    """FedAvg, FedSAM and FedGloSS over three seeds, one method that diverges, and what was measured on them."""
    runs = []
    for seed in seeds:
        runs += [
            make_run(folder / f"fedavg-seed{seed}", seed=seed),
            make_run(folder / f"fedsam-seed{seed}", "fedsam", seed=seed),
            make_run(folder / f"fedgloss-sam-seed{seed}", "fedgloss", client="sam", beta=5.0, seed=seed),
            make_run(folder / f"feddyn-seed{seed}", "feddyn", client="sgd", beta=0.01, max_norm=5.0, seed=seed),
        ]
    for number, run in enumerate(runs):
        if "feddyn" not in run.name:
            add_analysis(run, steepness=1.0 + number % 4, partner="fedavg-seed0")
    return runs


SUBJECT = {"samples": 120, "parameters": 75, "split": "train", "weights": "last", "precision": "float32"}


def eigenvalues(*values: float, bottom: float = -0.5) -> dict[str, Any]:
    """As ``fedgloss flatness`` writes them."""

    def one(value: float) -> dict[str, Any]:
        return {"value": value, "residual": 1e-4, "iterations": 20, "spread": 0.1 * abs(value), "by_subset": []}

    return {
        "method": "lanczos",
        "top": [one(value) for value in values],
        "bottom": [one(bottom)],
        "products": 20,
        "tolerance": 1e-3,
        "converged": True,
        "seed": 0,
        "subject": SUBJECT,
    }


def surface(steepness: float, size: int = 9) -> dict[str, Any]:
    """A bowl, as ``fedgloss landscape`` writes it."""
    places = np.linspace(-1, 1, size)
    heights = 0.2 + steepness * (places[:, None] ** 2 + 0.5 * places**2)
    return {
        "x": places.tolist(),
        "y": places.tolist(),
        "grids": {"loss": heights.tolist(), "accuracy": (1 / (1 + heights)).tolist()},
        "centre": {"loss": 0.2, "accuracy": 0.8},
        "directions": "filter-normalised",
        "seed": 0,
        "fingerprint": "0" * 16,
        "computed": size * size,
        "subject": SUBJECT,
    }


def add_analysis(run: Path, *, steepness: float, partner: str) -> None:
    """Every kind of result, in the files and shapes the analysis commands write."""
    folder = run / "analysis"
    folder.mkdir(exist_ok=True)
    at = np.linspace(-1, 2, 13)
    local = [
        {"client": client, "local": eigenvalues(9.0 + client), "union": eigenvalues(5.0 * steepness)}
        for client in (0, 2, 4)
    ]
    points = np.linspace(-1, 4 * steepness, 20).tolist()
    found = {
        "flatness-train": eigenvalues(4 * steepness, 2 * steepness, steepness),
        "landscape-train": surface(steepness),
        f"interpolation-to-{partner}-last": {
            "train": {
                "to": partner,
                "barrier": 0.0625,
                "coefficients": at.tolist(),
                "curves": {"loss": (0.3 + (at - 0.5) ** 2).tolist(), "accuracy": (0.9 - 0.1 * at**2).tolist()},
                "subject": SUBJECT,
            }
        },
        "density": {
            "points": [points, points],
            "masses": [[0.05] * 20, [0.05] * 20],
            "products": 40,
            "seed": 0,
            "subject": SUBJECT,
        },
        "local": local,
        "sharpness": {
            "worst": {"value": 0.1 * steepness, "rho": 0.05, "steps": 1, "loss": 0.2, "subject": SUBJECT},
            "average": {
                "value": 0.01, "error": 0.001, "sigma": 0.01, "draws": 5, "loss": 0.2, "seed": 0, "subject": SUBJECT
            },
            "trace": {"value": 12.5, "error": None, "products": 30, "seed": 0, "subject": SUBJECT},
        },
    }  # fmt: skip
    for name, content in found.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
