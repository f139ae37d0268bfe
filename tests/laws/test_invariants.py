"""The laws that tie the methods to each other and to the optimum: numbered as in docs/fidelity.md."""

from __future__ import annotations

import math
from functools import partial
from itertools import islice, pairwise

import pytest
import torch
from torch import nn
from toys import ExactLocal, LinearTask, blob_problem, blobs, close, path, same_path, small_network

from fedgloss import (
    AdaBest,
    Adaptive,
    Asam,
    Centralised,
    ExactCohort,
    FedAvg,
    FedDyn,
    FedGloSS,
    FedLESAM,
    FedProx,
    FedSMOO,
    FedSpeed,
    LocalTraining,
    Mixed,
    MoFedSAM,
    Momentum,
    NaiveFedGloSS,
    Plain,
    Problem,
    Sam,
    Scaffold,
    ServerSam,
    Sgd,
    WarmUp,
    Wima,
    train,
)
from fedgloss.algorithm import run_round
from fedgloss.algorithms import build
from fedgloss.diagnostics import delta_eps
from fedgloss.messages import Broadcast
from fedgloss.schedules import ReleasedServerRho
from fedgloss.testing import Quadratics, QuadraticTask
from fedgloss.training import steps
from fedgloss.transports import MemoryStore, SerialTransport
from fedgloss.vectors import Entry, Layout, norm, unit

LOCAL = LocalTraining(lr=0.05, epochs=4, weight_decay=1e-3, momentum=0.3)
CLIENTS = [Plain(), Sam(0.1)]


@pytest.fixture
def toy() -> Quadratics:
    return Quadratics(clients=6, dimension=5, seed=3)


# 1. special cases ------------------------------------------------------------------------------------------

SAME_AS_FEDAVG = {
    "FedProx(0)": FedProx(0, LOCAL),
    "FedSAM(0)": FedAvg(LOCAL, Sam(0)),
    "FedAvgM(0)": FedAvg(LOCAL, server=Momentum(0.0)),
    "FedLESAM(0)": FedLESAM(0, LOCAL),
    "AdaBest(0, 0)": AdaBest(0, 0, LOCAL),
    "WIMA(1)": Wima(FedAvg(LOCAL), 1),
    "FedCM(1)": MoFedSAM(Plain(), LOCAL, mix=1),
}


@pytest.mark.parametrize("name", SAME_AS_FEDAVG)
@pytest.mark.parametrize("cohort", [2, 6])
def test_1_is_fedavg(toy: Quadratics, name: str, cohort: int) -> None:
    plain = path(toy, FedAvg(LOCAL), 8, cohort=cohort)
    other = path(toy, SAME_AS_FEDAVG[name], 8, cohort=cohort)
    assert same_path(plain, other, "params")
    assert all(close(s.evaluated, p["params"]) for s, p in zip(other, plain, strict=True))


def test_1_mofedsam_without_momentum_is_fedsam(toy: Quadratics) -> None:
    fedsam = path(toy, FedAvg(LOCAL, Sam(0.1)), 8, cohort=2)
    assert same_path(fedsam, path(toy, MoFedSAM(Sam(0.1), LOCAL, mix=1), 8, cohort=2), "params")
    assert not same_path(fedsam, path(toy, MoFedSAM(Sam(0.1), LOCAL, mix=0.5), 8, cohort=2), "params")


def test_1_asam_on_biases_is_sam(toy: Quadratics, monkeypatch: pytest.MonkeyPatch) -> None:
    fedsam = path(toy, FedAvg(LOCAL, Sam(0.1)), 5)
    assert not same_path(fedsam, path(toy, FedAvg(LOCAL, Asam(0.1)), 5), "params")
    biases = Layout((Entry("bias", (5,), 0),), torch.float64)
    monkeypatch.setattr(QuadraticTask, "layout", property(lambda self: biases))
    assert same_path(fedsam, path(toy, FedAvg(LOCAL, Asam(0.1)), 5), "params")


# 2-5. the ADMM family --------------------------------------------------------------------------------------


