"""Five methods on Fashion-MNIST with one-class clients: how accurate, and how flat they end.

    python examples/flatness_study.py [FOLDER] [ROUNDS]

trains the runs in FOLDER, measures them, and writes ``table.md`` and the pictures there. Stopped at any point, the
same command goes on. docs/flatness-study.md holds what came out.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedgloss.analysis import Eigenvalue, Eigenvalues, Surface
from fedgloss.analysis.figures import contours_figure, eigenvalues_figure, surfaces_figure, write_figure
from fedgloss.flatness import Flatness, MeasuredRun, Measures, Terms, measure_flatness, measure_landscape
from fedgloss.records import RunFolder, read_json
from fedgloss.vectors import norm

METHODS = {  # one rho for every ascent and one beta for every dual, not tuned
    "FedAvg": ("--methods", "fedavg"),
    "FedSAM": ("--methods", "fedsam", "--set", "algorithm.local_rho=0.05"),
    "FedDyn": ("--methods", "feddyn", "--clients", "sgd", "--set", "algorithm.beta=10"),
    "FedSMOO": ("--methods", "fedsmoo", "--set", "algorithm.local_rho=0.05", "--set", "algorithm.beta=10"),
    "FedGloSS": (
        *("--methods", "fedgloss", "--clients", "sam"),
        *("--set", "algorithm.rho=0.05", "--set", "algorithm.local_rho=0.05", "--set", "algorithm.beta=10"),
    ),
}
SETTING = (  # 100 clients of one class with 120 pictures each, ten of them a round, two steps each
    "data.validation=0.8",
    "training.cohort=10",
    "training.eval_every=50",
    "training.window=10",
    "local.batch_size=60",
    "local.lr=0.1",
    "local.weight_decay=4e-4",
)
SEEDS = (0, 1)
MEASURES = Measures(top=2, bottom=0)
LAST, MEAN = Terms(samples=1000), Terms(samples=1000, model="average100")
CEILING = 6.0


def train(folder: Path, rounds: int) -> dict[str, list[Path]]:
    """Each method's runs, a seed each."""
    common = ["--seeds", ",".join(map(str, SEEDS)), "--rounds", str(rounds), "--json"]
    common += [argument for setting in SETTING for argument in ("--set", setting)]
    found = {}
    for name, method in METHODS.items():
        print(f"training {name}", flush=True)
        command = ["compare", "fashion-mnist-cnn", *method, *common, "--out", str(folder / name.lower())]
        ended = subprocess.run([sys.executable, "-m", "fedgloss", *command], stdout=subprocess.DEVNULL, check=False)
        if ended.returncode:
            sys.exit(ended.returncode)
        found[name] = sorted((folder / name.lower()).glob("*-seed*"))
    return found


def accuracy(run: Path) -> float:
    """On the test set, the mean of the last rounds."""
    return float(read_json(RunFolder(run).summary)["reported"]["accuracy"])


def eigenvalues_of(one: Flatness) -> Eigenvalues:
    assert one.eigenvalues is not None
    return one.eigenvalues


def over_seeds(found: Sequence[Flatness]) -> Eigenvalues:
    """Mean and standard deviation over all subsets of all seeds."""
    first, *others = (eigenvalues_of(one) for one in found)

    def pooled(*ranks: Eigenvalue) -> Eigenvalue:
        values = tuple(value for rank in ranks for value in rank.by_subset)
        return replace(ranks[0], value=statistics.mean(values), spread=statistics.stdev(values), by_subset=values)

    return replace(first, top=tuple(map(pooled, first.top, *(other.top for other in others))))


def cell(one: Flatness, rank: int = 0) -> str:
    found = eigenvalues_of(one).top[rank]
    return f"{found.value:.3g} ± {found.spread or 0:.2g}"


def table(
    accuracies: Mapping[str, Sequence[float]],
    last: Mapping[str, Sequence[Flatness]],
    mean: Mapping[str, Sequence[Flatness]],
    norms: Mapping[str, Sequence[float]],
) -> str:
    """A column a seed, as it is; nothing is left out."""
    groups = (
        "test accuracy",
        "loss on train",
        "lambda_1, last model",
        "lambda_1, mean model",
        "lambda_2, last model",
        "norm of w",
    )
    header = " | ".join(f"{group}, seed {seed}" for group in groups for seed in SEEDS)
    lines = [f"| method | {header} |", "|---" * (1 + len(groups) * len(SEEDS)) + "|"]
    for name in METHODS:
        cells = [f"{value:.1%}" for value in accuracies[name]]
        cells += [f"{one.means['loss']:.3f}" for one in last[name]]
        cells += [cell(one) for one in (*last[name], *mean[name])]
        cells += [cell(one, 1) for one in last[name]]
        cells += [f"{value:.1f}" for value in norms[name]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [
        "",
        "| method | cosine of the last server step with the first eigenvector | of five repeated ascents |",
        "|---|---|---|",
    ]
    for name in METHODS:
        found = last[name][0].alignment
        assert found is not None
        lines.append(
            f"| {name} | {found.cosines[0]:.2f} | {' '.join(f'{cosine:.2f}' for cosine in found.ascents)} |"
        )
    return "\n".join(lines) + "\n"


def draw(folder: Path, last: Mapping[str, Sequence[Flatness]], surfaces: Mapping[str, Surface]) -> None:
    write_figure(eigenvalues_figure({n: over_seeds(found) for n, found in last.items()}), folder / "eigenvalues")
    write_figure(contours_figure(surfaces, ceiling=CEILING), folder / "contours")
    for other in ("FedAvg", "FedSAM", "FedSMOO"):
        pair = (other, surfaces[other]), ("FedGloSS", surfaces["FedGloSS"])
        write_figure(surfaces_figure(*pair, ceiling=CEILING), folder / f"surfaces-{other.lower()}")


def main(folder: Path = Path("runs/flatness-study"), rounds: int = 250) -> dict[str, Eigenvalues]:
    paths = train(folder, rounds)
    last, mean, norms, surfaces = {}, {}, {}, {}
    for name, runs in paths.items():
        print(f"measuring {name}", flush=True)
        opened = [MeasuredRun(run) for run in runs]
        last[name] = [measure_flatness(run, LAST, MEASURES) for run in opened]
        mean[name] = [measure_flatness(run, MEAN, MEASURES) for run in opened]
        norms[name] = [norm(run.weights()) for run in opened]
        surfaces[name] = measure_landscape(opened[0], LAST, grid=21)
    draw(folder, last, surfaces)
    text = table({name: [accuracy(run) for run in runs] for name, runs in paths.items()}, last, mean, norms)
    (folder / "table.md").write_text(text)
    print(text)
    return {name: over_seeds(found) for name, found in last.items()}


if __name__ == "__main__":
    main(*(kind(value) for kind, value in zip((Path, int), sys.argv[1:], strict=False)))
