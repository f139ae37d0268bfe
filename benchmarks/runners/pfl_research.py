"""Rounds of pfl-research (``pfl``): its own loop, backend and model, in one process or under torch.distributed.

Its users' data are augmented all at once when a client is drawn, which is faster than what its examples do.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import threading
from typing import Any

import torch
from network import Cnn, augmented, client_of
from serving import serve
from torch import Tensor
from work import BATCH, LR, WEIGHT_DECAY, pictures


def distributed(processes: int) -> subprocess.Popen[bytes] | None:
    """Make this process the first of so many, as torchrun does; starts the second, which asks for no rounds."""
    if processes == 1:
        return None
    port = str(random.randrange(20000, 60000))
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "bench"}
    os.environ.update({**shared, "RANK": "0", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    return subprocess.Popen(
        [sys.executable, *sys.argv, "--follow"],
        env={**os.environ, "RANK": "1", "LOCAL_RANK": "1"},
        stdin=subprocess.DEVNULL,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1, choices=(1, 2))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--follow", action="store_true", help="the second process of two")
    options = parser.parse_args()
    second = None if options.follow else distributed(options.processes)
    torch.set_num_threads(options.threads)

    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Network(Cnn):
        def loss(self, images: Tensor, labels: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(self(images), labels)

        def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Any]:
            with torch.no_grad():
                return {"loss": Weighted(float(self.loss(images, labels)) * len(labels), len(labels))}

    inputs, targets = pictures(options.clients)
    go, done = threading.Semaphore(0), threading.Semaphore(0)

    class Wait(TrainingProcessCallback):  # type: ignore[misc]
        """A round is done; the next begins when it is asked for."""

        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
            if not options.follow:
                done.release()
                go.acquire()
            return False, Metrics()

    def user(client: int) -> Any:
        own, labels = client_of(inputs, targets, client)
        return PyTorchTensorDataset((augmented(own), torch.from_numpy(labels)), user_id=str(client))

    network = Network()
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, weight_decay=WEIGHT_DECAY),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    users = FederatedDataset(user, get_user_sampler("minimize_reuse", list(range(options.clients))))

    def train() -> None:
        FederatedAveraging().run(
            NNAlgorithmParams(
                central_num_iterations=10**6,
                evaluation_frequency=10**6,
                train_cohort_size=options.cohort,
                val_cohort_size=None,
            ),
            SimulatedBackend(training_data=users, val_data=users),
            model,
            NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LR),
            callbacks=[Wait()],
            send_metrics_to_platform=False,
        )

    def answer() -> None:
        done.acquire()  # the first round, which also evaluates

        def once() -> None:
            go.release()
            done.acquire()

        serve(once)
        if second is not None:
            second.kill()
            second.wait()
        os._exit(0)  # training waits for a round that nobody will ask for

    if not options.follow:
        threading.Thread(target=answer, daemon=True).start()
    train()  # in the main thread, where its event loop is


if __name__ == "__main__":
    main()
