"""A data set before it is divided among clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .federation import Indices, Samples, Transform

Names: TypeAlias = npt.NDArray[np.bytes_]


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and test pictures (uint8, height x width x channels) with their labels."""

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
