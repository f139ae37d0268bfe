"""The ways a run can go wrong that are nobody's bug: bad input, training that diverges, a machine that fails."""

from __future__ import annotations


class InvalidInput(ValueError):
    """A user's mistake. The message is one line that names what is wrong and how to mend it."""


class Busy(InvalidInput):
    """Another process is writing to this run."""


class Diverged(RuntimeError):
    """Training left the finite numbers; names the round and, where known, the client and tensor."""

    def __init__(self, reason: str, *, round: int, client: int | None = None, tensor: str | None = None) -> None:
        where = f"round {round}"
        if client is not None:
            where += f", client {client}"
        if tensor is not None:
            where += f", tensor {tensor!r}"
        super().__init__(f"{where}: {reason}")
        self.reason = reason
        self.round = round
        self.client = client
        self.tensor = tensor

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments need help to cross processes
        return _diverged, (self.reason, self.round, self.client, self.tensor)


class WorkerLost(RuntimeError):
    """A worker process died at a piece of work, and so did those that tried it again."""


def _diverged(reason: str, round: int, client: int | None, tensor: str | None) -> Diverged:
    return Diverged(reason, round=round, client=client, tensor=tensor)


def require(condition: bool, argument: str, problem: str) -> None:
    """Refuse bad input in one line: ``beta: must be positive, got 0``."""
    if not condition:
        raise InvalidInput(f"{argument}: {problem}")
