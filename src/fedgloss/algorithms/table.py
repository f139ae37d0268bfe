"""Every method by name: how to build it from plain numbers, what it sends, and what the two fidelities set.

Names of hyper-parameters mean one thing throughout: ``rho`` is the server's ascent, ``local_rho`` the clients',
``beta`` the ADMM penalty (FedDyn's 1/alpha, FedSpeed's lambda), ``warm_up`` the rounds T_s over which the
local rho rises from 0.001. Defaults are the paper's choice for CIFAR-10 with the CNN unless said otherwise.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..algorithm import Algorithm
from ..errors import InvalidInput, require
from ..gradients import Asam, GradientRule, Mixed, Plain, Sam
from ..local import LocalTraining
from ..schedules import Cycle, ReleasedServerRho, Scheduled, WarmUp, at
from ..server_optimizers import Adaptive, Momentum, Sgd
from .adabest import AdaBest
from .admm import DualRule
from .averages import Swa, Wima
from .centralised import Centralised
from .fedavg import FedAvg
from .feddyn import FedDyn
from .fedgloss import FedGloSS
from .fedlesam import FedLESAM
from .fedprox import FedProx
from .fedsmoo import FedSMOO
from .fedspeed import FedSpeed
from .mofedsam import MoFedSAM
from .naive_fedgloss import NaiveFedGloSS
from .scaffold import Scaffold
from .server_sam import ServerSam

Client: TypeAlias = Literal["sgd", "sam"]
RhoSchedule: TypeAlias = Literal["constant", "linear", "released"]
Inner: TypeAlias = Callable[[LocalTraining], Algorithm]
"""A wrapped method, still waiting for its local training."""

Fidelity: TypeAlias = Literal["paper", "released"]

FIDELITIES: Mapping[Fidelity, Mapping[str, Any]] = {
    "paper": {},
    "released": {"dual": "code", "rho_schedule": "released"},
}
"""Where the paper and its released code disagree (spec D2, D3): set together, for methods that have the option."""


def _warm(rho: float, warm_up: int) -> Scheduled:
    return WarmUp(rho, warm_up) if warm_up else rho


def _client(client: Client, local_rho: float, warm_up: int = 0) -> GradientRule:
    require(client in ("sgd", "sam"), "client", f"must be 'sgd' or 'sam', got {client!r}")
    return Sam(_warm(local_rho, warm_up)) if client == "sam" else Plain()


def _server_rho(rho: float, client: Client, local_rho: float, warm_up: int, schedule: RhoSchedule) -> Scheduled:
    warm_up = warm_up if client == "sam" else 0  # T_s is that of the local rho, which SGD clients do not have
    known: dict[str, Callable[[], Scheduled]] = {
        "constant": lambda: rho,
        "linear": lambda: _warm(rho, warm_up),
        "released": lambda: ReleasedServerRho(rho, local_rho, warm_up),
    }
    require(schedule in known, "rho_schedule", f"must be one of {', '.join(known)}, got {schedule!r}")
    return known[schedule]()


def fedavg(local: LocalTraining, *, server_lr: float = 1.0) -> Algorithm:
    return FedAvg(local, server=Sgd(server_lr))


def fedavgm(local: LocalTraining, *, server_lr: float = 1.0, momentum: float = 0.9) -> Algorithm:
    return FedAvg(local, server=Momentum(momentum, server_lr))


def fedadagrad(local: LocalTraining, *, server_lr: float = 0.1, b1: float = 0.0, tau: float = 1e-3) -> Algorithm:
    return FedAvg(local, server=Adaptive("adagrad", server_lr, b1=b1, tau=tau))


def fedadam(
    local: LocalTraining,
    *,
    server_lr: float = 0.1,
    b1: float = 0.9,
    b2: float = 0.99,
    tau: float = 1e-3,
    bias_correction: bool = False,
) -> Algorithm:
    return FedAvg(local, server=Adaptive("adam", server_lr, b1, b2, tau, bias_correction))


def fedyogi(
    local: LocalTraining, *, server_lr: float = 0.1, b1: float = 0.9, b2: float = 0.99, tau: float = 1e-3
) -> Algorithm:
    return FedAvg(local, server=Adaptive("yogi", server_lr, b1, b2, tau))


def fedprox(local: LocalTraining, *, mu: float = 0.1) -> Algorithm:
    return FedProx(mu, local)


def fedsam(local: LocalTraining, *, local_rho: float = 0.15) -> Algorithm:
    return FedAvg(local, Sam(local_rho))


def fedasam(local: LocalTraining, *, local_rho: float = 0.7, offset: float = 0.2) -> Algorithm:
    return FedAvg(local, Asam(local_rho, offset))


def feddyn(
    local: LocalTraining,
    *,
    client: Client = "sgd",
    beta: float = 100.0,
    local_rho: float = 0.15,
    dual: DualRule = "alg1",
    mean_size: float | None = None,
) -> Algorithm:
    return FedDyn(beta, local, _client(client, local_rho), dual=dual, mean_size=mean_size)


def scaffold(local: LocalTraining, *, quotient: Literal["weighted", "raw"] = "weighted") -> Algorithm:
    return Scaffold(local, quotient=quotient)


def fedgamma(
    local: LocalTraining,
    *,
    local_rho: float = 0.15,
    quotient: Literal["weighted", "raw"] = "weighted",
) -> Algorithm:
    return Scaffold(local, Sam(local_rho), quotient=quotient)


def fedspeed(
    local: LocalTraining,
    *,
    local_rho: float = 0.15,
    mix: float = 0.95,
    beta: float = 100.0,
    server: Literal["plain", "orig", "flsim"] = "plain",
    normalise: bool = True,
    dual: DualRule = "alg1",
) -> Algorithm:
    return FedSpeed(beta, Mixed(local_rho, mix, normalise), local, server=server, dual=dual)


def fedsmoo(
    local: LocalTraining,
    *,
    local_rho: float = 0.15,
    beta: float = 10.0,
    warm_up: int = 0,
    upload: Literal["corrected", "mu"] = "corrected",
    dual: DualRule = "alg1",
) -> Algorithm:
    return FedSMOO(_warm(local_rho, warm_up), beta, local, upload=upload, dual=dual)


def fedgloss(
    local: LocalTraining,
    *,
    client: Client = "sgd",
    rho: float = 0.15,
    local_rho: float = 0.15,
    beta: float = 10.0,
    warm_up: int = 0,
    admm: bool = True,
    server_lr: float = 1.0,
    dual: DualRule = "alg1",
    rho_schedule: RhoSchedule = "constant",
    ascent: Literal["pseudo_gradient", "full_step"] = "pseudo_gradient",
) -> Algorithm:
    gradient = _client(client, local_rho, warm_up)
    server_rho = _server_rho(rho, client, local_rho, warm_up, rho_schedule)
    if not admm:
        require(ascent == "pseudo_gradient", "ascent", "'full_step' needs the dual of admm = true")
        return ServerSam(FedAvg(local, gradient, Sgd(server_lr)), server_rho)
    return FedGloSS(server_rho, beta, local, gradient, server_lr, dual, ascent)


def naive_fedgloss(
    local: LocalTraining,
    *,
    client: Client = "sgd",
    rho: float = 0.15,
    local_rho: float = 0.15,
    beta: float = 10.0,
    warm_up: int = 0,
    admm: bool = True,
    server_lr: float = 1.0,
    dual: DualRule = "alg1",
    rho_schedule: RhoSchedule = "constant",
    probe_admm: bool = True,
) -> Algorithm:
    gradient = _client(client, local_rho, warm_up)
    server_rho = _server_rho(rho, client, local_rho, warm_up, rho_schedule)
    if not admm:
        return ServerSam(FedAvg(local, gradient, Sgd(server_lr)), server_rho, probe=True)
    return NaiveFedGloSS(server_rho, beta, local, gradient, server_lr, dual, probe_admm)


def server_sam(local: LocalTraining, *, inner: Inner, rho: float = 0.15, probe: bool = False) -> Algorithm:
    return ServerSam(inner(local), rho, probe)


def mofedsam(local: LocalTraining, *, local_rho: float = 0.15, mix: float = 0.1) -> Algorithm:
    return MoFedSAM(Sam(local_rho), local, mix)


def fedcm(local: LocalTraining, *, mix: float = 0.1) -> Algorithm:
    return MoFedSAM(Plain(), local, mix)


def fedlesam(local: LocalTraining, *, local_rho: float = 0.15) -> Algorithm:
    return FedLESAM(local_rho, local)


def adabest(local: LocalTraining, *, mu: float = 0.02, b: float = 0.9) -> Algorithm:
    return AdaBest(mu, b, local)


def wima(local: LocalTraining, *, inner: Inner, window: int = 100) -> Algorithm:
    return Wima(inner(local), window)


def swa(local: LocalTraining, *, inner: Inner, start: int, cycle: int = 10, low: float = 1e-4) -> Algorithm:
    lr = Cycle(at(local.lr, 0), low, start, cycle)
    return Swa(inner(replace(local, lr=lr)), start, cycle)


def centralised_sgd(local: LocalTraining) -> Algorithm:
    return Centralised(local)


def centralised_sam(local: LocalTraining, *, local_rho: float = 0.15) -> Algorithm:
    return Centralised(local, Sam(local_rho))


def centralised_sam_previous(local: LocalTraining, *, local_rho: float = 0.15) -> Algorithm:
    return Centralised(local, previous_rho=local_rho)


@dataclass(frozen=True)
class Method:
    """One row of the table. ``down`` and ``up`` count vectors per client and round, to be held against the
    measured ones; ``None`` where a wrapped method decides."""

    summary: str
    build: Callable[..., Algorithm]
    down: int | None = 1
    up: int | None = 1
    centralised: bool = False

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The hyper-parameters, with their types and defaults."""
        parameters = inspect.signature(self.build, eval_str=True).parameters
        return {name: p for name, p in parameters.items() if name != "local"}

    @property
    def wraps(self) -> bool:
        return "inner" in self.options

    @property
    def takes_client(self) -> bool:
        """Whether the client's optimiser is the user's choice."""
        return "client" in self.options


