"""The network and the pictures as a PyTorch user writes them, for the runners of other projects.

Imports nothing of fedgloss, and of torch only what every version has.
"""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from work import BATCH, CLASSES, LR, MEAN, PER_CLIENT, STD, WEIGHT_DECAY


class Cnn(nn.Module):
    """The paper's CNN."""

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

    def __init__(self, inputs: npt.NDArray[np.uint8], targets: npt.NDArray[np.int64]) -> None:
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


def client_of(
    inputs: npt.NDArray[np.uint8], targets: npt.NDArray[np.int64], client: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    own = slice(client * PER_CLIENT, (client + 1) * PER_CLIENT)
    return inputs[own], targets[own]


def augmented(inputs: npt.NDArray[np.uint8]) -> Tensor:
    """The same augmentation for all pictures of a client at once: kinder to a peer than picture by picture."""
    pictures = torch.from_numpy(inputs)
    count = len(pictures)
    padded = torch.zeros(count, 40, 40, 3, dtype=torch.uint8)
    padded[:, 4:36, 4:36] = pictures
    rows = torch.randint(9, (count, 1)) + torch.arange(32)
    columns = torch.randint(9, (count, 1)) + torch.arange(32)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    cropped = padded[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    scaled = cropped.float().div_(255).sub_(torch.tensor(MEAN)).div_(torch.tensor(STD))
    return scaled.permute(0, 3, 1, 2).contiguous()


def train_plainly(model: nn.Module, pictures: ClientPictures, loaders: int = 0) -> None:
    """One epoch as everybody writes it."""
    loss_function = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for images, labels in DataLoader(pictures, BATCH, shuffle=True, num_workers=loaders):
        optimizer.zero_grad()
        loss_function(model(images), labels).backward()
        optimizer.step()