def admm_path(toy, algorithm, rounds=8, cohort=2):
    """States and all client duals after each round."""
    store, duals = MemoryStore(), []
    sampling = ExactCohort(cohort)
    states = []
    for state in islice(toy.rounds(algorithm, sampling=sampling, store=store), rounds + 1):
        states.append(state)
        memories = [store.get(k) for k in range(toy.population)]
        duals.append([torch.zeros(5).double() if m is None else m["dual"] for m in memories])
    return states, duals


def same_admm(one, other) -> bool:
    duals = all(close(a, b) for x, y in zip(one[1], other[1], strict=True) for a, b in zip(x, y, strict=True))
    return duals and same_path(one[0], other[0], "params", "dual")


@pytest.mark.parametrize("gradient", CLIENTS, ids=["sgd", "sam"])
@pytest.mark.parametrize("cohort", [2, 6])
@pytest.mark.parametrize("beta", [0.5, 10.0])
def test_2_fedgloss_without_ascent_is_feddyn(toy, gradient, cohort, beta) -> None:
    feddyn = admm_path(toy, FedDyn(beta, LOCAL, gradient), cohort=cohort)
    assert same_admm(feddyn, admm_path(toy, FedGloSS(0, beta, LOCAL, gradient), cohort=cohort))
    assert not same_admm(feddyn, admm_path(toy, FedGloSS(0.1, beta, LOCAL, gradient), cohort=cohort))