METHODS: Mapping[str, Method] = {
    "fedavg": Method("the mean of the clients' models", fedavg),
    "fedavgm": Method("FedAvg with momentum on the server", fedavgm),
    "fedadagrad": Method("FedAvg with Adagrad on the server", fedadagrad),
    "fedadam": Method("FedAvg with Adam on the server", fedadam),
    "fedyogi": Method("FedAvg with Yogi on the server", fedyogi),
    "fedprox": Method("FedAvg with clients held near the global model", fedprox),
    "fedsam": Method("FedAvg with SAM clients", fedsam),
    "fedasam": Method("FedAvg with adaptive SAM clients", fedasam),
    "feddyn": Method("ADMM: duals on clients and server cancel the drift", feddyn),
    "scaffold": Method("control variates cancel the drift", scaffold, 2, 2),
    "fedgamma": Method("SCAFFOLD with SAM clients", fedgamma, 2, 2),
    "fedspeed": Method("client-side ADMM with blended SAM gradients", fedspeed),
    "fedsmoo": Method("ADMM on the model and on the SAM perturbation", fedsmoo, 2, 2),
    "fedgloss": Method("SAM on the server along last round's pseudo-gradient, with ADMM", fedgloss),
    "naive-fedgloss": Method("SAM on the server with the true perturbation: two exchanges", naive_fedgloss, 2, 2),
    "server-sam": Method("SAM on the server around any inner method", server_sam, None, None),
    "mofedsam": Method("FedSAM with global momentum in each local step", mofedsam, 2, 1),
    "fedcm": Method("FedAvg with global momentum in each local step", fedcm, 2, 1),
    "fedlesam": Method("clients climb against the global model's last move", fedlesam),
    "adabest": Method("drift correction that fades with absence", adabest),
    "wima": Method("any inner method, judged at the mean of its last models", wima, None, None),
    "swa": Method("any inner method with a cyclic client rate, judged at a mean of models", swa, None, None),
    "sgd": Method("centralised SGD on all data", centralised_sgd, centralised=True),
    "sam": Method("centralised SAM on all data", centralised_sam, centralised=True),
    "sam-previous": Method(
        "centralised SAM that climbs along the previous gradient", centralised_sam_previous, centralised=True
    ),
}


