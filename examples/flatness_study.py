"""Five methods on Fashion-MNIST with one-class clients: how accurate, and how flat they end.

    python examples/flatness_study.py [FOLDER] [ROUNDS]

trains (or goes on with) the runs in FOLDER, measures them, and writes ``table.md`` and the pictures there. Stopped
at any point, the same command goes on. docs/flatness-study.md holds what came out.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from fedgloss.analysis import Interpolation, Surface
from fedgloss.analysis.figures import (
    contours_figure,
    eigenvalues_figure,
    interpolation_figure,
    surfaces_figure,
    write_figure,
)
from fedgloss.config import resolve
from fedgloss.flatness import (
    Flatness,
    MeasuredRun,
    Measures,
    Terms,
    measure_flatness,
    measure_interpolation,
    measure_landscape,
)
from fedgloss.job import build_execution, build_job
from fedgloss.records import RunFolder, read_json
from fedgloss.run import execute

METHODS = {
    "FedAvg": {"algorithm.name": "fedavg"},
    "FedSAM": {"algorithm.name": "fedsam"},
    "FedDyn": {"algorithm.name": "feddyn", "algorithm.client": "sgd"},
    "FedSMOO": {"algorithm.name": "fedsmoo"},
    "FedGloSS": {"algorithm.name": "fedgloss", "algorithm.client": "sam", "algorithm.rho": 0.05},
}
SETTING = {  # 100 clients of one class with 120 pictures each, ten of them a round
    "data.validation": 0.8,
    "training.cohort": 10,
    "local.batch_size": 60,
    "local.lr": 0.1,
    "training.eval_every": 20,
    "training.window": 5,
    "run.workers": 1,
}
MEASURES = Measures(top=2, bottom=0, subsets=3)
EIGENVALUES = Terms(samples=300)
SURFACE = Terms(samples=200)


def train(folder: Path, rounds: int) -> dict[str, float]:
    """Each method's accuracy on the test set, the mean over the last rounds."""
    found = {}
    for name, options in METHODS.items():
        run = RunFolder(folder / name.lower())
        summary = read_json(run.summary) if run.summary.exists() else {}
        if summary.get("status") != "finished" or summary["rounds"] < rounds:
            config = resolve("fashion-mnist-cnn", {**options, **SETTING, "training.rounds": rounds}).config
            print(f"training {name}", flush=True)
            summary = execute(build_job(config), run, build_execution(config))
        if summary["status"] == "finished":
            found[name] = summary["reported"]["accuracy"]
    return found


def measure(folder: Path, names: list[str]) -> tuple[dict[str, Flatness], dict[str, Surface], Interpolation]:
    runs = {name: MeasuredRun(folder / name.lower()) for name in names}
    flat, surfaces = {}, {}
    for name, run in runs.items():
        print(f"measuring {name}", flush=True)
        flat[name] = measure_flatness(run, EIGENVALUES, MEASURES)
        surfaces[name] = measure_landscape(run, SURFACE, grid=9)
    line = measure_interpolation(runs["FedSAM"], runs["FedGloSS"], [Terms(on="test", samples=300)], points=13)
    return flat, surfaces, line["test"]


def draw(folder: Path, flat: Mapping[str, Flatness], surfaces: Mapping[str, Surface], line: Interpolation) -> None:
    values = {name: one.eigenvalues for name, one in flat.items() if one.eigenvalues is not None}
    write_figure(eigenvalues_figure(values), folder / "eigenvalues")
    write_figure(contours_figure(surfaces, ceiling=6), folder / "contours")
    for other in ("FedAvg", "FedSAM", "FedSMOO"):
        if other in surfaces:
            pair = (other, surfaces[other]), ("FedGloSS", surfaces["FedGloSS"])
            write_figure(surfaces_figure(*pair, ceiling=6), folder / f"surfaces-{other.lower()}")
    write_figure(interpolation_figure({"test": line}, first="FedSAM", second="FedGloSS"), folder / "line")


def table(accuracy: Mapping[str, float], flat: Mapping[str, Flatness]) -> str:
    lines = [
        "| method | test accuracy | loss on train | lambda_1 | lambda_2 "
        "| cosine of the last server step with the first eigenvector | of five repeated ascents |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, one in flat.items():
        assert one.eigenvalues is not None
        assert one.alignment is not None
        first, second = one.eigenvalues.top
        lines.append(
            f"| {name} | {accuracy[name]:.1%} | {one.means['loss']:.3f} "
            f"| {first.value:.3g} ± {first.spread or 0:.2g} | {second.value:.3g} ± {second.spread or 0:.2g} "
            f"| {one.alignment.cosines[0]:.2f} | {' '.join(f'{cosine:.2f}' for cosine in one.alignment.ascents)} |"
        )
    return "\n".join(lines) + "\n"


def main(folder: Path = Path("runs/flatness-study"), rounds: int = 100) -> dict[str, float]:
    accuracy = train(folder, rounds)
    flat, surfaces, line = measure(folder, list(accuracy))
    draw(folder, flat, surfaces, line)
    text = table(accuracy, flat)
    (folder / "table.md").write_text(text)
    print(text)
    return {name: one.eigenvalues.largest.value for name, one in flat.items() if one.eigenvalues is not None}


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((Path, int), sys.argv[1:], strict=False)))