@pytest.mark.parametrize("gradient", CLIENTS, ids=["sgd", "sam"])
def test_2_server_sam_on_feddyn_is_fedgloss_to_the_bit(gradient) -> None:
    unequal = Quadratics(clients=6, dimension=5, seed=3, sizes=[1, 2, 3, 4, 5, 6])
    rho = WarmUp(0.2, rounds=4)
    wrapped = admm_path(unequal, ServerSam(FedDyn(2.0, LOCAL, gradient, weights="size"), rho), cohort=3)
    direct = admm_path(unequal, FedGloSS(rho, 2.0, LOCAL, gradient), cohort=3)
    for one, other in zip(wrapped[0], direct[0], strict=True):
        assert one.vectors.keys() == other.vectors.keys()
        assert all(one[name].equal(other[name]) for name in one.vectors)
    assert all(a.equal(b) for x, y in zip(wrapped[1], direct[1], strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("gradient", CLIENTS, ids=["sgd", "sam"])
def test_2_server_sam_with_a_probe_on_feddyn_is_naive_fedgloss(toy, gradient) -> None:
    wrapped = admm_path(toy, ServerSam(FedDyn(2.0, LOCAL, gradient), 0.1, probe=True), cohort=3)
    assert same_admm(wrapped, admm_path(toy, NaiveFedGloSS(0.1, 2.0, LOCAL, gradient), cohort=3))


@pytest.mark.parametrize("lr", [1.0, 0.5])
def test_3_without_admm_and_ascent_it_is_fedavg_with_a_server_rate(toy, lr) -> None:
    fedavg = path(toy, FedAvg(LOCAL, server=Sgd(lr)), 8, cohort=2)
    no_admm = build("fedgloss", LOCAL, rho=0.0, admm=False, server_lr=lr)
    assert same_path(fedavg, path(toy, no_admm, 8, cohort=2), "params")
    huge_beta = FedGloSS(0, 1e12, LOCAL, server_lr=lr)
    assert not same_path(fedavg, path(toy, huge_beta, 8, cohort=2), "params")


@pytest.mark.parametrize("cohort", [2, 6])
def test_4_fedsmoo_without_perturbation_is_feddyn(toy, cohort) -> None:
    feddyn = admm_path(toy, FedDyn(5.0, LOCAL), cohort=cohort)
    assert same_admm(feddyn, admm_path(toy, FedSMOO(0, 5.0, LOCAL), cohort=cohort))
    assert not same_admm(feddyn, admm_path(toy, FedSMOO(0.1, 5.0, LOCAL), cohort=cohort))


def test_4_fedsmoo_first_step_is_sam(toy) -> None:
    one_step = LocalTraining(lr=0.05)
    smoo = path(toy, FedSMOO(0.1, 5.0, one_step), 1)[1]
    assert close(smoo["params"], path(toy, FedDyn(5.0, one_step, Sam(0.1)), 1)[1]["params"])


@pytest.mark.parametrize("cohort", [2, 6])
def test_4_fedspeed_in_flsim_form_is_feddyn_with_sam(toy, cohort) -> None:
    feddyn = admm_path(toy, FedDyn(5.0, LOCAL, Sam(0.1)), cohort=cohort)
    flsim = FedSpeed(5.0, Mixed(0.1, mix=1), LOCAL, server="flsim")
    assert same_admm(feddyn, admm_path(toy, flsim, cohort=cohort))


def test_4_fedspeed_orig_is_flsim_only_at_full_participation(toy) -> None:
    for cohort, same in ((6, True), (2, False)):
        one, other = (
            path(toy, FedSpeed(5.0, Mixed(0.1), LOCAL, server=form), 8, cohort=cohort) for form in ("orig", "flsim")
        )
        assert same_path(one, other, "params") is same


def test_4_fedspeed_orig_carries_noise_that_never_vanishes() -> None:
    toy = Quadratics(clients=20, dimension=5, seed=0)
    local = LocalTraining(lr=0.1, epochs=8)
    ends = {}
    for form in ("orig", "flsim"):
        states = path(toy, FedSpeed(1.0, Mixed(0.0), local, server=form), 400, cohort=2)
        ends[form] = sum(toy.distance(s) for s in states[-50:]) / 50
    assert ends["orig"] > 0.5
    assert ends["flsim"] < 1e-3


@pytest.mark.parametrize("cohort", [2, 6])
def test_4_fedgamma_without_ascent_is_scaffold(toy, cohort) -> None:
    scaffold = path(toy, Scaffold(LOCAL), 8, cohort=cohort)
    gamma = path(toy, build("fedgamma", LOCAL, local_rho=0.0), 8, cohort=cohort)
    assert same_path(scaffold, gamma, "params", "control")


@pytest.mark.parametrize("gradient", CLIENTS, ids=["sgd", "sam"])
def test_5_naive_without_ascent_is_fedgloss_without_ascent(toy, gradient) -> None:
    fedgloss = admm_path(toy, FedGloSS(0, 2.0, LOCAL, gradient), cohort=2)
    assert same_admm(fedgloss, admm_path(toy, NaiveFedGloSS(0, 2.0, LOCAL, gradient), cohort=2))


def test_5_a_probe_draws_nothing_from_the_training_streams() -> None:
    """On shuffled mini-batches: the probe commits no memory and moves no generator."""
    problem = blob_problem()
    local = LocalTraining(lr=0.1, batch_size=4)
    ends = [
        train(algorithm, problem, rounds=5, cohort=3).state
        for algorithm in (FedGloSS(0, 2.0, local), NaiveFedGloSS(0, 2.0, local))
    ]
    assert ends[0]["params"].equal(ends[1]["params"])
    assert ends[0]["dual"].equal(ends[1]["dual"])


def test_5_the_true_delta_eps_leaves_no_trace() -> None:
    problem = blob_problem()
    algorithm = FedGloSS(0.1, 2.0, LocalTraining(lr=0.1, batch_size=4), Sam(0.05))
    plain = train(algorithm, problem, rounds=6, cohort=3)
    watched = train(algorithm, problem, rounds=6, cohort=3, true_delta_eps=True)
    assert all(plain.state[name].equal(watched.state[name]) for name in plain.state.vectors)
    assert plain.bytes == watched.bytes
    assert [r.loss for r in plain.rounds] == [r.loss for r in watched.rounds]
    assert "true" not in plain.rounds[-1].delta_eps
    assert 0 < watched.rounds[-1].delta_eps["true"] <= 2


@pytest.mark.parametrize("probe_admm", [True, False])
def test_5_a_probe_without_admm_climbs_along_fedavgs_step(toy, probe_admm) -> None:
    naive = NaiveFedGloSS(0.1, 2.0, LOCAL, probe_admm=probe_admm)
    serial = SerialTransport(naive, toy.task, MemoryStore())
    fedavg = SerialTransport(FedAvg(LOCAL), toy.task, MemoryStore())
    state, sent = naive.init_server(torch.ones_like(toy.optimum), 6), []

    def recorded(broadcast, cohort):
        sent.append(broadcast)
        return serial(broadcast, cohort)

    for _ in range(3):
        before = state
        state = run_round(naive, before, range(6), recorded)
        step = before["params"] - run_round(FedAvg(LOCAL), before, range(6), fedavg)["params"]
        assert close(sent[-1]["params"], before["params"] + 0.1 * unit(step)) is not probe_admm
        assert close(state["dual"], torch.stack([serial.store.get(k)["dual"] for k in range(6)]).mean(0))


# 6-9. duals and convergence --------------------------------------------------------------------------------

DUAL_METHODS = {
    "FedDyn": FedDyn(2.0, LOCAL),
    "FedGloSS": FedGloSS(0.1, 2.0, LOCAL, Sam(0.1)),
    "NaiveFedGloSS": NaiveFedGloSS(0.1, 2.0, LOCAL),
    "FedSMOO": FedSMOO(0.1, 2.0, LOCAL),
    "FedSpeed": FedSpeed(2.0, Mixed(0.1), LOCAL, server="flsim"),
}


@pytest.mark.parametrize("name", DUAL_METHODS)
@pytest.mark.parametrize("cohort", [1, 2, 6])
def test_6_the_server_dual_is_the_mean_of_all_client_duals(toy, name, cohort) -> None:
    states, duals = admm_path(toy, DUAL_METHODS[name], cohort=cohort)
    for state, round_duals in zip(states[1:], duals[1:], strict=True):
        assert close(state["dual"], torch.stack(round_duals).mean(0))


@pytest.mark.parametrize("cohort", [1, 3])
def test_6_the_released_dual_is_a_cohort_size_smaller(toy, cohort) -> None:
    code = FedGloSS(0.1, 2.0, LOCAL, dual="code")
    states, duals = admm_path(toy, code, cohort=cohort)
    for state, round_duals in zip(states[1:], duals[1:], strict=True):
        assert close(state["dual"], torch.stack(round_duals).mean(0) / cohort)
    same = same_path(states, path(toy, FedGloSS(0.1, 2.0, LOCAL), 8, cohort=cohort), "params", "dual")
    assert same is (cohort == 1)


@pytest.mark.parametrize("gradient", CLIENTS, ids=["sgd", "sam"])
def test_6_the_server_control_is_the_mean_of_all_client_controls(toy, gradient) -> None:
    store = MemoryStore()
    for state in islice(toy.rounds(Scaffold(LOCAL, gradient), sampling=ExactCohort(2), store=store), 1, 9):
        memories = [store.get(k) for k in range(6)]
        controls = [torch.zeros(5).double() if m is None else m["control"] for m in memories]
        assert close(state["control"], torch.stack(controls).mean(0))


@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_7_an_exact_local_solve_makes_the_dual_the_clients_own_gradient(toy, rho) -> None:
    beta = 2.0
    algorithm = FedGloSS(rho, beta, ExactLocal())
    state = path(toy, algorithm, 3, store=(store := MemoryStore()))[-1]
    broadcast = next(algorithm.server_round(state))
    for client in range(6):
        task = toy.task(client)
        update, memory = algorithm.client_update(broadcast, store.get(client), task)
        end = broadcast["params"] + update["delta"]
        assert close(memory["dual"] / beta, task.gradient(end, None), 1e-10)


@pytest.mark.parametrize(("alpha", "rounds"), [(1.0, 100), (0.1, 800), (10.0, 400)])
def test_8_exact_local_solves_reach_the_global_minimiser(toy, alpha, rounds) -> None:
    assert toy.distance(toy.run(FedDyn(1 / alpha, ExactLocal()), rounds)) < 1e-10


FAST = LocalTraining(lr=0.1, epochs=8)


@pytest.fixture(scope="module")
def crowd() -> Quadratics:
    return Quadratics(clients=100, dimension=5, seed=0)


def late_distance(crowd, algorithm, rounds=1200) -> float:
    """The mean distance to the minimiser over the last 50 rounds, 5 of 100 clients a round."""
    states = crowd.rounds(algorithm, sampling=ExactCohort(5))
    last = [crowd.distance(s) for s in islice(states, rounds - 49, rounds + 1)]
    return sum(last) / len(last)


@pytest.mark.parametrize(
    "algorithm",
    [FedDyn(0.5, FAST), FedGloSS(0, 0.5, FAST), NaiveFedGloSS(0, 0.5, FAST), FedSMOO(0, 0.5, FAST), Scaffold(FAST)],
    ids=lambda a: type(a).__name__,
)
def test_9_partial_participation_leaves_no_bias_in_dual_methods(crowd, algorithm) -> None:
    assert late_distance(crowd, algorithm) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [partial(FedDyn, 1.0), partial(FedGloSS, 0, 1.0), Scaffold], ids=["FedDyn", "FedGloSS", "SCAFFOLD"]
)
def test_9_with_small_steps_and_ten_thousand_rounds(crowd, make) -> None:
    slow = LocalTraining(lr=0.01, epochs=8)
    assert late_distance(crowd, make(local=slow), rounds=10_000) < 1e-10


@pytest.mark.parametrize("algorithm", [FedAvg(FAST), FedProx(0.1, FAST)], ids=["FedAvg", "FedProx"])
def test_9_where_fedavg_stalls(crowd, algorithm) -> None:
    assert late_distance(crowd, algorithm) > 0.1


def test_9_fedgloss_hovers_at_a_distance_proportional_to_rho(crowd) -> None:
    distances = {rho: late_distance(crowd, FedGloSS(rho, 1.0, FAST)) for rho in (0.05, 0.1, 0.2)}
    assert all(0.1 * rho <= d <= 2 * rho for rho, d in distances.items())
    assert distances[0.1] == pytest.approx(2 * distances[0.05], rel=0.05)
    assert distances[0.2] == pytest.approx(4 * distances[0.05], rel=0.05)


# 10-13. the ascent -----------------------------------------------------------------------------------------

ONE_STEP = LocalTraining(lr=0.1)


def test_10_one_client_one_step_fedgloss_without_admm_is_centralised_sam_previous() -> None:
    toy = Quadratics(clients=1, dimension=5, seed=3)
    fedgloss = path(toy, build("fedgloss", ONE_STEP, rho=0.2, admm=False), 10)
    assert same_path(fedgloss, path(toy, Centralised(ONE_STEP, previous_rho=0.2), 10), "params")
    assert not same_path(fedgloss, path(toy, Centralised(ONE_STEP, Sam(0.2)), 10), "params")


def test_10_one_client_one_step_naive_is_sam() -> None:
    toy = Quadratics(clients=1, dimension=5, seed=3)
    naive = path(toy, build("naive-fedgloss", ONE_STEP, rho=0.2, admm=False), 10)
    assert same_path(naive, path(toy, Centralised(ONE_STEP, Sam(0.2)), 10), "params")


def test_10_all_clients_one_step_naive_is_full_batch_sam(toy) -> None:
    naive = path(toy, build("naive-fedgloss", ONE_STEP, rho=0.2, admm=False), 10)
    params = toy.start
    for state in naive[1:]:
        full = lambda w: torch.stack([toy.task(k).gradient(w, None) for k in range(6)]).mean(0)  # noqa: E731
        params = params - 0.1 * full(params + 0.2 * unit(full(params)))
        assert close(state["params"], params)


def test_11_every_ascent_has_length_rho(toy) -> None:
    asked: list[torch.Tensor] = []

    class Recording(QuadraticTask):
        def gradient(self, params, batch):
            asked.append(params.clone())
            return super().gradient(params, batch)

    task = Recording(toy.hessians[0], toy.centres[0], 1)
    point = torch.ones(5, dtype=torch.float64)
    Sam(0.3)(point, None, task, 0)
    assert norm(asked[1] - asked[0]) == pytest.approx(0.3, rel=1e-12)
    asked.clear()
    Asam(0.3, offset=0.1)(point, None, task, 0)
    assert norm((asked[1] - asked[0]) / (point.abs() + 0.1)) == pytest.approx(0.3, rel=1e-12)

    algorithm = FedGloSS(0.3, 2.0, LOCAL)
    for state in path(toy, algorithm, 3, cohort=2):
        sent = next(algorithm.server_round(state))["params"]
        expected = 0.0 if state.round == 0 else 0.3
        assert norm(sent - state["params"]) == pytest.approx(expected, rel=1e-12)


def test_12_sam_previous(toy) -> None:
    single = Quadratics(clients=1, dimension=5, seed=3)
    sgd = path(single, Centralised(ONE_STEP), 10)
    assert same_path(sgd, path(single, Centralised(ONE_STEP, previous_rho=0.0), 10), "params")
    climbing = path(single, Centralised(ONE_STEP, previous_rho=0.5), 10)
    assert close(climbing[1]["params"], sgd[1]["params"])
    assert not close(climbing[2]["params"], sgd[2]["params"])


def test_12_delta_eps_is_between_parallel_and_opposite() -> None:
    east, north = torch.tensor([2.0, 0.0]).double(), torch.tensor([0.0, 5.0]).double()
    assert delta_eps(east, 3 * east) == 0
    assert delta_eps(east, north) == pytest.approx(math.sqrt(2), rel=1e-12)
    assert delta_eps(east, -east) == pytest.approx(2, rel=1e-12)


def test_13_the_server_keeps_w_and_sends_w_plus_ascent(toy) -> None:
    algorithm = FedGloSS(0.3, 2.0, LOCAL)
    sent: list[Broadcast] = []
    store = MemoryStore()
    serial = SerialTransport(algorithm, toy.task, store)

    def transport(broadcast, cohort):
        sent.append(broadcast)
        return serial(broadcast, cohort)

    state = algorithm.init_server(toy.start, 6)
    for cohort in ([0, 1], [2, 3], [1, 4]):
        untouched = {k: store.get(k) for k in set(range(6)) - set(cohort)}
        following = run_round(algorithm, state, cohort, transport)
        assert sent[-1]["params"].equal(state["params"] + 0.3 * unit(state["pseudo_gradient"]))
        step = following["pseudo_gradient"] + following["dual"]
        assert close(following["params"], state["params"] - step, 1e-15)
        assert all(store.get(k) is memory for k, memory in untouched.items())
        state = following


def test_13_ascent_along_the_full_step(toy) -> None:
    algorithm = FedGloSS(0.3, 2.0, LOCAL, ascent="full_step")
    before, state = path(toy, algorithm, 3, cohort=2)[-2:]
    sent = next(algorithm.server_round(state))["params"]
    step = before["params"] - state["params"]
    assert close(sent - state["params"], 0.3 * unit(step), 1e-10)


# 14-16. the local optimiser and the dual's gain ----------------------------------------------------------


@pytest.mark.parametrize(("dual", "share"), [("alg1", 1), ("code", 5)])
def test_14_a_constant_gradient_drives_the_server_to_speed_beta(dual, share) -> None:
    beta, clients, cohort = 1.0, 20, 5
    slope = torch.tensor([0.6, 0.8]).double()
    algorithm = FedGloSS(0, beta, LocalTraining(lr=0.01, epochs=8), dual=dual)
    transport = SerialTransport(algorithm, lambda k, t, p: LinearTask(slope), MemoryStore())
    state = algorithm.init_server(torch.zeros(2).double(), clients)
    time_constant = beta / (cohort / clients * 0.08)
    lengths = []
    for t in range(int(5 * time_constant) + 100):
        chosen = ExactCohort(cohort).cohort(clients, 0, t)
        following = run_round(algorithm, state, chosen, transport)
        lengths.append(norm(following["params"] - state["params"]))
        state = following
    assert sum(lengths[-100:]) / 100 == pytest.approx(beta / share, rel=0.02)


def test_15_scaffold_with_momentum_keeps_the_mean_local_gradient() -> None:
    slope = torch.tensor([0.6, 0.8, -1.0]).double()
    local = LocalTraining(lr=0.01, epochs=8, momentum=0.7)
    controls = {}
    for quotient in ("weighted", "raw"):
        algorithm = Scaffold(local, quotient=quotient)
        state = algorithm.init_server(torch.zeros(3).double(), 1)
        broadcast = next(algorithm.server_round(state))
        _, memory = algorithm.client_update(broadcast, algorithm.init_client(state["params"]), LinearTask(slope))
        controls[quotient] = memory["control"]
    assert close(controls["weighted"], slope)
    assert norm(controls["raw"]) / norm(slope) == pytest.approx(2.417, abs=5e-4)


def test_16_one_step_of_fedavg_is_torch_sgd_with_weight_decay() -> None:
    federation = blobs(clients=1, per_client=12, dtype=torch.float64)
    module = small_network(torch.float64)
    local = LocalTraining(lr=0.1, weight_decay=0.05, batch_size=12, epochs=5, momentum=0.6)
    history = train(FedAvg(local), Problem(federation, module), rounds=1, cohort=1)
    inputs, targets = federation.train.fetch(federation.partition[0])
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.05, momentum=0.6)
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(module(inputs), targets).backward()
        optimiser.step()
    assert close(history.state["params"], history.layout.flatten(module))