def build(name: str, local: LocalTraining, *, fidelity: Fidelity = "paper", **options: Any) -> Algorithm:
    """A method of the table from its name and plain numbers; ``inner`` is a table of its own.

    >>> build("fedgloss", LocalTraining(), client="sam", beta=10.0).gradient
    Sam(rho=0.15)
    >>> build("fedgloss", LocalTraining(), fidelity="released").dual
    'code'
    >>> build("wima", LocalTraining(), inner={"name": "feddyn"}).inner.beta
    100.0
    """
    if name not in METHODS:
        raise InvalidInput(f"method: {name!r} is unknown; known are {', '.join(METHODS)}")
    method = METHODS[name]
    if fidelity not in FIDELITIES:
        raise InvalidInput(f"fidelity: must be one of {', '.join(FIDELITIES)}, got {fidelity!r}")
    unknown = sorted(set(options) - set(method.options))
    if unknown:
        known = ", ".join(method.options) or "none"
        raise InvalidInput(f"{name}: has no option {unknown[0]!r}; it has {known}")
    implied = {k: v for k, v in FIDELITIES[fidelity].items() if k in method.options}
    chosen = {**implied, **options}
    if method.wraps:
        inner = {"name": "fedavg", **dict(chosen.get("inner", {}))}
        inside = inner.pop("name")
        chosen["inner"] = lambda training: build(inside, training, fidelity=fidelity, **inner)
    return method.build(local, **chosen)
