"""Ways to divide training samples among clients. Each takes labels (or owners) and gives a ``Partition``.

Every sample goes to exactly one client and no client is empty, unless a function says otherwise. Where the samples
do not divide evenly, equal sizes means sizes that differ by at most one. All draws come from the seed alone.
"""

from __future__ import annotations

import heapq
import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput, require
from ..randomness import stream
from .federation import Indices, Partition

Weights = npt.NDArray[np.float64]
Integers = npt.NDArray[np.integer]

SMALLEST_ALPHA = 1e-9
"""Below it a draw is one class to the last digit, which is what 0 stands for."""

BLOCK = 1 << 15
"""Of so many numbers at a time: work is vectorised, and what it takes beside its result stays small."""
FEW_GROUPS = 16  # as many passes over all take less time than a sort

MOST_TRADES, LEAST_TRADES, CARDS_TRADED = 32, 6, 12_000_000
"""Each round of trades halves what is left of the order in a deal; a million clients make do with six."""


def iid(samples: int, clients: int, seed: int = 0) -> Partition:
    """A random division into equal sizes.

    >>> iid(7, 3).sizes.tolist()
    [2, 2, 3]
    """
    _check_clients(clients, samples)
    return Partition(_generator(seed).permutation(samples), _equal_offsets(samples, clients))


def natural(owners: Indices) -> Partition:
    """Each owner is a client, in the order of their numbers.

    >>> parts = natural(np.array([7, 3, 7, 7]))
    >>> [parts[client].tolist() for client in range(len(parts))]
    [[1], [0, 2, 3]]
    """
    require(len(owners) > 0, "owners", "there are no samples")
    if owners.min() < 0 or owners.max() >= len(owners):  # numbers of another world: count them from 0
        owners = np.unique(owners, return_inverse=True)[1].astype(np.int64)
    counts = np.bincount(owners)
    return Partition(_grouped(owners), _offsets(counts[counts > 0]))


