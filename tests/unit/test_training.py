"""The Python interface as its users meet it: what it returns, and what it refuses before training starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tabular
import torch
from torch import nn
from toys import blob_problem, blobs, small_network
from your_own_algorithm import LookAhead

from fedgloss import (
    AdaBest,
    Adaptive,
    Diverged,
    FedAvg,
    FedDyn,
    Federation,
    FedGloSS,
    FedProx,
    FedSMOO,
    FedSpeed,
    InvalidInput,
    LocalTraining,
    Mixed,
    MoFedSAM,
    Momentum,
    Partition,
    Problem,
    Sam,
    Scaffold,
    ServerSam,
    Sgd,
    Swa,
    WarmUp,
    Wima,
    train,
)
from fedgloss.algorithms import build
from fedgloss.divergence import Limits
from fedgloss.testing import check_algorithm
from fedgloss.training import Plan

EXAMPLES = Path(__file__).parents[2] / "examples"
LOCAL = LocalTraining(lr=0.1, batch_size=8)


def test_training_learns_and_the_history_tells_how() -> None:
    history = train(FedGloSS(0.05, 5.0, LOCAL, Sam(0.05)), blob_problem(), rounds=40, cohort=3)
    assert history.reported() > 0.85
    assert [r.round for r in history.rounds] == list(range(40))
    assert history.rounds[-1].loss < history.rounds[0].loss
    first = history.rounds[0]
    assert first.down.vectors == {"params": 3}
    assert first.up.vectors == {"delta": 3}
    assert first.up.vector_bytes["delta"] == 3 * 4 * history.layout.size
    assert first.down.bytes > first.down.vector_bytes["params"]
    assert set(first.norms) == {"params", "dual", "pseudo_gradient", "update", "params_before_dual"}
    assert first.delta_eps == {}
    assert 0 <= history.rounds[1].delta_eps["consecutive"] <= 2


def test_the_reported_figure_is_the_mean_of_the_last_rounds_not_the_best() -> None:
    history = train(FedAvg(LOCAL), blob_problem(), rounds=30, cohort=2, eval_every=7)
    assert [e.rounds for e in history.evaluations] == [7, 14, 21, 28, 29, 30]
    last = [e.metrics["accuracy"] for e in history.evaluations if e.rounds > 27]
    assert history.reported() == sum(last) / 3


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    ends = [train(FedAvg(LOCAL), blob_problem(), rounds=4, cohort=2, seed=s).state["params"] for s in (1, 1, 2)]
    assert ends[0].equal(ends[1])
    assert not ends[0].equal(ends[2])


def test_training_leaves_torchs_own_randomness_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train(FedAvg(LOCAL), blob_problem(), rounds=2, cohort=2)
    assert torch.rand(3).equal(expected)


def test_dropout_is_drawn_per_client_and_is_the_same_in_both_passes_of_sam() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 3))

    problem = Problem(blobs(), model)
    ends = [
        train(FedAvg(LOCAL, gradient), problem, rounds=3, cohort=2).state["params"]
        for gradient in (Sam(0.0), Sam(0.0), build("fedavg", LOCAL).gradient)
    ]
    assert ends[0].equal(ends[1])
    assert ends[0].equal(ends[2])  # SAM without ascent sees one dropout mask, twice


def test_a_module_is_the_starting_point_and_is_not_changed() -> None:
    module = small_network()
    before = [p.clone() for p in module.parameters()]
    history = train(FedAvg(LOCAL), Problem(blobs(), module), rounds=1, cohort=1)
    assert all(p.equal(b) for p, b in zip(module.parameters(), before, strict=True))
    history.load_into(module)
    assert not all(p.equal(b) for p, b in zip(module.parameters(), before, strict=True))


def test_unused_parameters_stay_where_they_are() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(5, 3), nn.Linear(5, 3)

        def forward(self, inputs):
            return self.used(inputs)

    module = Spare()
    history = train(FedAvg(LOCAL), Problem(blobs(), module), rounds=2, cohort=2)
    ends = history.layout.unpack(history.state["params"])
    assert ends["spare.weight"].equal(module.spare.weight)
    assert not ends["used.weight"].equal(module.used.weight)


def test_without_a_test_set_there_is_no_figure_to_report() -> None:
    federation = blobs()
    problem = Problem(Federation(federation.train, federation.partition), small_network)
    history = train(FedAvg(LOCAL), problem, rounds=2, cohort=2)
    assert history.evaluations == []
    with pytest.raises(InvalidInput, match="give a test set"):
        history.reported()


def test_centralised_training_needs_the_union() -> None:
    problem = blob_problem()
    with pytest.raises(InvalidInput, match=r"federation\.union"):
        train(build("sgd", LOCAL), problem, rounds=1, cohort=1)
    union = Problem(problem.federation.union(), small_network)
    assert train(build("sgd", LOCAL), union, rounds=10, cohort=1).reported() > 0.85


def test_wima_and_swa_are_evaluated_at_their_averages() -> None:
    problem = blob_problem()
    for name, options in (("wima", {"window": 5}), ("swa", {"start": 10, "cycle": 2})):
        history = train(build(name, LOCAL, **options), problem, rounds=20, cohort=3)
        assert not history.state.evaluated.equal(history.state["params"])
        assert history.reported() > 0.5


BAD_HYPER_PARAMETERS = [
    (lambda: Sam(-0.1), "rho: must be 0 or more, got -0.1"),
    (lambda: Sam(float("nan")), "rho: must be 0 or more, got nan"),
    (lambda: FedGloSS(-1, 10), "rho: must be 0 or more"),
    (lambda: FedGloSS(WarmUp(0.1, 10, start=-1), 10), "rho: must be 0 or more"),
    (lambda: FedGloSS(0.1, 0), "beta: must be positive, got 0"),
    (lambda: FedGloSS(0.1, 10, dual="algorithm"), "dual: must be 'alg1' or 'code'"),
    (lambda: FedGloSS(0.1, 10, ascent="up"), "ascent: must be"),
    (lambda: FedGloSS(0.1, 10, server_lr=0), "server_lr: must be positive"),
    (lambda: FedGloSS(0.1, 10, weights="loss"), "weights: must be 'size' or 'uniform'"),
    (lambda: FedDyn(-5), "beta: must be positive"),
    (lambda: FedDyn(5, mean_size=0), "mean_size: must be positive"),
    (lambda: FedProx(-1), "mu: must be 0 or more"),
    (lambda: FedSMOO(0.1, 10, upload="s"), "upload: must be"),
    (lambda: FedSpeed(10, Mixed(0.1), server="fast"), "server: must be"),
    (lambda: Mixed(0.1, mix=2), "mix: must lie in"),
    (lambda: MoFedSAM(Sam(0.1), mix=0), "mix: must lie in"),
    (lambda: AdaBest(b=1), "b: must lie in"),
    (lambda: Scaffold(quotient="none"), "quotient: must be"),
    (lambda: Wima(FedAvg(), 0), "window: must be at least 1"),
    (lambda: Swa(FedAvg(), -1), "start: must be 0 or more"),
    (lambda: Swa(FedAvg(), 1, 0), "cycle: must be at least 1"),
    (lambda: ServerSam(FedAvg(), -0.1), "rho: must be 0 or more"),
    (lambda: WarmUp(0.1, -1), "rounds: a warm-up lasts"),
    (lambda: Sgd(0), r"server\.lr: must be positive"),
    (lambda: Momentum(1.0), r"server\.momentum"),
    (lambda: Adaptive("rmsprop"), r"server\.rule"),
    (lambda: Adaptive("adam", tau=0), r"server\.tau"),
    (lambda: LocalTraining(lr=0), "lr: must be positive"),
    (lambda: LocalTraining(epochs=0), "epochs: must be a whole number"),
    (lambda: LocalTraining(batch_size=1.5), "batch_size: must be a whole number"),
    (lambda: LocalTraining(momentum=1), "momentum: must lie in"),
    (lambda: LocalTraining(weight_decay=-1), "weight_decay: must be 0 or more"),
    (lambda: LocalTraining(clip=0), "clip: must be positive"),
    (lambda: build("fedgloss", LOCAL, roh=1), "fedgloss: has no option 'roh'; it has client, rho"),
    (lambda: build("fedglos", LOCAL), "method: 'fedglos' is unknown"),
    (lambda: build("fedgloss", LOCAL, fidelity="true"), "fidelity: must be one of paper, released"),
    (lambda: build("feddyn", LOCAL, client="adam"), "client: must be 'sgd' or 'sam'"),
    (lambda: build("fedgloss", LOCAL, rho_schedule="cosine"), "rho_schedule: must be one of"),
    (lambda: Limits(max_norm=0), "max_norm: must be positive"),
    (lambda: Plan(rounds=0, sampling=None), "rounds: must be a whole number"),
    (lambda: Plan(rounds=5, sampling=None, window=6), "window: must lie between 1 and the 5 rounds"),
    (lambda: Plan(rounds=5, sampling=None, seed=-1), "seed: must be 0 or more"),
]


@pytest.mark.parametrize(("make", "message"), BAD_HYPER_PARAMETERS, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_hyper_parameters_are_named(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


X, Y = np.zeros((6, 5), np.float32), np.arange(6) % 3
NAN = np.where(np.arange(30).reshape(6, 5) == 17, np.nan, 0).astype(np.float32)
BAD_FEDERATIONS = [
    (lambda: Federation.from_arrays(X, Y[:5], clients=[[0]]), "targets: 5 targets for 6 inputs"),
    (lambda: Federation.from_arrays(X, Y, clients=[[0, 1], [], [2]]), "clients: client 1 has no data"),
    (lambda: Federation.from_arrays(X, Y, clients=[]), "clients: a federation needs at least one client"),
    (lambda: Federation.from_arrays(X, Y, clients=[[0, 6]]), "clients: index 6 is outside the 6 samples"),
    (lambda: Federation.from_arrays(X, Y, clients=[[0, -1]]), "clients: index -1 is outside"),
    (lambda: Federation.from_arrays(X, Y, clients=[[0, 1], [1]]), "a sample belongs to more than one client"),
    (lambda: Federation.from_arrays(NAN, Y, clients=[[0, 1]]), "inputs: sample 3 holds a NaN"),
    (lambda: Federation.from_arrays(X, Y * np.inf, clients=[[0]]), "targets: sample 0 holds a NaN"),
    (lambda: Federation.from_arrays(X, Y, clients=[[0]], test=(X[:0], Y[:0])), "test: the test set is empty"),
]


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize(("make", "message"), BAD_FEDERATIONS, ids=lambda v: v if isinstance(v, str) else "")
def test_bad_federations_are_refused(make, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


def no_step(step: object) -> None:
    raise AssertionError("training started")


BAD_PROBLEMS = [
    (Problem(blobs(), nn.Linear(4, 3)), "model: cannot be trained on a batch of inputs"),
    (Problem(blobs(), nn.Linear(5, 2)), "model: has 2 outputs, but the training data has the class 2"),
    (Problem(blobs(), nn.ReLU()), "model: ReLU has no trainable parameters"),
    (Problem(blobs(), nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))), "GroupNorm"),
    (Problem(blobs(), lambda: "network"), "model: built a str"),
    (Problem(blobs(), small_network, loss=lambda outputs, targets: outputs), "model: cannot be trained"),
    (Problem(blobs(), nn.Linear(5, 3, dtype=torch.float64)), "model: cannot be trained"),
]


@pytest.mark.parametrize(("problem", "message"), BAD_PROBLEMS, ids=lambda v: v if isinstance(v, str) else "")
def test_what_cannot_be_trained_is_refused_before_training_starts(problem: Problem, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        train(FedAvg(LOCAL), problem, rounds=2, cohort=2, on_step=no_step)


def test_weights_that_start_as_nan_are_refused() -> None:
    module = small_network()
    nn.init.constant_(module[0].bias, float("nan"))
    with pytest.raises(InvalidInput, match="not finite at the starting weights"):
        train(FedAvg(LOCAL), Problem(blobs(), module), rounds=1, cohort=1, on_step=no_step)


def test_a_cohort_larger_than_the_federation_is_refused() -> None:
    with pytest.raises(InvalidInput, match="cohort: 7 clients a round asked of a federation of 6"):
        train(FedAvg(LOCAL), blob_problem(), rounds=1, cohort=7, on_step=no_step)


def test_a_metric_that_averages_too_early_is_refused() -> None:
    problem = Problem(blobs(), small_network, metrics={"accuracy": lambda o, t: (o.argmax(1) == t).float().mean()})
    with pytest.raises(InvalidInput, match=r"metrics\.accuracy: must give one value per sample"):
        train(FedAvg(LOCAL), problem, rounds=1, cohort=1)


def test_a_client_that_leaves_the_finite_numbers_stops_the_run_and_is_named() -> None:
    def poisoned(outputs, targets):
        loss = nn.functional.cross_entropy(outputs, targets)
        return loss * float("nan") if bool((targets == 2).any()) else loss

    history: list[int] = []
    with pytest.raises(Diverged) as caught:
        train(
            FedAvg(LOCAL),
            Problem(blobs(), small_network, loss=poisoned),
            rounds=50,
            cohort=1,
            on_step=lambda step: history.append(step.round.round),
        )
    error = caught.value
    assert error.client in (2, 5)  # the owners of class 2
    assert error.tensor == "0.weight"
    assert error.round == len(history) + 1  # counted from 1, as people do
    assert f"round {error.round}, client {error.client}, tensor '0.weight'" in str(error)


def test_weights_that_explode_stop_the_run() -> None:
    with pytest.raises(Diverged, match=r"norm of the model is .* above 2"):
        train(FedAvg(LOCAL), blob_problem(), rounds=200, cohort=3, limits=Limits(max_norm=2.0))


def test_partition_of_a_million_clients_is_cheap() -> None:
    parts = Partition(np.arange(8_000_000), np.arange(0, 8_000_001, 8))
    assert len(parts) == 1_000_000
    assert parts[999_999].tolist() == list(range(7_999_992, 8_000_000))


def test_the_example_of_an_own_algorithm_is_short_and_keeps_the_contract() -> None:
    lines = (EXAMPLES / "your_own_algorithm.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) < 40
    check_algorithm(LookAhead(), down=1, up=1)


def test_the_tabular_example_learns() -> None:
    problem = tabular.make_problem()
    history = train(FedAvg(LocalTraining(lr=0.05, batch_size=16)), problem, rounds=30, cohort=3)
    assert history.reported("absolute error") < 0.75
