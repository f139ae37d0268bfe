"""A site's part: what it does with a message, and what it answers. Knows nothing of how messages travel."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..codec import decode, encode, encoded_size
from ..compute import compute_threads
from ..environment import code_fingerprint
from ..errors import Diverged, InvalidInput
from ..messages import Broadcast
from ..tasks import ClientObjective, NoHelper
from ..transports.serial import run_client
from .definition import Learning, as_samples, check_samples
from .memory import SiteMemory
from .privacy import anonymous

MOST_VECTORS = 4  # that a broadcast carries: what is longer is not even decoded


def answer(
    learning: Learning, node_config: Mapping[str, Any], folder: Path, letter: Mapping[str, Any]
) -> dict[str, Any]:
    """What the site replies to the server's letter; what it cannot do, it says in words."""
    try:
        return _work(learning, node_config, folder, letter)
    except (InvalidInput, Diverged, OSError) as error:
        return {"refused": f"{type(error).__name__}: {error}"[:500]}


def _work(
    learning: Learning, node_config: Mapping[str, Any], folder: Path, letter: Mapping[str, Any]
) -> dict[str, Any]:
    run, taken, site, data = (letter.get(name) for name in ("run", "taken", "site", "broadcast"))
    if not (isinstance(run, str) and isinstance(taken, int) and isinstance(site, int) and isinstance(data, bytes)):
        raise InvalidInput("message: not a letter of a fedgloss server")
    if letter.get("code") != code_fingerprint():
        raise InvalidInput(
            f"message: the server's fedgloss has the code {letter.get('code')}, this site's {code_fingerprint()} "
            f"(version {version('fedgloss')}); install the same"
        )
    own = node_config.get("partition-id", site)
    if own != site:
        raise InvalidInput(f"message: is for site {site}, this is site {own}")
    objective = learning.objective()
    size, params = objective.layout.size, objective.initial()
    if len(data) > encoded_size(Broadcast({f"vector_{i}": params for i in range(MOST_VECTORS)}, 0)):
        raise InvalidInput(f"message: {len(data)} bytes are more than any broadcast for this network")
    broadcast = decode(Broadcast, data, size=size)
    memory = SiteMemory(folder, run, size=size)
    with memory.locked(), compute_threads(1):
        known = memory.settle(taken, broadcast.round)
        samples = as_samples(learning.client_data(node_config), "client_data")
        check_samples(objective, samples, learning.transform, "client_data")
        task = ClientObjective(
            objective,
            samples,
            learning.transform,
            client=site,
            seed=learning.plan.seed,
            round=broadcast.round,
            purpose=broadcast.purpose,
        )
        if letter.get("shared_out"):
            task.share(NoHelper())
        update, after = run_client(learning.algorithm, task, broadcast, site, known)
        if learning.privacy is not None:
            update = anonymous(update)
        if broadcast.purpose == "train":
            memory.keep(broadcast.round, after)
    return {"round": broadcast.round, "purpose": broadcast.purpose, "update": encode(update)}
