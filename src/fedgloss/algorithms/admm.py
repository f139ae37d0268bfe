"""The ADMM core that FedDyn, FedGloSS, FedSMOO and FedSpeed share: duals that cancel the clients' drift.

Duals are kept scaled, ``dual = beta * sigma``, so they are sums of deltas alone: the client's is minus all its
own deltas, the server's minus the population's mean of them. At the optimum a client's sigma is its own
gradient and the server's is zero, which is why heterogeneity and partial participation leave no bias.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..algorithm import Aggregate, ClientTask, Weights, check_weights
from ..errors import require
from ..gradients import GradientRule
from ..local import Correction, LocalTraining
from ..messages import Broadcast, ClientState, ServerState, Update
from ..vectors import Vector

DualRule: TypeAlias = Literal["alg1", "code"]
"""How the server's dual moves: Algorithm 1's, or the released code's, which divides once more by the cohort
size (spec D2)."""


def check_admm(beta: float, dual: str, weights: str) -> None:
    require(beta > 0, "beta", f"must be positive, got {beta}; FedAvg is the method without ADMM")
    require(dual in ("alg1", "code"), "dual", f"must be 'alg1' or 'code', got {dual!r}")
    check_weights(weights)


def admm_client(
    broadcast: Broadcast,
    memory: ClientState,
    task: ClientTask,
    *,
    local: LocalTraining,
    gradient: GradientRule,
    beta: float,
) -> tuple[Update, ClientState]:
    """Train towards ``min f_k(w) - sigma_k.(w - z) + ||w - z||^2 / (2 beta)`` from z, the received model."""
    anchor, dual = broadcast["params"], memory["dual"]
    # g - sigma_k + (w - z) / beta, with what does not follow w gathered in the shift
    correction = Correction(shift=(dual + anchor).div_(-beta), pull=1 / beta)
    result = local.run(anchor, task, broadcast.round, gradient, correction)
    update = Update({"delta": result.delta}, task.size, result.scalars)
    return update, ClientState({"dual": dual - result.delta})  # sigma_k - (w_k - z) / beta


def admm_dual(state: ServerState, replies: Aggregate, rule: DualRule) -> Vector:
    """The server's scaled dual after a round: summed over the sampled, divided by *all* clients."""
    share = state.population * (replies.count if rule == "code" else 1)
    return state["dual"] - replies.sum("delta") / share


def admm_server(
    state: ServerState,
    replies: Aggregate,
    *,
    rule: DualRule,
    weights: Weights,
    lr: float = 1.0,
) -> dict[str, Vector]:
    """``w - lr * pseudo_gradient - beta * sigma``, from the unperturbed w and with the updated sigma."""
    dual = admm_dual(state, replies, rule)
    pseudo_gradient = -replies.mean("delta", weights)
    return {"params": state["params"] - lr * pseudo_gradient - dual, "dual": dual}
