"""A run that survives anything: the training loop with records, checkpoints, and a clean way to stop."""

from __future__ import annotations

import hashlib
import json
import signal
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any, Literal, Protocol

from .algorithm import Algorithm
from .algorithms import TailAverage
from .checkpoint import Checkpoints, summary_of_differences
from .costs import ledger
from .data import Samples
from .data.statistics import portrait
from .environment import describe_environment, differing_environment
from .errors import Diverged, InvalidInput
from .files import disk_errors, read_text, write_atomically
from .forkserver import prepare_workers
from .messages import ServerState
from .precision import settle
from .records import (
    FORMAT,
    Journal,
    RunFolder,
    evaluation_line,
    read_json,
    read_lines,
    round_line,
    torn_line,
    write_json,
)
from .tasks import Objective, Problem, client_spread, try_out
from .training import Plan, Step, steps
from .transports import (
    DiskStore,
    OnFailure,
    TransportName,
    Workers,
    on_device,
    open_simulation,
    usable_workers,
)
from .vectors import Vector

Status = Literal["finished", "diverged", "interrupted"]


@dataclass(frozen=True)
class Job:
    """All that decides a run's numbers, and the configuration (TOML) it was built from."""

    algorithm: Algorithm
    problem: Problem
    plan: Plan
    config: str = ""
    evaluate_on: Literal["test", "validation"] = "test"
    client_accuracy: bool = False

    @property
    def judged(self) -> Samples | None:
        """What the model is evaluated on."""
        federation = self.problem.federation
        return federation.test if self.evaluate_on == "test" else federation.validation

    @property
    def fingerprint(self) -> str:
        """Equal for jobs that differ at most in length and in how they are carried out."""
        return fingerprint(self.config)


def fingerprint(config: str) -> str:
    """Identifies the part of a configuration (TOML) that decides each round's numbers."""
    return hashlib.sha256(json.dumps(decisive(config), sort_keys=True).encode()).hexdigest()[:16]


def decisive(config: str) -> dict[str, Any]:
    """The part of a configuration that decides each round's numbers."""
    try:
        content = tomllib.loads(config)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"config.toml: is not TOML: {error}") from None
    content["run"] = {"device": content.get("run", {}).get("device", "cpu")}
    content["training"] = {k: v for k, v in content.get("training", {}).items() if k != "rounds"}
    return content


@dataclass(frozen=True)
class Execution:
    """How to carry a job out: nothing here changes its numbers, but for clients that ``on_failure`` lets go."""

    transport: TransportName = "local"
    address: str = "auto"
    workers: Workers = 1
    on_failure: OnFailure = "redo"
    checkpoint_seconds: float = 60.0
    keep_every: int | None = None
    client_memory: int | None = None


class Tracker(Protocol):
    """Looks on while a run goes: the progress bar, TensorBoard, or a user's own."""

    def started(self, job: Job, done: int, notices: Sequence[str]) -> None: ...

    def stepped(self, step: Step, seconds: float) -> None: ...

    def ended(self, summary: Mapping[str, Any]) -> None: ...


