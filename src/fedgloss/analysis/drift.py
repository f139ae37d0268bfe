"""How far clients pull apart in a round, and the local models' curvature against the global one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import InvalidInput, require
from ..vectors import Vector
from .hessian import Eigenvalues, Method, eigenvalues
from .mean_loss import Data, MeanLoss
from .results import Interrupted, Progress


@dataclass(frozen=True)
class Drift:
    """The clients' updates of one round compared with their weighted mean.

    ``drift`` is the mean squared distance to the mean update over its squared norm: 0 where all agree.
    ``agreement`` is the mean update's norm over the mean of the norms: 1 where all agree, 0 where they cancel.
    ``cosines`` are each client's with the mean update; ``pairwise`` is the mean cosine over pairs of clients.
    """

    clients: int
    norms: tuple[float, ...]
    mean_update_norm: float
    drift: float
    agreement: float
    cosines: tuple[float, ...]
    pairwise: float


def drift(deltas: Sequence[Vector], sizes: Sequence[float] | None = None) -> Drift:
    """Drift and alignment of client updates; ``sizes`` weigh the mean, as the server does.

    >>> found = drift([torch.tensor([1.0, 1.0]), torch.tensor([1.0, -1.0])])
    >>> found.mean_update_norm, found.drift, found.pairwise
    (1.0, 1.0, 0.0)
    """
    require(len(deltas) > 0, "deltas", "there are no client updates to compare")
    require(sizes is None or len(sizes) == len(deltas), "sizes", f"must be {len(deltas)}, one per client")
    if any(delta.shape != deltas[0].shape for delta in deltas):
        raise InvalidInput("deltas: the updates are of different networks")
    share = torch.tensor([1.0] * len(deltas) if sizes is None else list(sizes), dtype=torch.float64)
    share /= share.sum()
    gram = torch.empty(len(deltas), len(deltas), dtype=torch.float64)
    for i, one in enumerate(deltas):
        for j in range(i + 1):
            gram[i, j] = gram[j, i] = float(one.double() @ deltas[j].double())
    if not bool(torch.isfinite(gram).all()):
        raise InvalidInput("deltas: a client's update holds a NaN or infinity")
    with_mean = gram @ share
    mean_squared = float(share @ with_mean)
    squared = gram.diagonal()
    norms = squared.sqrt()
    distances = (squared - 2 * with_mean + mean_squared).clamp(min=0)
    cosines = gram / torch.outer(norms, norms).clamp(min=torch.finfo(torch.float64).tiny)
    pairs = torch.tril_indices(len(deltas), len(deltas), -1)
    mean_norm = max(mean_squared, 0.0) ** 0.5
    return Drift(
        clients=len(deltas),
        norms=tuple(norms.tolist()),
        mean_update_norm=mean_norm,
        drift=float(share @ distances) / mean_squared if mean_squared > 0 else float("inf"),
        agreement=mean_norm / total if (total := float(share @ norms)) > 0 else 0.0,
        cosines=tuple((with_mean / (norms * mean_norm)).nan_to_num(0.0).tolist()),
        pairwise=float(cosines[pairs[0], pairs[1]].mean()) if len(deltas) > 1 else 1.0,
    )


@dataclass(frozen=True)
class LocalAgainstGlobal:
    """One client's local model: its eigenvalues on its own data and on the union of all clients' data."""

    client: int
    local: Eigenvalues
    union: Eigenvalues


def local_against_global(
    loss: MeanLoss,
    models: Mapping[int, Vector],
    own: Mapping[int, Data],
    *,
    top: int = 1,
    method: Method = "lanczos",
    tolerance: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[LocalAgainstGlobal, ...]:
    """Each client's model after local training, measured on its own data and on the union, the data of ``loss``."""
    require(len(models) > 0, "models", "there are no local models")
    missing = [client for client in models if client not in own]
    require(not missing, "own", f"there is no data of client {missing[0] if missing else None}")
    found: list[LocalAgainstGlobal] = []
    try:
        for client, params in models.items():
            here = loss.on(own[client], split=f"client {client}")
            measured = [
                eigenvalues(
                    part,
                    params,
                    top=top,
                    method=method,
                    tolerance=tolerance,
                    seed=seed,
                    weights=f"client {client} after local training",
                )
                for part in (here, loss)
            ]
            found.append(LocalAgainstGlobal(client, *measured))
            if progress is not None:
                progress(len(found), len(models))
    except KeyboardInterrupt:
        raise Interrupted(tuple(found)) from None
    return tuple(found)
