"""A round as a PyTorch user writes it: a DataLoader per client, transforms picture by picture, torch.optim.SGD."""

from __future__ import annotations

import argparse
import copy
import random
import warnings

import torch
from network import ClientPictures, Cnn, client_of, train_plainly
from serving import serve
from torch import Tensor
from work import pictures


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cohort", type=int, default=5)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--loaders", type=int, default=0, help="worker processes of each DataLoader")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    inputs, targets = pictures(options.clients)
    clients = [ClientPictures(*client_of(inputs, targets, client)) for client in range(options.clients)]
    model = Cnn()

    def once() -> None:
        total: dict[str, Tensor] = {}
        for client in random.sample(range(options.clients), options.cohort):
            local = copy.deepcopy(model)
            train_plainly(local, clients[client], options.loaders)
            for name, value in local.state_dict().items():
                total[name] = total.get(name, 0) + value / options.cohort
        model.load_state_dict(total)

    serve(once)


if __name__ == "__main__":
    main()
