"""Every method of the table against the laws all must obey, and against what it declares to send."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fedgloss.algorithms
from fedgloss import FedAvg, LocalTraining
from fedgloss.algorithm import Aggregate
from fedgloss.algorithms import METHODS, build
from fedgloss.messages import ClientState
from fedgloss.testing import check_algorithm

REQUIRED = {"swa": {"start": 2, "cycle": 2}, "wima": {"window": 3}}
VARIANTS = [
    *[(name, REQUIRED.get(name, {})) for name in METHODS],
    ("feddyn", {"client": "sam"}),
    ("fedgloss", {"client": "sam"}),
    ("fedgloss", {"client": "sam", "warm_up": 4, "rho_schedule": "released", "dual": "code"}),
    ("fedgloss", {"admm": False}),
    ("fedgloss", {"ascent": "full_step"}),
    ("naive-fedgloss", {"client": "sam"}),
    ("naive-fedgloss", {"admm": False}),
    ("fedspeed", {"server": "orig"}),
    ("fedspeed", {"server": "flsim"}),
    ("fedsmoo", {"upload": "mu", "warm_up": 3}),
    ("scaffold", {"quotient": "raw"}),
    ("server-sam", {"inner": {"name": "scaffold"}}),
    ("server-sam", {"inner": {"name": "feddyn"}, "probe": True}),
    ("wima", {"window": 2, "inner": {"name": "fedgloss"}}),
    ("swa", {"start": 1, "cycle": 2, "inner": {"name": "fedsmoo"}}),
    ("fedadam", {"bias_correction": True}),
]
FACTORS = {  # the paper's communication cost, in units of FedAvg's
    "fedavg": 1, "fedprox": 1, "fedsam": 1, "fedasam": 1, "feddyn": 1, "fedspeed": 1, "fedgloss": 1,
    "scaffold": 2, "fedgamma": 2, "fedsmoo": 2, "naive-fedgloss": 2, "mofedsam": 1.5, "fedcm": 1.5,
    "fedlesam": 1, "adabest": 1, "fedadam": 1,
}  # fmt: skip
GRADIENTS = {  # per local step
    "fedavg": 1, "fedprox": 1, "fedsam": 2, "fedasam": 2, "feddyn": 1, "fedspeed": 2, "fedgloss": 1, "scaffold": 1,
    "fedgamma": 2, "fedsmoo": 2, "mofedsam": 2, "fedcm": 1, "fedlesam": 1, "adabest": 1, "sgd": 1, "sam": 2,
    "sam-previous": 1,
}  # fmt: skip
MEMORY = {  # vectors a client keeps
    "fedavg": 0, "feddyn": 1, "fedspeed": 1, "fedgloss": 1, "scaffold": 1, "fedgamma": 1, "fedsmoo": 2,
    "naive-fedgloss": 1, "mofedsam": 0, "fedlesam": 1, "adabest": 1, "sam-previous": 1,
}  # fmt: skip

LOCAL = LocalTraining(lr=0.05, epochs=3, weight_decay=1e-3, momentum=0.5)


@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=lambda v: str(v))
def test_method_obeys_the_contract_and_sends_what_it_declares(name: str, options: dict) -> None:
    method = METHODS[name]
    check_algorithm(build(name, LOCAL, **options), down=method.down, up=method.up)


@pytest.mark.parametrize("name", FACTORS)
def test_communication_factor(name: str) -> None:
    assert check_algorithm(build(name, LOCAL)).factor == FACTORS[name]


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_per_step(name: str) -> None:
    assert check_algorithm(build(name, LOCAL)).gradients_per_step == GRADIENTS[name]


@pytest.mark.parametrize("name", MEMORY)
def test_what_a_client_keeps(name: str) -> None:
    local = LocalTraining() if METHODS[name].centralised else LOCAL
    assert check_algorithm(build(name, local)).memory == MEMORY[name]


def test_naive_exchanges_twice_and_fedgloss_once() -> None:
    assert check_algorithm(build("naive-fedgloss", LOCAL)).exchanges == 2
    assert check_algorithm(build("fedgloss", LOCAL)).exchanges == 1


def test_every_algorithm_fits_one_screen() -> None:
    folder = Path(fedgloss.algorithms.__file__).parent
    longest = {p.name: len(p.read_text().splitlines()) for p in folder.glob("*.py") if p.name != "table.py"}
    assert {name: lines for name, lines in longest.items() if lines > 120} == {}


@dataclass(frozen=True)
class Stateful(FedAvg):
    """Broken on purpose: counts its rounds on itself."""

    seen: list[int] = field(default_factory=list)

    def client_update(self, broadcast, memory, task):
        self.seen.append(broadcast.round)
        update, memory = super().client_update(broadcast, memory, task)
        update.vectors["delta"].mul_(len(self.seen))
        return update, memory


@dataclass(frozen=True)
class Careless(FedAvg):
    """Broken on purpose: changes the state it was given."""

    def server_round(self, state):
        replies: Aggregate = yield from super().server_round(state)
        state["params"].add_(1)
        return replies


@dataclass(frozen=True)
class Forgetful(FedAvg):
    """Broken on purpose: keeps a memory that no codec can carry."""

    def client_update(self, broadcast, memory, task):
        update, _ = super().client_update(broadcast, memory, task)
        return update, ClientState({"note": update["delta"].reshape(2, -1)})


@pytest.mark.parametrize(
    ("broken", "law"),
    [(Stateful(), "pure"), (Careless(), "not change the state"), (Forgetful(), "expected a vector")],
)
def test_the_contract_catches_broken_algorithms(broken: FedAvg, law: str) -> None:
    with pytest.raises((AssertionError, ValueError), match=law):
        check_algorithm(broken)


def test_the_contract_catches_a_wrong_declaration() -> None:
    with pytest.raises(AssertionError, match="declares 2 vectors down, sends 1"):
        check_algorithm(FedAvg(), down=2)
