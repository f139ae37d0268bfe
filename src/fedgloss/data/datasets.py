"""A data set before it is divided among clients, and the names under which data sets are found."""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import InvalidInput, require
from ..randomness import stream
from .federation import Federation, Indices, Samples, Transform
from .store import StoredSamples

Names: TypeAlias = npt.NDArray[np.bytes_]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test pictures (uint8, height x width x channels) with their labels.

    ``owners`` says whose each training picture is, where the data themselves say so. ``train_names`` and
    ``test_names`` are the file names that published lists of clients speak of; with the label a name is unique.
    ``notes`` records where everything came from.
    """

    name: str
    train: Samples
    test: Samples
    train_labels: Indices
    test_labels: Indices
    classes: tuple[str, ...]
    transform: Transform
    owners: Indices | None = None
    train_names: Names | None = None
    test_names: Names | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for part, samples, labels in (
            ("train", self.train, self.train_labels),
            ("test", self.test, self.test_labels),
        ):
            require(len(samples) > 0, part, f"{self.name} has no {part} pictures")
            require(len(samples) == len(labels), part, f"{len(labels)} labels for {len(samples)} pictures")
            low, high = int(labels.min()), int(labels.max())
            inside = low >= 0 and high < len(self.classes)
            require(inside, part, f"label {low if low < 0 else high} is not one of {len(self.classes)} classes")
        if self.owners is not None:
            owned = len(self.owners) == len(self.train)
            require(owned, "owners", f"{len(self.owners)} owners for {len(self.train)} pictures")


@dataclass(frozen=True)
class Entry:
    """A data set that can be asked for by name."""

    loader: str
    summary: str
    clients: int = 20
    by_hand: str = ""

    @property
    def module(self) -> Any:
        return importlib.import_module(f".{self.loader.partition(':')[0]}", __package__)

    @property
    def function(self) -> Callable[..., DataSet]:
        found: Callable[..., DataSet] = getattr(self.module, self.loader.partition(":")[2])
        return found


DATA_SETS: Mapping[str, Entry] = {
    "digits": Entry("digits:digits", "scikit-learn's 1,797 handwritten digits, 10 classes; always there"),
    "fashion-mnist": Entry(
        "idx:fashion_mnist",
        "70,000 grey pictures of clothing, 10 classes",
        clients=100,
        by_hand="install Debian's package dataset-fashion-mnist, or give the folder of the four IDX files "
        "(github.com/zalandoresearch/fashion-mnist) by path",
    ),
    "cifar10": Entry(
        "cifar:cifar10",
        "60,000 colour pictures, 10 classes",
        clients=100,
        by_hand="get https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz by other means and give it by path",
    ),
    "cifar100": Entry(
        "cifar:cifar100",
        "60,000 colour pictures, 100 classes",
        clients=100,
        by_hand="get https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz by other means and give it by path",
    ),
    "landmarks-user-160k": Entry(
        "landmarks:landmarks",
        "164,172 photographs of 2,028 landmarks by 1,262 users",
        by_hand="get federated_train.csv and test.csv "
        "(storage.googleapis.com/gresearch/federated-vision-datasets/landmarks-user-160k.zip) and the pictures "
        "(github.com/cvdfoundation/google-landmark, train set), and give their folder by path",
    ),
    "imagefolder": Entry("imagefolder:imagefolder", "your own pictures, a folder per class"),
    "npz": Entry("npz:npz", "your own pictures in a NumPy archive"),
    "huggingface": Entry("huggingface:huggingface", "any image data set that Hugging Face datasets has on disk"),
}


NEED_A_PATH = ("landmarks-user-160k", "imagefolder", "npz", "huggingface")


def load(name: str, **options: Any) -> DataSet | Federation:
    """The data set of this name; ``my_package:make_federation`` and installed plug-ins are names too.

    A plug-in may hand back a whole ``Federation`` instead; every other name gives a ``DataSet``.

    >>> digits = load("digits")
    >>> len(digits.train), len(digits.test), digits.classes[:3]
    (1438, 359, ('0', '1', '2'))
    """
    if name in DATA_SETS:
        loader = DATA_SETS[name].function
        check_options(name, loader, options)
        return loader(**options)
    from .plugin import find

    maker = find(name)
    check_options(name, maker, options)
    made = maker(**options)
    if not isinstance(made, DataSet | Federation):
        raise InvalidInput(f"{name}: made a {type(made).__name__}, must make a Federation or a DataSet")
    return made


def where(name: str) -> str | None:
    """Where a data set that needs no path lies on this machine; None if it is not here, or needs one."""
    place: str | None = DATA_SETS[name].module.where(name) if name not in NEED_A_PATH else None
    return place


def check_options(name: str, loader: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuse an option that the loader does not take, or one that it needs and is not given."""
    parameters = inspect.signature(loader).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return
    known = [p.name for p in parameters]
    for option in options:
        if option not in known:
            near = difflib.get_close_matches(option, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known) or 'none'}"
            raise InvalidInput(f"{name}: unknown option {option!r}; {hint}")
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in options:
            how = DATA_SETS[name].by_hand if name in DATA_SETS else ""
            raise InvalidInput(f"{name}: needs {parameter.name}{'; ' + how if how else ''}")


def held_out(labels: Indices, share: float, seed: int) -> Indices:
    """Indices of a test set: the same share of every class (rounded), drawn with the seed, in ascending order."""
    require(0 < share < 1, "test_share", f"must lie between 0 and 1, got {share}")
    drawn = []
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        order = stream(seed, "test set", client=int(label)).permutation(members)
        drawn.append(order[: round(share * len(members))])
    chosen: Indices = np.sort(np.concatenate(drawn)).astype(np.int64)
    require(len(chosen) > 0, "test_share", f"{share} of {len(labels)} pictures leaves no test set")
    return chosen


def channel_statistics(samples: StoredSamples, limit: int = 10_000) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel on the scale 0-1, from at most ``limit`` evenly spaced pictures."""
    count = min(limit, len(samples))
    indices = np.linspace(0, len(samples) - 1, count).round().astype(np.int64)
    if isinstance(samples, StoredSamples):
        samples.prepare(indices)
    total: npt.NDArray[np.float64] | float = 0.0
    squares: npt.NDArray[np.float64] | float = 0.0
    pixels = 0
    for start in range(0, count, 256):
        pictures = samples.fetch(indices[start : start + 256])[0].numpy()
        values = pictures.reshape(-1, pictures.shape[-1]).astype(np.float64) / 255
        total, squares, pixels = total + values.sum(0), squares + (values**2).sum(0), pixels + len(values)
    mean = np.asarray(total) / pixels
    deviation = np.sqrt(np.maximum(np.asarray(squares) / pixels - mean**2, 1e-6))
    return tuple(mean.round(4).tolist()), tuple(deviation.round(4).tolist())
