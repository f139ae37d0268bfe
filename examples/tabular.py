"""Not pictures, not classes: federated regression on scikit-learn's diabetes table, with a loss and a metric of
your own. Each client is one decade of age, so the clients differ."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

from fedgloss import FedAvg, Federation, FedGloSS, LocalTraining, Problem, Scaffold, train


def absolute_error(outputs, targets):
    """A metric gives one value per sample; the mean over the test set is reported."""
    return (outputs.squeeze(1) - targets).abs()


def huber(outputs, targets):
    """A loss gives the batch's mean."""
    return nn.functional.smooth_l1_loss(outputs.squeeze(1), targets)


def make_problem() -> Problem:
    table = load_diabetes(scaled=False)
    inputs = (table.data - table.data.mean(0)) / table.data.std(0)
    targets = (table.target - table.target.mean()) / table.target.std()
    order = np.random.default_rng(0).permutation(len(targets))
    test, rest = order[:100], order[100:]
    decades = table.data[rest, 0] // 10
    federation = Federation.from_arrays(
        inputs[rest],
        targets[rest],
        clients=[np.flatnonzero(decades == d) for d in np.unique(decades)],
        test=(inputs[test], targets[test]),
    )

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))

    return Problem(federation, model, loss=huber, metrics={"absolute error": absolute_error})


if __name__ == "__main__":
    torch.set_num_threads(1)
    problem, local = make_problem(), LocalTraining(lr=0.05, batch_size=16)
    for algorithm in (FedAvg(local), Scaffold(local), FedGloSS(rho=0.05, beta=10, local=local)):
        history = train(algorithm, problem, rounds=60, cohort=3)
        error = history.reported("absolute error")
        print(f"{type(algorithm).__name__:9} mean absolute error {error:.3f} standard deviations")