def shards(labels: Indices, clients: int, classes_per_client: int, seed: int = 0) -> Partition:
    """Exactly so many classes for every client.

    Each class is cut into equal pieces, the number of pieces in proportion to its size, and every client is dealt
    pieces of different classes. Sizes are equal where the classes are.

    >>> labels = np.repeat(np.arange(4), 6)
    >>> parts = shards(labels, clients=6, classes_per_client=2)
    >>> {len(set(labels[parts[client]])) for client in range(6)}, set(parts.sizes.tolist())
    ({2}, {4})
    """
    _check_clients(clients, len(labels))
    present, counts = _classes(labels)
    each, total = classes_per_client, clients * classes_per_client
    require(1 <= each <= len(present), "classes_per_client", f"must lie in 1..{len(present)}, got {each}")
    if total < len(present):
        raise InvalidInput(
            f"clients: {clients} clients of {each} class{'es' * (each > 1)} cannot hold {len(present)} classes; "
            f"take at least {math.ceil(len(present) / each)} clients"
        )
    most = np.minimum(counts, clients)  # a piece is at least one sample, and a client takes a class once
    if most.sum() < total:
        raise InvalidInput(
            f"classes_per_client: {clients} clients of {each} classes need {total} pieces, "
            f"the classes have {most.sum()} to give; take fewer clients or fewer classes per client"
        )
    generator = _generator(seed)
    wanted = counts * (total / len(labels))
    pieces = 1 + _apportion(total - len(present), np.log(np.maximum(wanted - 1, 1e-9)), most - 1)
    holders = (_grouped(_dealt(pieces, clients, each, generator).ravel()) // each).astype(np.int32)
    sizes = np.concatenate([_cuts(int(c), int(p)) for c, p in zip(counts, pieces, strict=True)])
    return _given(_by_class(labels, counts, generator), holders, sizes, clients)


def hsu(labels: Indices, clients: int, alpha: float, seed: int = 0, *, multinomial: bool = False) -> Partition:
    """Equal sizes, class shares drawn per client from a Dirichlet distribution (Hsu, Qi and Brown, 2019).

    ``alpha`` is the *total* concentration: the draw is from Dir(alpha * prior), the prior being the data set's own
    class shares, so on ten equal classes each has alpha / 10. Clients are filled one after the other, without
    replacement; a class that has run out is dropped and the other shares are renormalised, so the last clients see
    fewer classes. Counts are the shares rounded (largest remainders); ``multinomial`` draws them instead.
    ``alpha = 0`` is one class per client.
    """
    _check_clients(clients, len(labels))
    _check_alpha(alpha)
    if alpha == 0:
        return _one_class_each(labels, clients, seed)
    _, counts = _classes(labels)
    generator = _generator(seed)
    by_class = _by_class(labels, counts, generator)
    concentration = alpha * counts / len(labels)
    needs = np.diff(_equal_offsets(len(labels), clients))
    drawn = generator if multinomial else None
    left, runs = counts.copy(), []
    block = max(1, BLOCK // len(counts))
    for first in range(0, clients, block):
        need = needs[first : first + block]
        logs = _log_gamma(np.broadcast_to(concentration, (len(need), len(counts))), generator)
        client = 0
        while client < len(need):
            # One after the other, but all at once as far as no class runs out, which happens once a class at most.
            taken = _rounded(need[client:], logs[client:], left > 0, drawn)
            after = left - np.cumsum(taken, axis=0)
            clean = min(_first_row(after < 0), _first_row((after == 0) & (left > 0)) + 1, len(taken))
            if clean == 0:
                taken, clean = _apportion(int(need[client]), logs[client], left, drawn)[None], 1
            client_in_block, kind = np.nonzero(taken[:clean])
            runs.append((first + client + client_in_block, kind, taken[client_in_block, kind]))
            left -= taken[:clean].sum(0)
            client += clean
    holders, kinds, sizes = (np.concatenate(part) for part in zip(*runs, strict=True))
    class_by_class = _grouped(kinds)
    return _given(by_class, holders[class_by_class], sizes[class_by_class], clients)


def dirichlet(labels: Indices, clients: int, alpha: float, seed: int = 0) -> Partition:
    """Unequal sizes: each class is divided among all clients by shares drawn from Dir(alpha, ..., alpha).

    A client whom every class passed over gets one sample of whoever then has most. ``alpha = 0`` is one class per
    client.
    """
    _check_clients(clients, len(labels))
    _check_alpha(alpha)
    if alpha == 0:
        return _one_class_each(labels, clients, seed)
    _, counts = _classes(labels)
    generator = _generator(seed)
    by_class = _by_class(labels, counts, generator)
    owners = np.empty(len(labels), np.int64)
    start = 0
    for count in counts.tolist():
        logs = _log_gamma(np.full(clients, alpha), generator)
        shares = np.exp(logs - logs.max())
        cuts = np.rint(np.cumsum(shares) * (count / shares.sum())).astype(np.int64)
        cuts[-1] = count
        owners[by_class[start : start + count]] = np.repeat(np.arange(clients), np.diff(cuts, prepend=0))
        start += count
    _fill_empty(owners, clients)
    return natural(owners)


def _one_class_each(labels: Indices, clients: int, seed: int) -> Partition:
    classes = len(_classes(labels)[0])
    if clients < classes:
        raise InvalidInput(
            f"alpha: 0 gives each client one class, and {clients} clients cannot hold {classes} classes; "
            f"take at least {classes} clients, or an alpha above 0"
        )
    return shards(labels, clients, 1, seed)


# ------------------------------------------------------------------------------------- the authors' lists


@dataclass(frozen=True)
class OfficialList:
    """One file of the authors': for each of its users, in the order of their numbers, picture names and labels."""

    path: Path
    users: tuple[int, ...]
    names: tuple[tuple[str, ...], ...]
    labels: tuple[tuple[int, ...], ...]


def read_official(path: Path | str) -> OfficialList:
    """Read ``{"users": [..], "num_samples": [..], "users_data": {user: {"x": names, "y": labels}}}``.

    ``num_samples`` is not looked at: one of the published files (CIFAR-10, alpha 5) has it wrong for every user.
    """
    path = Path(path)
    if not path.is_file():
        raise InvalidInput(
            f"{path}: no such file; the official splits come from a copy of the FedGloSS authors' repository "
            "(federated_train_alpha_<alpha>.json and test.json of the data set)"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        users = [int(user) for user in content["users"]]
        data = {int(user): entry for user, entry in content["users_data"].items()}
        names = {user: entry["x"] for user, entry in data.items()}
        labels = {user: entry["y"] for user, entry in data.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{path}: not a split in the authors' format (JSON with users and users_data)"
        ) from error
    if len(set(users)) != len(users) or set(users) != set(data):
        raise InvalidInput(f"{path}: users and users_data do not name the same users, each once")
    for user in users:
        x, y = names[user], labels[user]
        if not (isinstance(x, list) and isinstance(y, list) and len(x) == len(y) > 0):
            raise InvalidInput(f"{path}: user {user} must have as many names (x) as labels (y), and at least one")
        if not all(isinstance(n, str) for n in x) or not all(type(label) is int for label in y):
            raise InvalidInput(f"{path}: user {user} must have texts as x and whole numbers as y")
    order = tuple(sorted(users))
    return OfficialList(
        path, order, tuple(tuple(names[user]) for user in order), tuple(tuple(labels[user]) for user in order)
    )


def official(
    path: Path | str, labels: Indices, names: Sequence[str] | npt.NDArray[np.bytes_] | None = None
) -> Partition:
    """The division a file of the authors' makes; user k is client k. Samples that it does not list are left out.

    Names of the form ``img_<index>_label_<label>.png`` (CIFAR-10) give the sample's place in the data set; others
    are looked up, together with their label, in ``names`` (CIFAR-100: the file names inside the original archive).
    Either way the file's labels must be the data set's.
    """
    lists = read_official(path)
    index = _index_of(lists, labels, names)
    return Partition(index, _offsets(np.array([len(x) for x in lists.names], np.int64)))


NUMBERED = re.compile(r"img_(\d+)_label_(\d+)\.png")


def _index_of(
    lists: OfficialList, labels: Indices, names: Sequence[str] | npt.NDArray[np.bytes_] | None
) -> Indices:
    """Every listed sample's place in the data set, users one after the other; each at most once."""
    path = lists.path
    listed = [pair for x, y in zip(lists.names, lists.labels, strict=True) for pair in zip(x, y, strict=True)]
    places: dict[tuple[int, str], int] = {}
    if names is not None:
        require(len(names) == len(labels), "names", f"{len(names)} names for {len(labels)} labels")
        decoded = (n.decode() if isinstance(n, bytes) else n for n in names)
        places = {key: place for place, key in enumerate(zip(labels.tolist(), decoded, strict=True))}
        require(len(places) == len(names), "names", "a name occurs twice with the same label")
    index = np.empty(len(listed), np.int64)
    for number, (name, label) in enumerate(listed):
        place = places.get((label, name))
        if place is None and (match := NUMBERED.fullmatch(name)):
            place = int(match[1])
            if place >= len(labels):
                raise InvalidInput(f"{path}: {name} is outside the {len(labels)} samples of the data set")
            if not label == int(match[2]) == labels[place]:
                raise InvalidInput(
                    f"{path}: {name} is listed with label {label}, the data set has label {labels[place]} there"
                )
        if place is None:
            raise InvalidInput(
                f"{path}: {name} with label {label} is not in the data set; "
                "is this the file of another data set, or are the data without their file names?"
            )
        index[number] = place
    found, times = np.unique(index, return_counts=True)
    if (times > 1).any():
        raise InvalidInput(f"{path}: sample {found[times > 1][0]} is listed twice")
    return index


# ------------------------------------------------------------------------------------------------- helpers


def _generator(seed: int) -> np.random.Generator:
    return stream(seed, "split")


def _check_clients(clients: int, samples: int) -> None:
    require(clients >= 1, "clients", f"must be at least 1, got {clients}")
    require(
        clients <= samples, "clients", f"{clients} clients cannot share {samples} samples: each needs at least one"
    )


def _check_alpha(alpha: float) -> None:
    fits = alpha == 0 or (math.isfinite(alpha) and alpha >= SMALLEST_ALPHA)
    require(fits, "alpha", f"must be 0 (one class per client) or at least {SMALLEST_ALPHA}, got {alpha}")


def _classes(labels: Indices) -> tuple[Indices, Indices]:
    """The labels that occur, and how often."""
    require(labels.min() >= 0, "labels", f"must be 0 or more, got {labels.min()}")
    counts = np.bincount(labels)
    present = np.flatnonzero(counts)
    return present, counts[present]


def _offsets(sizes: Indices) -> Indices:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _equal_offsets(samples: int, clients: int) -> Indices:
    return np.arange(clients + 1, dtype=np.int64) * samples // clients


def _cuts(count: int, pieces: int) -> Integers:
    return np.diff(_equal_offsets(count, pieces)).astype(np.int32)


def _grouped(groups: Integers) -> Indices:
    """Places in the order of their group number, within a group as they came.

    One sort of ``group * n + place``, in one array: a stable argsort is slower and takes three times the memory.
    A few groups are looked for one by one, which is faster still.
    """
    n = len(groups)
    keys = np.empty(n, np.int64)
    if n and groups.min() >= 0 and groups.max() < FEW_GROUPS:
        stop = 0
        for group, first in itertools.product(range(FEW_GROUPS), range(0, n, BLOCK)):
            places = np.flatnonzero(groups[first : first + BLOCK] == group)
            start, stop = stop, stop + len(places)
            np.add(places, first, out=keys[start:stop])
        return keys
    for start in range(0, n, BLOCK):
        stop = min(start + BLOCK, n)
        keys[start:stop] = groups[start:stop]
        keys[start:stop] *= n
        keys[start:stop] += np.arange(start, stop)
    keys.sort()
    keys %= n
    return keys


def _by_class(labels: Indices, counts: Indices, generator: np.random.Generator) -> Indices:
    """All samples, class after class, each class in random order."""
    order = _grouped(labels)
    for stop, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
        generator.shuffle(order[stop - count : stop])
    return order


def _given(samples: Indices, holders: Integers, sizes: Integers, clients: int) -> Partition:
    """Runs of ``samples`` given away: the first ``sizes[0]`` to client ``holders[0]``, and so on.

    Works in ``samples`` itself: as in ``_grouped`` by one sort, so a client's samples come in ascending order.
    """
    n, stop = len(samples), 0
    offsets = np.zeros(clients + 1, np.int64)
    for first in range(0, len(sizes), BLOCK):
        holder, size = (a[first : first + BLOCK].astype(np.int64) for a in (holders, sizes))
        np.add.at(offsets[1:], holder, size)
        keys = np.repeat(holder * n, size)
        start, stop = stop, stop + len(keys)
        samples[start:stop] += keys
    samples.sort()
    samples %= n
    return Partition(samples, np.cumsum(offsets, out=offsets))


def _log_gamma(concentration: Weights, generator: np.random.Generator) -> Weights:
    """Logarithms of Gamma draws, whose shares are a Dirichlet draw.

    Gamma(a) is Gamma(a + 1) * U ** (1 / a): in logarithms no small concentration underflows.
    """
    large = np.log(generator.standard_gamma(concentration + 1))
    return large + np.log1p(-generator.random(concentration.shape)) / concentration


def _rounded(
    needs: Indices, logs: Weights, free: npt.NDArray[np.bool_], generator: np.random.Generator | None
) -> Indices:
    """Each row's need over the free classes by its shares, given as logarithms.

    Rounded by largest remainders, or drawn when there is a generator.
    """
    logs = np.where(free, logs, -np.inf)
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    shares = weights / weights.sum(axis=1, keepdims=True)
    if generator is not None:
        drawn: Indices = generator.multinomial(needs, shares)
        return drawn
    quota = needs[:, None] * shares
    given: Indices = quota.astype(np.int64)
    rest = needs - given.sum(axis=1)
    ranks = (given - quota).argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")
    given += ranks < rest[:, None]
    return given


def _apportion(need: int, logs: Weights, room: Indices, generator: np.random.Generator | None = None) -> Indices:
    """``need`` things over classes as ``_rounded`` does it, but no more in a class than there is room.

    What a full class cannot take goes to the others, by their shares. There must be room enough.

    >>> _apportion(10, np.log([0.55, 0.25, 0.2]), np.array([4, 9, 9])).tolist()
    [4, 4, 2]
    """
    taken = np.zeros_like(room)
    while need > 0:
        given = _rounded(np.array([need]), logs[None], taken < room, generator)[0]
        given = np.minimum(given, room - taken)
        taken += given
        need -= int(given.sum())
    return taken


def _first_row(flags: npt.NDArray[np.bool_]) -> int:
    """The first row with a True in it, or the number of rows."""
    rows = np.flatnonzero(flags.any(axis=1))
    return int(rows[0]) if len(rows) else len(flags)


def _dealt(pieces: Indices, clients: int, each: int, generator: np.random.Generator) -> Integers:
    """A random (clients, each) table of classes, none twice in a row, class c in ``pieces[c]`` rows.

    The first deal is rigid: with the deck in the order of the classes, client k takes cards k, k + clients, ...,
    which differ since no class has more cards than there are clients. Then clients meet in random pairs, round
    after round, and shuffle what they do not have in common (the "curveball" walk over tables of given margins).
    """
    order = generator.permutation(len(pieces))
    hands = np.repeat(order.astype(np.int32), pieces[order]).reshape(each, clients).T
    half = clients // 2
    trades = min(MOST_TRADES, max(LEAST_TRADES, CARDS_TRADED // hands.size)) if each > 1 else 1
    for _ in range(trades):
        hands = hands.take(generator.permutation(clients), axis=0)
        left, right = hands[:half], hands[half : 2 * half]
        cards = np.sort(np.concatenate([left, right], axis=1), axis=1)
        twice = cards[:, 1:] == cards[:, :-1]
        rank = generator.random(cards.shape, np.float32)
        np.copyto(rank[:, :-1], -1, where=twice)  # of a class that both have, each keeps one
        np.copyto(rank[:, 1:], 2, where=twice)
        cards = np.take_along_axis(cards, rank.argsort(axis=1), axis=1)
        left[:], right[:] = cards[:, :each], cards[:, each:]
    return hands


def _fill_empty(owners: Indices, clients: int) -> None:
    """Give each client without a sample one of whoever has most."""
    sizes = np.bincount(owners, minlength=clients)
    empty = np.flatnonzero(sizes == 0)
    if not len(empty):
        return
    order, ends = _grouped(owners), np.cumsum(sizes)
    richest = [(-size, client) for client, size in enumerate(sizes.tolist()) if size > 1]
    heapq.heapify(richest)
    for client in empty.tolist():
        size, donor = richest[0]
        heapq.heapreplace(richest, (size + 1, donor))
        ends[donor] -= 1
        owners[order[ends[donor]]] = client
