"""What Flower's clients run, in a module of its own so that its worker processes import it and keep its data."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from network import ClientPictures, Cnn, client_of, train_plainly
from work import PER_CLIENT, pictures

CLIENTS = 100


@cache
def plain_client(client: int) -> ClientPictures:
    return ClientPictures(*client_of(*_all_pictures(), client))


@cache
def _all_pictures() -> Any:
    return pictures(CLIENTS)


@cache
def our_loop() -> Any:
    """The network and the clients' batches of this library."""
    from ours import unit_problem

    from fedgloss.tasks import Objective, client_tasks

    problem = unit_problem("cnn", CLIENTS)
    objective = Objective(problem.build(0), problem.loss)
    return objective, client_tasks(objective, problem.federation, 0)


def answer(message: Message, state: dict[str, torch.Tensor]) -> Message:
    metrics = MetricRecord({"num-examples": PER_CLIENT})
    return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": metrics}), reply_to=message)


def make_client(loop: str) -> ClientApp:
    app = ClientApp()

    @app.train()  # type: ignore[untyped-decorator]
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        state = message.content["arrays"].to_torch_state_dict()
        client = int(context.node_config["partition-id"])
        if loop == "plain":
            model = Cnn()
            model.load_state_dict(state)
            train_plainly(model, plain_client(client))
            return answer(message, model.state_dict())
        from ours import LOCAL

        from fedgloss import Plain

        _, tasks = our_loop()
        start = state["params"]
        result = LOCAL.run(start, tasks(client, 0, "train"), 0, Plain())
        return answer(message, {"params": start + result.delta})

    return app
