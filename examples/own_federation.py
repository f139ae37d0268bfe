"""A federation from your own code: any inputs, any targets, divided as you like.

    cd examples
    fedgloss data show own_federation:make_federation --set hospitals=6

A package can offer it under a name of its own; in its pyproject.toml:

    [project.entry-points."fedgloss.data"]
    hospitals = "own_federation:make_federation"
"""

import numpy as np
from sklearn.datasets import load_breast_cancer

from fedgloss import Federation


def make_federation(hospitals: int = 4, test_share: float = 0.25, seed: int = 0) -> Federation:
    """Breast cancer diagnoses; each hospital sees tumours of another size."""
    table = load_breast_cancer()
    inputs = (table.data - table.data.mean(0)) / table.data.std(0)
    order = np.random.default_rng(seed).permutation(len(inputs))
    test, rest = np.split(order, [round(test_share * len(order))])
    by_size = np.argsort(inputs[rest, 0])
    return Federation.from_arrays(
        inputs[rest],
        table.target[rest],
        clients=np.array_split(by_size, hospitals),
        test=(inputs[test], table.target[test]),
        name="hospitals",
        classes=("malignant", "benign"),
    )
