"""Your own pictures: a folder per class; whose they are is in the folders, in a CSV file, or left to a split.

    python examples/own_pictures.py [FOLDER]

Without a folder of yours, a small one is made: three people photograph red, green and blue things.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from torch import nn

from fedgloss import FedAvg, LocalTraining, Problem, train
from fedgloss.data.datasets import load
from fedgloss.data.federate import federate


def make_pictures(folder: Path) -> None:
    """``<person>/<class>/<number>.jpg``; each person mostly photographs one thing."""
    draw = np.random.default_rng(0)
    for place, person in enumerate(("anna", "ben", "carla")):
        for label, name in enumerate(("red", "green", "blue")):
            (folder / person / name).mkdir(parents=True)
            for number in range(30 if label == place else 6):
                pixels = draw.normal(90, 40, (48, 64, 3))
                pixels[..., label] += 60
                picture = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
                picture.save(folder / person / name / f"{number}.jpg")


def learn(folder: Path, **options: object) -> float:
    """Accuracy after twenty rounds."""
    pictures = load("imagefolder", path=folder, side=32, **options)
    divided = {"split": "natural"} if pictures.owners is not None else {"split": "hsu", "clients": 3, "alpha": 1.0}
    federation = federate(pictures, **divided)
    print(f"{federation.population} clients of {federation.partition.sizes.tolist()} pictures")

    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(32 * 32 * 3, len(pictures.classes)))

    history = train(FedAvg(LocalTraining(lr=0.01, batch_size=16)), Problem(federation, model), rounds=20, cohort=2)
    return history.reported()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch, "pictures")
        if not folder.exists():
            make_pictures(folder)
        print(f"accuracy {learn(folder, clients='folders'):.2f}")
