"""The server of a federation: the one training loop with sites for clients, saved after every round.

A round's state is on the disk before any site is told that its update was used. So a server that dies goes on from
its last round, repeats the one it was in, and sites forget what they answered in vain.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import safetensors.torch

from ..algorithm import UnreliableTransport
from ..checkpoint import Checkpoints, summary_of_differences
from ..environment import describe_environment
from ..errors import Diverged, InvalidInput
from ..files import read_text, write_atomically
from ..messages import ServerState
from ..records import (
    FORMAT,
    Journal,
    RunFolder,
    evaluation_line,
    read_json,
    read_lines,
    round_line,
    write_json,
)
from ..run import Job, Status, decisive, fingerprint, refuse_unevaluated_end, summarise
from ..sampling import IndependentCohort
from ..tasks import Objective, evaluate
from ..training import Step, steps
from ..vectors import Vector
from .definition import Learning, evaluation_federation
from .exchange import Post, Rules, SiteTransport, TooFewSites
from .privacy import Noised, Privacy, SecretCohort, check_private

log = logging.getLogger("fedgloss")


@dataclass
class TakenUpdates:
    """For each site the round of its last update that the server used: the version of the memory it must have."""

    versions: dict[int, int]
    changed: dict[int, int]

    def flush(self) -> dict[int, int]:
        flushed, self.changed = self.changed, {}
        self.versions.update(flushed)
        return flushed

    def collect(self, kept: Iterable[int]) -> None: ...

    def restore(self, kept: Sequence[Mapping[int, int]]) -> None:
        self.versions = dict(kept[-1]) if kept else {}


def serve(
    learning: Learning, post: Post, folder: RunFolder, rules: Rules = Rules(), attempts: int = 3
) -> dict[str, Any]:
    """Train with the sites to the end of the plan, from the last round that was saved; returns the summary.

    A round with too few answers is done again, at most so many ``attempts`` in a row.
    """
    objective, sampling = learning.objective(), learning.plan.sampling
    sampling.check(learning.sites)
    if learning.privacy is not None:
        if not isinstance(sampling, IndependentCohort):
            raise InvalidInput(
                "privacy: the accountant needs sites drawn independently; set training.participation"
            )
        learning.privacy.spent(sampling.probability, [1])  # is the accountant there?
        learning = replace(learning, plan=replace(learning.plan, sampling=SecretCohort(sampling.probability)))
    folder.path.mkdir(parents=True, exist_ok=True)
    with folder.locked():
        run = _open_folder(learning, folder)
        server = _Server(learning, objective, folder, post, run, rules)
        write_atomically(folder.config, learning.config.encode())  # more rounds may be asked for than before
        try:
            return server.train(attempts)
        finally:
            server.close()


class _Server:
    def __init__(
        self, learning: Learning, objective: Objective, folder: RunFolder, post: Post, run: str, rules: Rules
    ) -> None:
        self._learning = learning
        self._objective = objective
        self._folder = folder
        self._checkpoints = Checkpoints(folder)
        done = self._checkpoints.newest()
        self._state, lengths = self._start(done)
        self._checkpoints.open(done)
        self._taken = TakenUpdates({}, {})
        self._checkpoints.restore(done, self._taken)
        names = {"rounds": folder.rounds, "timings": folder.timings, "incidents": folder.path / "incidents.jsonl"}
        if learning.privacy is not None:
            names["privacy"] = folder.path / "privacy.jsonl"
        self._journals = {name: Journal(path, lengths.get(name, 0)) for name, path in names.items()}
        self._sites = SiteTransport(
            post, learning.algorithm, objective.layout, run, rules, dict(self._taken.versions)
        )

    def close(self) -> None:
        self._checkpoints.close()
        for journal in self._journals.values():
            journal.close()

    def train(self, attempts: int) -> dict[str, Any]:
        learning, layout = self._learning, self._objective.layout
        federation, failures = evaluation_federation(learning, self._objective), 0
        transport: UnreliableTransport = self._sites
        if learning.privacy is not None:
            transport = self._private(learning.privacy)

        def judge(params: Vector) -> Mapping[str, float]:
            assert federation is not None
            assert federation.test is not None
            return evaluate(self._objective, params, federation.test, federation, learning.metrics)

        self._save()
        if self._state.round < learning.plan.rounds:
            self._folder.summary.unlink(missing_ok=True)  # it speaks of an end that is none any more
        judged = judge if federation is not None else None
        while self._state.round < learning.plan.rounds:
            try:
                started = time.monotonic()
                for step in steps(learning.algorithm, learning.plan, self._state, transport, layout, judged):
                    self._finish(step, time.monotonic() - started)
                    failures, started = 0, time.monotonic()
            except TooFewSites as error:
                failures += 1
                self._note_incidents()
                self._save()
                if failures == attempts:
                    self._summarise("interrupted")
                    raise
                log.warning("%s; the round is done again", error)
            except Diverged as error:
                return self._summarise("diverged", error)
        weights = layout.unpack(self._state.evaluated)
        write_atomically(self._folder.path / "model.safetensors", safetensors.torch.save(weights))
        return self._summarise("finished")

    def _finish(self, step: Step, seconds: float) -> None:
        """Write the round down, save the state, and only then let the sites know."""
        self._journals["rounds"].append(round_line(step.round))
        if step.evaluation is not None:
            self._journals["rounds"].append(evaluation_line(step.evaluation))
        self._journals["timings"].append({"round": step.round.round, "seconds": round(seconds, 6)})
        self._note_incidents()
        self._state = step.state
        self._taken.changed = dict(self._sites.used)
        self._save()
        self._sites.saved()
        metrics = step.evaluation.metrics if step.evaluation else {}
        shown = "".join(f"  test {name} {value:.4g}" for name, value in metrics.items())
        left_out = f"  without {sorted(step.round.dropped)}" if step.round.dropped else ""
        log.info("round %d  loss %.4g%s%s", step.round.round, step.round.loss, shown, left_out)

    def _private(self, privacy: Privacy) -> Noised:
        """The transport of a private federation, which accounts for each sum before it leaves."""
        algorithm, sampling, sites = self._learning.algorithm, self._learning.plan.sampling, self._learning.sites
        assert isinstance(sampling, SecretCohort)
        check_private(algorithm, self._state, self._sites.expected(next(algorithm.server_round(self._state))))
        releases = Counter(line["draw"] for line in read_lines(self._folder.path / "privacy.jsonl"))
        sampling.draws = max(releases, default=0)

        def released(round: int) -> None:
            releases[sampling.draws] += 1
            epsilon = privacy.spent(sampling.probability, releases.values())
            line = {"round": round, "draw": sampling.draws, "epsilon": epsilon, "delta": privacy.delta}
            self._journals["privacy"].append(line)
            self._save()

        return Noised(self._sites, privacy, sampling.expected(sites), released)

    def _note_incidents(self) -> None:
        for incident in self._sites.incidents:
            log.warning("round %(round)d: site %(site)d %(what)s", incident)
            self._journals["incidents"].append(incident)
        self._sites.incidents.clear()

    def _start(self, done: int | None) -> tuple[ServerState, Mapping[str, int]]:
        learning = self._learning
        if done is None:
            return learning.algorithm.init_server(self._objective.initial(), learning.sites), {}
        manifest = self._checkpoints.manifest(done)
        if done > learning.plan.rounds:
            raise InvalidInput(
                f"training.rounds: {learning.plan.rounds} asked for, but the run has done {done} already"
            )
        if learning.test_data is not None:
            refuse_unevaluated_end(learning.plan, done, self._folder)
        if manifest.layout != self._objective.layout.fingerprint:
            raise InvalidInput(f"{self._folder.path}: its checkpoint is of another network")
        return self._checkpoints.state(done), manifest.lengths

    def _save(self) -> None:
        self._checkpoints.save(
            self._state,
            self._taken,
            layout=self._objective.layout.fingerprint,
            config=fingerprint(self._learning.config),
            journals=self._journals,
        )

    def _summarise(self, status: Status, divergence: Diverged | None = None) -> dict[str, Any]:
        """As of any other run, so that whatever reads runs reads this one."""
        learning = self._learning
        job = Job(learning.algorithm, learning.problem(), learning.plan)
        incidents = len(read_lines(self._folder.path / "incidents.jsonl"))
        summary = {**summarise(self._folder, job, status, divergence), "incidents": incidents}
        write_json(self._folder.summary, summary)
        return summary


def _open_folder(learning: Learning, folder: RunFolder) -> str:
    """Begin or recognise the run; returns its name, by which sites find the memory that belongs to it."""
    path = folder.path / "identity.json"
    privacy = None if learning.privacy is None else asdict(learning.privacy)
    if not folder.exists:
        write_json(path, {"run": uuid.uuid4().hex, "privacy": privacy})
        # without the command: it is Flower's own, and has the running app's token in it
        write_json(folder.environment, {"format": FORMAT, **describe_environment(), "command": []})
        write_atomically(folder.config, learning.config.encode())
    folder.require()
    differences = summary_of_differences(decisive(read_text(folder.config)), decisive(learning.config))
    if differences:
        raise InvalidInput(
            f"{folder.path}: holds a run with another configuration ({'; '.join(differences)}); "
            "choose another run-folder"
        )
    identity = read_json(path)
    if identity["privacy"] != privacy:
        raise InvalidInput(
            f"{folder.path}: holds a run with privacy {_in_words(identity['privacy'])}, now {_in_words(privacy)}: "
            "what was spent could not be told; choose another run-folder"
        )
    return str(identity["run"])


def _in_words(privacy: Mapping[str, float] | None) -> str:
    return "off" if privacy is None else ", ".join(f"{name} {value:g}" for name, value in privacy.items())