@pytest.mark.parametrize("make", [partial(FedDyn, 0.5), Scaffold], ids=["FedDyn", "SCAFFOLD"])
def test_16_dual_methods_minimise_the_decayed_loss(crowd, make) -> None:
    decay = 0.1
    state = crowd.run(
        make(local=LocalTraining(lr=0.1, epochs=8, weight_decay=decay)), 1200, sampling=ExactCohort(5)
    )
    curvature = crowd.hessians.mean(0) + decay * torch.eye(5).double()
    pulls = torch.einsum("kij,kj->i", crowd.hessians, crowd.centres) / 100
    assert close(state["params"], torch.linalg.solve(curvature, pulls), 1e-8)


def test_16_the_sam_ascent_does_not_see_weight_decay() -> None:
    """Without a gradient of the loss there is no ascent, however strong the decay."""
    task = LinearTask(torch.zeros(3).double())
    start = torch.tensor([1.0, -2.0, 3.0]).double()
    local = LocalTraining(lr=0.1, weight_decay=0.5)
    result = local.run(start, task, 0, Sam(10.0))
    assert close(result.delta, -0.1 * 0.5 * start)


def test_16_clipping_covers_the_gradient_and_the_constant_shift_only() -> None:
    slope = torch.tensor([30.0, 40.0]).double()
    start = torch.tensor([1.0, 2.0]).double()
    local = LocalTraining(lr=1.0, clip=10.0, weight_decay=0.1)
    algorithm = FedProx(2.0, local)
    state = algorithm.init_server(start, 1)
    broadcast = next(algorithm.server_round(state))
    update, _ = algorithm.client_update(broadcast, algorithm.init_client(start), LinearTask(slope))
    constant = slope - 2.0 * start
    clipped = constant * min(1, 10 / (float(constant.norm()) + 1e-6))
    assert close(update["delta"], -(clipped + 2.0 * start + 0.1 * start))


