"""Jobs for workers that come and go: whoever is free takes one, and the answers are given in order.

A client's result depends on the broadcast, its memory and its own random stream alone, and answers are given in
the order of the cohort; so neither the number of workers nor their timing can be seen in the numbers.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

from ..errors import WorkerLost

ATTEMPTS = 3  # at a job, before it is blamed for the deaths of its workers
AHEAD = 4  # jobs per worker that may be done before an earlier one is: bounds what is held back for its turn

OnFailure: TypeAlias = Literal["redo", "drop", "stop"]
"""What becomes of a job whose worker died: done again, left out, or the end of the run."""

K = TypeVar("K", bound=Hashable)
W = TypeVar("W")


class Crew(Protocol[W]):
    """Workers that do one job at a time."""

    def size(self) -> int:
        """How many there are, or will be."""

    def idle(self) -> Sequence[W]:
        """Those that wait for a job."""

    def give(self, worker: W, index: int, job: Any) -> None: ...

    def busy(self) -> bool:
        """Whether any job is being done."""

    def hear(self) -> Sequence[tuple[int, Any]]:
        """Wait for news: what came of jobs, by their index. A ``WorkerLost`` means that nobody does it any more."""


def shared_out(client: int, cohort: Sequence[int]) -> bool:
    """Whether two workers may share a client: the last one of an odd cohort, for which one of two workers would
    have to wait. Where clients run must not be seen in the numbers, so it is shared out even if nobody helps."""
    return len(cohort) > 1 and len(cohort) % 2 == 1 and client == cohort[-1]


def settle(crew: Crew[Any]) -> None:
    """Wait for what an exchange that was broken off left behind."""
    while crew.busy():
        crew.hear()


def first_come(worker: object, key: object) -> int:
    """No key suits one worker better than another."""
    return 0


def in_order(
    crew: Crew[W],
    keys: Sequence[K],
    make_job: Callable[[K, W], Any],
    *,
    on_failure: OnFailure = "redo",
    rank: Callable[[W, K], int] = first_come,
) -> Iterator[tuple[K, Any]]:
    """Each key with the answer to its job, in order; with ``on_failure="drop"`` the answer may be a ``WorkerLost``.

    A free worker takes the job that ranks lowest for it, the first of several. Jobs of equal keys are done one
    after the other.
    """
    answers: dict[int, Any] = {}
    waiting, losses, previous = list(range(len(keys))), Counter[int](), _previous_equals(keys)
    for turn, key in enumerate(keys):
        while True:
            for worker in crew.idle():
                window = AHEAD * crew.size()
                near = [index for index in waiting[:window] if index < turn + window]
                ready = [(rank(worker, keys[index]), index) for index in near if previous[index] < turn]
                if not ready:
                    break
                index = min(ready)[1]
                waiting.remove(index)
                crew.give(worker, index, make_job(keys[index], worker))
            if turn in answers:
                break
            for index, answer in crew.hear():
                if not isinstance(answer, WorkerLost) or on_failure == "drop":
                    answers[index] = answer
                    continue
                losses[index] += 1
                if on_failure == "stop" or losses[index] == ATTEMPTS:
                    raise answer
                insort(waiting, index)
        answer = answers.pop(turn)
        if isinstance(answer, Exception) and not isinstance(answer, WorkerLost):
            raise answer
        yield key, answer


def _previous_equals(keys: Sequence[K]) -> list[int]:
    """For each key the place of the one before it that equals it, -1 where there is none."""
    last: dict[K, int] = {}
    found = []
    for index, key in enumerate(keys):
        found.append(last.get(key, -1))
        last[key] = index
    return found
