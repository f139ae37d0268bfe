"""The one loop: sample a cohort, run a round, measure, evaluate."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import nn

from .algorithm import Algorithm, UnreliableTransport, run_round
from .diagnostics import (
    Traffic,
    Watch,
    delta_eps_of_round,
    norms,
    unperturbed_pseudo_gradient,
)
from .divergence import Limits, check_figures
from .errors import InvalidInput, require
from .forkserver import prepare_workers
from .messages import ServerState
from .precision import settle
from .sampling import ExactCohort, Sampling
from .tasks import Objective, Problem, try_out
from .transports import (
    MemoryStore,
    OnFailure,
    TransportName,
    Workers,
    open_simulation,
    usable_workers,
)
from .vectors import Layout, Vector

log = logging.getLogger("fedgloss")


@dataclass(frozen=True)
class Plan:
    """How long to train, whom to sample, when to evaluate.

    Evaluation falls on every ``eval_every``-th round and on each of the last ``window`` rounds, whose mean is the
    reported figure: never the best round. The window is min(100, rounds / 10) unless given.
    """

    rounds: int
    sampling: Sampling
    seed: int = 0
    eval_every: int = 100
    window: int | None = None
    true_delta_eps: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for name in ("rounds", "eval_every"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InvalidInput(f"{name}: must be a whole number of at least 1, got {value!r}")
        require(self.seed >= 0, "seed", f"must be 0 or more, got {self.seed}")
        if self.window is not None:
            inside = 1 <= self.window <= self.rounds
            require(inside, "window", f"must lie between 1 and the {self.rounds} rounds, got {self.window}")

    @property
    def evaluation_window(self) -> int:
        return self.window or max(1, min(100, self.rounds // 10))

    def evaluates(self, done: int) -> bool:
        """Whether the model after ``done`` rounds is evaluated."""
        return done % self.eval_every == 0 or done > self.rounds - self.evaluation_window


@dataclass(frozen=True)
class Round:
    """What one round did. ``round`` counts from 0; the state it leads to is that of ``round + 1``."""

    round: int
    cohort: Sequence[int]
    loss: float
    norms: Mapping[str, float]
    mean_delta_norm: float
    delta_eps: Mapping[str, float]
    down: Traffic
    up: Traffic
    dropped: Mapping[int, str] = field(default_factory=dict)  # clients of the cohort that were left out, and why


@dataclass(frozen=True)
class Evaluation:
    """The test set's means at the model after so many rounds."""

    rounds: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Step:
    """A finished round: the state after it, its record, and the evaluation where one was due."""

    state: ServerState
    round: Round
    evaluation: Evaluation | None


Evaluate = Callable[[Vector], Mapping[str, float]]


def steps(
    algorithm: Algorithm,
    plan: Plan,
    state: ServerState,
    transport: UnreliableTransport,
    layout: Layout,
    evaluate: Evaluate | None,
) -> Iterator[Step]:
    """Train from ``state`` to the end of the plan. Raises ``Diverged`` where training left the finite numbers."""
    plan.sampling.check(state.population)
    while state.round < plan.rounds:
        cohort = plan.sampling.cohort(state.population, plan.seed, state.round)
        watch = Watch(transport)
        unperturbed = None
        if plan.true_delta_eps and "pseudo_gradient" in state.vectors and state.round > 0:
            unperturbed = unperturbed_pseudo_gradient(algorithm, state, cohort, watch)
        following = run_round(algorithm, state, cohort, watch)
        plan.limits.check(following, layout)
        check_figures({"loss": watch.loss}, "of the clients", done=following.round)
        record = Round(
            round=state.round,
            cohort=cohort,
            loss=watch.loss,
            norms=norms(state, following),
            mean_delta_norm=watch.mean_delta_norm,
            delta_eps=delta_eps_of_round(state, following, unperturbed),
            down=watch.down,
            up=watch.up,
            dropped=watch.dropped,
        )
        evaluation = None
        if evaluate is not None and plan.evaluates(following.round):
            evaluation = Evaluation(following.round, evaluate(following.evaluated))
            check_figures(evaluation.metrics, "of the model", done=following.round)
        state = following
        yield Step(state, record, evaluation)


