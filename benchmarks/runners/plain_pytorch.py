"""A round as a PyTorch user writes it: a DataLoader per client, transforms picture by picture, torch.optim.SGD."""

from __future__ import annotations

import argparse
import copy
import random
import warnings

import numpy as np
import torch
from PIL import Image, ImageOps
from serving import serve
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from work import BATCH, CLASSES, LR, MEAN, PER_CLIENT, STD, WEIGHT_DECAY, pictures


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 64, 5), nn.Conv2d(64, 64, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(1600, 384), nn.Linear(384, 192), nn.Linear(192, CLASSES)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(torch.relu(self.conv1(x)))
        x = self.pool(torch.relu(self.conv2(x)))
        x = torch.relu(self.fc1(x.flatten(1)))
        return self.fc3(torch.relu(self.fc2(x)))  # type: ignore[no-any-return]


class ClientPictures(Dataset[tuple[Tensor, int]]):
    """What ``RandomCrop(32, 4), RandomHorizontalFlip(), ToTensor(), Normalize()`` do, as torchvision does it."""

    def __init__(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        self.images = [Image.fromarray(picture) for picture in inputs]
        self.targets = [int(target) for target in targets]
        self.mean, self.std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        padded = ImageOps.expand(self.images[index], border=4, fill=0)
        top, left = random.randrange(9), random.randrange(9)
        image = padded.crop((left, top, left + 32, top + 32))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        picture = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return picture.float().div_(255).sub_(self.mean).div_(self.std), self.targets[index]


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
    clients = [
        ClientPictures(
            inputs[k * PER_CLIENT : (k + 1) * PER_CLIENT], targets[k * PER_CLIENT : (k + 1) * PER_CLIENT]
        )
        for k in range(options.clients)
    ]
    model, loss_function = Cnn(), nn.CrossEntropyLoss()

    def once() -> None:
        total: dict[str, Tensor] = {}
        for client in random.sample(range(options.clients), options.cohort):
            local = copy.deepcopy(model)
            optimizer = torch.optim.SGD(local.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
            loader = DataLoader(clients[client], BATCH, shuffle=True, num_workers=options.loaders)
            for images, labels in loader:
                optimizer.zero_grad()
                loss_function(local(images), labels).backward()
                optimizer.step()
            for name, value in local.state_dict().items():
                total[name] = total.get(name, 0) + value / options.cohort
        model.load_state_dict(total)

    serve(once)


if __name__ == "__main__":
    main()
