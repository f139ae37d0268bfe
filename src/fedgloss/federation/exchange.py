"""The server's part in an exchange with sites: letters out, replies judged, updates in the order of the cohort.

What comes from a site is believed only after it was checked: its length before it is decoded, then kind, names,
shapes, types, round, and that all numbers are finite and of a size that training can have.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from ..algorithm import Algorithm, Dropped
from ..codec import decode, encode, encoded_size
from ..environment import code_fingerprint
from ..errors import InvalidInput
from ..messages import Broadcast, Update
from ..transports.schedule import shared_out
from ..vectors import Layout, Vector, norm
from .memory import NEVER

LARGEST_SCALAR = 1e12
"""No loss, step count or sum of learning rates is larger; sums over sites of what is smaller stay finite."""


@dataclass(frozen=True)
class Reply:
    """What a site sent, or what became of the letter to it."""

    site: int
    content: Mapping[str, Any] | None = None
    error: str = ""


class Post(Protocol):
    """Carries letters to sites and brings what comes back, in any order, until all answered or time is up."""

    def connected(self, wanted: Sequence[int]) -> set[int]:
        """Which of the wanted sites can be reached, after waiting for them as long as is set."""

    def exchange(self, letters: Mapping[int, Mapping[str, Any]], group: str) -> Iterable[Reply]: ...


class TooFewSites(RuntimeError):
    """A round that fewer sites answered than are needed. It leaves no trace and can be done again."""


@dataclass(frozen=True)
class Rules:
    """When a round counts: at least ``minimum`` sites answered, with no vector longer than ``max_norm``."""

    minimum: int = 1
    max_norm: float = 1e6


def in_words(reason: object) -> str:
    """A reason that a site may have worded: fit for a log and a terminal, however long and whatever is in it."""
    return "".join(letter if letter.isprintable() else " " for letter in str(reason)[:500])


class _Still:
    """A client whose gradient is zero: what a method's update looks like can be read off its answer."""

    size = 1

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def batches(self, batch_size: int, epochs: int) -> Iterator[None]:
        yield None

    def gradient(self, params: Vector, batch: None) -> Vector:
        return torch.zeros_like(params)

    def mean_loss(self) -> float:
        return 0.0


class SiteTransport:
    """Carries broadcasts to sites. ``taken`` says for each site in which round its update was used last, as of the
    last checkpoint; the updates of the running round join it once the next one is saved (``saved``)."""

    def __init__(
        self, post: Post, algorithm: Algorithm, layout: Layout, run: str, rules: Rules, taken: dict[int, int]
    ) -> None:
        self._post = post
        self._algorithm = algorithm
        self._layout = layout
        self._run = run
        self._rules = rules
        self.taken = taken
        self.used: dict[int, int] = {}
        self.incidents: list[dict[str, Any]] = []

    def __call__(self, broadcast: Broadcast, cohort: Sequence[int]) -> Iterator[Update | Dropped]:
        expected = self.expected(broadcast)
        online = self._post.connected(cohort)
        data = encode(broadcast)
        letters = {
            site: {
                "run": self._run,
                "code": code_fingerprint(),
                "site": site,
                "taken": self.taken.get(site, NEVER),
                "shared_out": shared_out(site, cohort),
                "broadcast": data,
            }
            for site in cohort
            if site in online
        }
        found: dict[int, Update] = {}
        reasons = {site: "is not connected" for site in cohort if site not in online}
        for reply in self._post.exchange(letters, f"{broadcast.round}-{broadcast.purpose}"):
            if reply.site in found:
                self._note(broadcast, reply.site, "replied twice; the first reply counts")
                continue
            try:
                found[reply.site] = self._judged(reply, broadcast, expected)
                reasons.pop(reply.site, None)
            except InvalidInput as error:
                reasons[reply.site] = in_words(error)
        for site in cohort:
            if site not in found:
                reasons.setdefault(site, "did not answer in time")
                self._note(broadcast, site, reasons[site])
        minimum = min(self._rules.minimum, len(cohort))
        if len(found) < minimum:
            why = "; ".join(f"site {site} {reason}" for site, reason in reasons.items())
            raise TooFewSites(
                f"round {broadcast.round}: {len(found)} of {len(cohort)} sites answered, at least "
                f"{minimum} are needed ({why})"
            )
        if broadcast.purpose == "train":
            self.used = dict.fromkeys(found, broadcast.round)
        for site in cohort:
            yield found[site] if site in found else Dropped(site, reasons[site])

    def saved(self) -> None:
        """The state after the round is on the disk: from now on the sites may be told that they were used."""
        self.taken.update(self.used)
        self.used = {}

    def expected(self, broadcast: Broadcast) -> Update:
        """An update as the method's sites send it: its names and shapes."""
        memory = self._algorithm.init_client(broadcast["params"])
        return self._algorithm.client_update(broadcast, memory, _Still(self._layout))[0]

    def _judged(self, reply: Reply, broadcast: Broadcast, expected: Update) -> Update:
        """The update in a reply; refuses what is not one of this exchange."""
        if reply.content is None:
            raise InvalidInput(reply.error or "sent nothing")
        if "refused" in reply.content:
            raise InvalidInput(f"refused: {reply.content['refused']}")
        content = reply.content
        if (content.get("round"), content.get("purpose")) != (broadcast.round, broadcast.purpose):
            raise InvalidInput(
                f"answered round {content.get('round')!r} ({content.get('purpose')!r}), asked was "
                f"{broadcast.round} ({broadcast.purpose})"
            )
        data, length = content.get("update"), encoded_size(expected)
        if not isinstance(data, bytes) or len(data) != length:
            size = f"{len(data)} bytes" if isinstance(data, bytes) else "no bytes"
            raise InvalidInput(f"sent {size} where an update has {length}")
        update = decode(Update, data, size=self._layout.size)
        if update.vectors.keys() != expected.vectors.keys() or update.scalars.keys() != expected.scalars.keys():
            raise InvalidInput(f"sent {sorted(update.vectors)}, asked was {sorted(expected.vectors)}")
        if not 1 <= update.size <= 2**40:
            raise InvalidInput(f"says that it has {update.size} samples")
        for name, value in update.scalars.items():
            if not math.isfinite(value):
                raise InvalidInput(f"sent a {name} that is not finite")
            if abs(value) > LARGEST_SCALAR:
                raise InvalidInput(f"sent a {name} of {value:.3g}, above {LARGEST_SCALAR:g}")
        for name, vector in update.vectors.items():
            if vector.dtype != self._layout.dtype:
                raise InvalidInput(f"sent a {name} of type {vector.dtype}, the model has {self._layout.dtype}")
            magnitude = norm(vector)
            if not math.isfinite(magnitude):
                raise InvalidInput(f"sent a {name} that is not finite")
            if magnitude > self._rules.max_norm:
                raise InvalidInput(f"sent a {name} of norm {magnitude:.3g}, above {self._rules.max_norm:g}")
        return replace(update, vectors={name: update[name] for name in expected.vectors})  # in the method's order

    def _note(self, broadcast: Broadcast, site: int, what: str) -> None:
        self.incidents.append({"round": broadcast.round, "purpose": broadcast.purpose, "site": site, "what": what})