class Interruption:
    """Ctrl-C and SIGTERM ask for the end of the current round; a second Ctrl-C is not so patient."""

    def __init__(self) -> None:
        self.asked = False

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def handled(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def execute(job: Job, folder: RunFolder, execution: Execution, trackers: Sequence[Tracker] = ()) -> dict[str, Any]:
    """Start the run, or go on with it to the same bits, and return its summary."""
    began = read_json(folder.environment).get("precision") if folder.exists else None
    precision, notice = settle(job.problem.precision, job.problem.device, began)
    job = replace(job, problem=replace(job.problem, precision=precision))
    objective = Objective(job.problem.build(job.plan.seed), job.problem.loss, job.problem.device)
    try_out(objective, objective.initial(), job.problem.federation)
    job.plan.sampling.check(job.problem.federation.population)
    with disk_errors(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        if not folder.vacant and not folder.exists:  # before the lock, which would leave its file there
            raise InvalidInput(f"{folder.path}: exists and is not a run; choose another --out")
    with folder.locked():
        if execution.transport == "local" and usable_workers(execution.workers, job.problem.device) > 1:
            prepare_workers()
        notices = [*([notice] if notice else []), *_open_folder(job, folder)]
        checkpoints = Checkpoints(folder, keep_every=execution.keep_every)
        algorithm = TailAverage(job.algorithm, first=job.plan.rounds - job.plan.evaluation_window)
        state, lengths = _starting_point(job, algorithm, objective, checkpoints)
        with closing(checkpoints), _open_journals(folder, lengths) as journals:
            notices += _another_length(job, state, folder)
            store = _open_store(folder, checkpoints, objective, execution, state.round if lengths else None)
            with disk_errors(folder.path):
                write_atomically(folder.config, job.config.encode())  # more rounds may be asked for than before
                if state.round < job.plan.rounds:
                    folder.summary.unlink(missing_ok=True)  # it speaks of an end that is none any more
            loop = _Loop(job, algorithm, objective, execution, checkpoints, store, journals, list(trackers))
            for tracker in trackers:
                tracker.started(job, state.round, notices)
            with disk_errors(folder.path):
                status, divergence = loop.run(state)
                summary = summarise(folder, job, status, divergence)
                write_json(folder.summary, summary)
        for tracker in trackers:
            tracker.ended(summary)
        return summary


class _Loop:
    """The rounds of one process's share of a run."""

    def __init__(
        self,
        job: Job,
        algorithm: Algorithm,
        objective: Objective,
        execution: Execution,
        checkpoints: Checkpoints,
        store: DiskStore,
        journals: Mapping[str, Journal],
        trackers: Sequence[Tracker],
    ) -> None:
        self.job = job
        self.algorithm = algorithm
        self.objective = objective
        self.execution = execution
        self.checkpoints = checkpoints
        self.store = store
        self.journals = journals
        self.trackers = trackers
        self._saved = -1

    def run(self, state: ServerState) -> tuple[Status, Diverged | None]:
        job, federation = self.job, self.job.problem.federation
        interruption = Interruption()
        with (
            interruption.handled(),
            open_simulation(
                self.algorithm,
                job.problem,
                self.objective,
                self.store,
                seed=job.plan.seed,
                workers=self.execution.workers,
                transport=self.execution.transport,
                address=self.execution.address,
                on_failure=self.execution.on_failure,
            ) as simulation,
        ):

            def judge(params: Vector) -> Mapping[str, float]:
                clients = range(federation.population) if job.client_accuracy else []
                found, *per_client = simulation.evaluate(params, [job.evaluate_on, *clients])
                return found | client_spread(per_client, job.problem.metrics) if per_client else found

            transport, layout = simulation.transport, self.objective.layout
            judged = None if job.judged is None else judge
            self._save(state)
            last_save = started = time.monotonic()
            try:
                for step in steps(self.algorithm, job.plan, state, transport, layout, judged):
                    now = time.monotonic()
                    self._record(step, now - started)
                    state, started = step.state, now
                    overdue = now - last_save >= self.execution.checkpoint_seconds
                    if overdue or interruption.asked or self._must_save(state.round):
                        self._save(state)
                        last_save = started = time.monotonic()
                    if interruption.asked and state.round < job.plan.rounds:
                        return "interrupted", None
            except Diverged as divergence:
                for journal in self.journals.values():
                    journal.sync()
                return "diverged", divergence
        return "finished", None

    def _record(self, step: Step, seconds: float) -> None:
        self.journals["rounds"].append(round_line(step.round))
        if step.evaluation is not None:
            self.journals["rounds"].append(evaluation_line(step.evaluation))
        self.journals["timings"].append({"round": step.round.round, "seconds": round(seconds, 6)})
        for tracker in self.trackers:
            tracker.stepped(step, seconds)

    def _must_save(self, done: int) -> bool:
        # the last round's local models are recomputed from the state before it
        keep = self.execution.keep_every
        return done >= self.job.plan.rounds - 1 or (keep is not None and done % keep == 0)

    def _save(self, state: ServerState) -> None:
        if state.round == self._saved:
            return
        self.checkpoints.save(
            state,
            self.store,
            layout=self.objective.layout.fingerprint,
            config=self.job.fingerprint,
            journals=self.journals,
        )
        self._saved = state.round


@contextmanager
def _open_journals(folder: RunFolder, lengths: Mapping[str, int]) -> Iterator[dict[str, Journal]]:
    """The run's records, cut back to where its checkpoint was made."""
    paths = {"rounds": folder.rounds, "timings": folder.timings}
    with ExitStack() as stack:
        with disk_errors(folder.path):
            journals = {
                name: stack.enter_context(closing(Journal(path, lengths.get(name, 0))))
                for name, path in paths.items()
            }
        yield journals


def _open_folder(job: Job, folder: RunFolder) -> list[str]:
    """Begin or recognise the run; returns what the user should know before it goes on."""
    environment = describe_environment() | {"precision": job.problem.precision}
    notes = job.problem.federation.notes
    left = notes.get("left out")
    notices = [f"trains without {left['missing']} missing and {left['corrupt']} corrupt pictures"] if left else []
    if not folder.exists:
        with disk_errors(folder.path):
            write_json(folder.environment, {"format": FORMAT, **environment, "data": notes})
            write_atomically(folder.federation, json.dumps(portrait(job.problem.federation)).encode())
            write_atomically(folder.config, job.config.encode())
        return notices
    folder.require()
    differences = summary_of_differences(decisive(read_text(folder.config)), decisive(job.config))
    if differences:
        raise InvalidInput(
            f"{folder.path}: holds a run with another configuration ({'; '.join(differences)}); "
            "choose another --out, or resume it as it is"
        )
    if folder.federation.exists():
        began, now = read_json(folder.federation), portrait(job.problem.federation)
        others = [key for key in ("train", "test", "validation", "sizes", "counts") if began.get(key) != now[key]]
        if others:
            raise InvalidInput(
                f"{folder.path}: the data have changed since it began ({', '.join(others)} in federation.json); "
                "put them back as they were, or choose another --out"
            )
    if torn_line(folder.rounds):
        notices.append("the last line of rounds.jsonl was torn by a crash and is dropped")
    before, checkpoints = read_json(folder.environment), Checkpoints(folder)
    if (done := checkpoints.newest()) is not None and (code := checkpoints.manifest(done).code):
        before["code"] = code  # of whoever went on with it last
    changed = differing_environment(before, environment)
    if changed:
        notices.append(f"this machine or code may give other last bits: {'; '.join(changed)}")
    return notices


def _starting_point(
    job: Job, algorithm: Algorithm, objective: Objective, checkpoints: Checkpoints
) -> tuple[ServerState, Mapping[str, int]]:
    """The newest checkpoint's state and record lengths, or a first state and none."""
    done = checkpoints.newest()
    if done is None:
        return algorithm.init_server(objective.initial(), job.problem.federation.population), {}
    manifest = checkpoints.manifest(done)
    if done > job.plan.rounds:
        raise InvalidInput(
            f"{checkpoints.folder.path}: training.rounds: {job.plan.rounds} asked for, but the run has done {done} "
            "already"
        )
    if manifest.config != job.fingerprint:
        config = checkpoints.folder.config
        raise InvalidInput(f"{config}: was changed after the run's checkpoint was made; put it back as it was")
    if manifest.layout != objective.layout.fingerprint:
        raise InvalidInput(f"{checkpoints.folder.path}: its checkpoint is of another network")
    return on_device(checkpoints.state(done), objective.device), manifest.lengths


def _another_length(job: Job, state: ServerState, folder: RunFolder) -> list[str]:
    """What a run that began with another number of rounds in view cannot have; returns what the user should know.

    Its rounds are the same, but the last ones, which are reported, had not all been known as the last.
    """
    if job.judged is not None:
        refuse_unevaluated_end(job.plan, state.round, folder)
    first = job.plan.rounds - job.plan.evaluation_window
    if state.round > first and state.scalars.get("tail_first") != first:
        return ["the mean of the last models (--average) cannot be had: they were not known to be the last ones"]
    return []


def refuse_unevaluated_end(plan: Plan, done: int, folder: RunFolder) -> None:
    """A run that has ``done`` rounds can end with the plan only if all that would be reported was evaluated."""
    first = plan.rounds - plan.evaluation_window
    evaluated = {line["rounds"] for line in read_lines(folder.rounds, "evaluation")} if done > first else set()
    missed = [one for one in range(first + 1, done + 1) if one not in evaluated]
    if missed:
        raise InvalidInput(
            f"{folder.path}: training.rounds: {plan.rounds} asked for, of which the last {plan.evaluation_window} "
            f"are reported, but the run has gone past round {missed[0]} without an evaluation; ask for more rounds"
        )


def _open_store(
    folder: RunFolder,
    checkpoints: Checkpoints,
    objective: Objective,
    execution: Execution,
    done: int | None,
) -> DiskStore:
    with disk_errors(folder.path):
        checkpoints.open(done)
        store = DiskStore(folder.clients, size=objective.layout.size, budget=execution.client_memory)
        checkpoints.restore(done, store)
    return store


PROTOCOL = (
    "The unperturbed global model (or the method's own average of models) on the whole {on} set, without "
    "augmentation, every {every} rounds and after {last}; reported is {what}, never the best."
)


def _protocol(on: str, every: int, window: int) -> str:
    if window == 1:
        return PROTOCOL.format(on=on, every=every, last="the last round", what="the last round's figure")
    rounds = f"last {window} rounds"
    return PROTOCOL.format(on=on, every=every, last=f"each of the {rounds}", what=f"the mean over those {rounds}")


def summarise(folder: RunFolder, job: Job, status: Status, divergence: Diverged | None = None) -> dict[str, Any]:
    """What became of the run, worked out from its records."""
    rounds, evaluations = read_lines(folder.rounds, "round"), read_lines(folder.rounds, "evaluation")
    seconds = sum(line["seconds"] for line in read_lines(folder.timings))
    window = job.plan.evaluation_window
    last = [line for line in evaluations if line["rounds"] > job.plan.rounds - window]
    complete = status == "finished" and len(last) == window
    names = last[-1]["metrics"] if last else {}
    reported = {n: sum(line["metrics"][n] for line in last) / window for n in names} if complete else {}
    travelled = ledger(rounds)
    return {
        "format": FORMAT,
        "status": status,
        "rounds": len(rounds),
        "planned_rounds": job.plan.rounds,
        "reported": reported,
        "last_evaluation": evaluations[-1] if evaluations else None,
        "protocol": _protocol(job.evaluate_on, job.plan.eval_every, window),
        "window": window,
        "traffic": {**asdict(travelled), "bytes": travelled.bytes, "factor": travelled.factor},
        "seconds": round(seconds, 3),
        "divergence": None if divergence is None else _describe(divergence),
    }


def _describe(divergence: Diverged) -> dict[str, Any]:
    return {
        "round": divergence.round,
        "client": divergence.client,
        "tensor": divergence.tensor,
        "reason": divergence.reason,
    }