# 18-19. schedules and traffic ------------------------------------------------------------------------------


def test_18_the_rho_warm_up() -> None:
    schedule = WarmUp(0.15, rounds=2000)
    assert schedule(0) == 0.001
    assert schedule(1000) == pytest.approx((0.001 + 0.15) / 2)
    assert schedule(2000) == schedule(9999) == 0.15
    assert WarmUp(0.15, rounds=0)(0) == 0.15


def test_18_the_released_server_rho() -> None:
    cifar100 = ReleasedServerRho(value=0.01, local=0.2, rounds=15000)
    assert cifar100(0) == 0.001
    assert cifar100(1) == cifar100(15000) == pytest.approx(0.2000006, abs=1e-9)
    assert cifar100(15001) == 0.01
    assert ReleasedServerRho(0.15, 0.15, 2000)(7) == pytest.approx(0.1500745)
    assert ReleasedServerRho(0.01, 0.01, 0)(0) == 0.01


def test_19_bytes_relative_to_fedavg() -> None:
    federation = blobs()
    wide = Problem(federation, lambda: nn.Sequential(nn.Linear(5, 4000), nn.Tanh(), nn.Linear(4000, 3)))
    expected = {
        "fedavg": 1, "fedsam": 1, "feddyn": 1, "scaffold": 2, "fedgamma": 2, "fedsmoo": 2, "naive-fedgloss": 2,
        "fedgloss": 1, "mofedsam": 1.5,
    }  # fmt: skip
    local = LocalTraining(batch_size=64)
    sent = {name: train(build(name, local), wide, rounds=2, cohort=2).bytes for name in expected}
    assert {name: round(sent[name] / sent["fedavg"], 2) for name in expected} == expected