@dataclass
class History:
    """What training left behind: the final state, a record per round, the evaluations that were due."""

    plan: Plan
    layout: Layout
    state: ServerState
    rounds: list[Round] = field(default_factory=list)
    evaluations: list[Evaluation] = field(default_factory=list)

    def reported(self, metric: str = "accuracy") -> float:
        """The figure to report: the metric's mean over the last rounds' evaluations, never the best one."""
        first = self.plan.rounds - self.plan.evaluation_window
        values = [e.metrics[metric] for e in self.evaluations if e.rounds > first]
        require(bool(values), "metric", f"no evaluation of {metric!r} in the last rounds; give a test set")
        return sum(values) / len(values)

    @property
    def bytes(self) -> int:
        """All that travelled, down and up, over all rounds and clients."""
        return sum(r.down.bytes + r.up.bytes for r in self.rounds)

    def load_into(self, module: nn.Module) -> None:
        """Copy the trained weights (the evaluated ones) into a module."""
        self.layout.load(module, self.state.evaluated)


def train(
    algorithm: Algorithm,
    problem: Problem,
    *,
    rounds: int,
    cohort: int | Sampling,
    seed: int = 0,
    eval_every: int | None = None,
    window: int | None = None,
    true_delta_eps: bool = False,
    limits: Limits | None = None,
    workers: Workers = 1,
    threads: int = 1,
    transport: TransportName = "local",
    address: str = "auto",
    on_failure: OnFailure = "redo",
    on_step: Callable[[Step], None] | None = None,
) -> History:
    """Train and return the history.

    ``cohort`` is the number of clients a round, or a sampling. ``workers`` is the number of processes that train
    clients, ``"auto"`` for one per core; it does not change the numbers. (More than one, in a script, needs the
    usual ``if __name__ == "__main__":``.) ``threads`` is how many threads a client computes with: one gives the
    bits every other way of running gives too; centralised training may take all there are. ``transport="ray"``
    trains on the Ray cluster at ``address`` (``"auto"``, ``"local"`` or HOST:PORT). A client whose worker died is
    trained again, unless ``on_failure`` is ``"drop"`` (it is left out of the round) or ``"stop"``.
    """
    plan = Plan(
        rounds=rounds,
        sampling=ExactCohort(cohort) if isinstance(cohort, int) else cohort,
        seed=seed,
        eval_every=eval_every or max(1, rounds // 20 if isinstance(rounds, int) else 1),
        window=window,
        true_delta_eps=true_delta_eps,
        limits=limits or Limits(),
    )
    federation = problem.federation
    plan.sampling.check(federation.population)
    precision, notice = settle(problem.precision, problem.device)
    if notice is not None:
        log.warning(notice)
    problem = replace(problem, precision=precision)
    if transport == "local" and usable_workers(workers, problem.device) > 1:
        prepare_workers()
    objective = Objective(problem.build(seed), problem.loss, problem.device)
    initial = objective.initial()
    state = algorithm.init_server(initial, federation.population)
    history = History(plan, objective.layout, state)
    with open_simulation(
        algorithm,
        problem,
        objective,
        MemoryStore(),
        seed=seed,
        workers=workers,
        threads=threads,
        transport=transport,
        address=address,
        on_failure=on_failure,
    ) as simulation:
        try_out(objective, initial, federation)

        def judge(params: Vector) -> Mapping[str, float]:
            return simulation.evaluate(params, ["test"])[0]

        tested = judge if federation.test is not None else None
        for step in steps(algorithm, plan, state, simulation.transport, objective.layout, tested):
            history.state = step.state
            history.rounds.append(step.round)
            if step.evaluation is not None:
                history.evaluations.append(step.evaluation)
            if on_step is not None:
                on_step(step)
    return history
