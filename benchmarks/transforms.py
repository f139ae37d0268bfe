"""Training transforms on one core: CIFAR pictures a second, ours and Pillow picture by picture.

    python -m benchmarks.transforms

Both are run in turn, many times over, and medians are printed, so that what else the machine is doing hits both.
Seconds are those the process was computing, on one thread: waiting for a core that others hold does not count.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from fedgloss.data import ArraySamples
from fedgloss.data.transforms import PictureTransform

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2434, 0.2616)
BATCH, BATCHES, REPETITIONS, FLOOR = 64, 40, 15, 60_000


def pillow_batch(pictures: Tensor, generator: np.random.Generator) -> Tensor:
    """Pad 4, crop, mirror and normalise with one Pillow image per picture, as a DataLoader's workers do."""
    mean, std = torch.tensor(MEAN)[:, None, None], torch.tensor(STD)[:, None, None]
    out = []
    for picture in pictures.numpy():
        padded = ImageOps.expand(Image.fromarray(picture), border=4, fill=0)
        top, left = (int(c) for c in generator.integers(9, size=2))
        image = padded.crop((left, top, left + 32, top + 32))
        if generator.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        out.append((values.float().div_(255) - mean).div_(std))
    return torch.stack(out)


def measure() -> dict[str, float]:
    """Median pictures a second of each way, on one thread."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    samples = ArraySamples(
        torch.from_numpy(rng.integers(0, 256, (50_000, 32, 32, 3), dtype=np.uint8)), torch.zeros(50_000)
    )
    indices = [rng.integers(50_000, size=BATCH) for _ in range(BATCHES)]
    batches = [samples.fetch(index)[0] for index in indices]
    per_image, per_batch = PictureTransform(MEAN, STD), PictureTransform(MEAN, STD, draw="batch")

    def timed(work: Callable[[], object]) -> float:
        start = time.process_time()
        work()
        return BATCH * BATCHES / (time.process_time() - start)

    ways: dict[str, Callable[[], object]] = {
        "per image": lambda: [per_image.train(b, rng) for b in batches],
        "per image, with the gather from 50,000": lambda: [
            per_image.train(samples.fetch(i)[0], rng) for i in indices
        ],
        "per batch": lambda: [per_batch.train(b, rng) for b in batches],
        "test (normalise only)": lambda: [per_image.test(b) for b in batches],
        "Pillow, picture by picture": lambda: [pillow_batch(b, rng) for b in batches],
    }
    for work in ways.values():
        work()
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPETITIONS):
        for name, work in ways.items():
            rates[name].append(timed(work))
    return {name: statistics.median(values) for name, values in rates.items()}


def main() -> None:
    medians = measure()
    slowest = medians["Pillow, picture by picture"]
    for name, rate in medians.items():
        print(f"{name:42} {rate:10,.0f} images/s   {rate / slowest:6.1f} x Pillow")
    verdict = "holds" if medians["per image"] >= FLOOR else "MISSED"
    print(f"floor of {FLOOR:,} images/s on one core: {verdict}")
    print(json.dumps({"transforms": {name: round(rate) for name, rate in medians.items()}}))


if __name__ == "__main__":
    main()