def test_adaptive_server_without_history_steps_by_sign(toy) -> None:
    """Bias-corrected Adam's first step has size lr in every coordinate, as torch's does."""
    adam = FedAvg(LOCAL, server=Adaptive("adam", lr=0.1, tau=1e-12, bias_correction=True))
    first = path(toy, adam, 1)[1]["params"]
    assert torch.allclose(first.abs(), torch.full((5,), 0.1).double(), rtol=1e-6)


def test_adaptive_servers_match_torch(toy) -> None:
    """FedAdam with bias correction is torch's Adam on the pseudo-gradients."""
    adam = FedAvg(LOCAL, server=Adaptive("adam", lr=0.05, b2=0.999, tau=0.1, bias_correction=True))
    states = path(toy, adam, 6, cohort=2)
    params = toy.start.clone().requires_grad_()
    optimiser = torch.optim.Adam([params], lr=0.05, betas=(0.9, 0.999), eps=0.1)
    for before, after in pairwise(states):
        cohort = ExactCohort(2).cohort(6, 0, before.round)
        transport = SerialTransport(adam, toy.task, MemoryStore())
        deltas = [u["delta"] for u in transport(Broadcast({"params": before["params"]}, before.round), cohort)]
        params.grad = -torch.stack(deltas).mean(0)
        optimiser.step()
        assert close(after["params"], params.detach(), 1e-10)


def test_fedyogi_and_fedadagrad_second_moments(toy) -> None:
    for rule in ("yogi", "adagrad"):
        algorithm = FedAvg(LOCAL, server=Adaptive(rule, lr=0.1, b1=0.0))
        before, after = path(toy, algorithm, 4, cohort=2)[-2:]
        square = after["momentum"] ** 2  # b1 = 0: the momentum is the pseudo-gradient
        if rule == "adagrad":
            expected = before["second_moment"] + square
        else:
            sign = torch.sign(before["second_moment"] - square)
            expected = before["second_moment"] - 0.01 * square * sign
        assert close(after["second_moment"], expected)


def test_the_loop_yields_every_round_in_order(toy) -> None:
    from fedgloss.training import Plan

    algorithm = FedAvg(LOCAL)
    plan = Plan(rounds=4, sampling=ExactCohort(2))
    transport = SerialTransport(algorithm, toy.task, MemoryStore())
    state = algorithm.init_server(toy.start, 6)
    done = [s.round.round for s in steps(algorithm, plan, state, transport, toy.task(0).layout, None)]
    assert done == [0, 1, 2, 3]
