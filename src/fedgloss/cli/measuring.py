"""`flatness`, `landscape` and `interpolate`: the geometry of finished runs."""

from __future__ import annotations

import json as json_module
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from ..errors import InvalidInput, require
from .options import Json, Quiet
from .progress import bar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ..flatness import Flatness, MeasuredRun, Terms

Runs = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")]
ModelOption = Annotated[
    str | None,
    typer.Option("--model", help="last (default): the final model; average100: the mean of the last models."),
]
On = Annotated[
    str | None, typer.Option("--on", help="train (default): all clients' training data; or the test set.")
]
Samples = Annotated[int | None, typer.Option("--samples", min=1, help="Measure on random subsets of this size.")]
Fidelity = Annotated[
    str,
    typer.Option(
        "--fidelity",
        help="released: as the paper's released code measures (average100, test set, power iteration, swapped "
        "CIFAR constants, a short last batch weighed like the others), unless said otherwise.",
    ),
]
ConstantsOption = Annotated[
    str | None, typer.Option("--constants", help="own (default), or swapped between CIFAR-10 and CIFAR-100.")
]
WeightingOption = Annotated[
    str | None, typer.Option("--weighting", help="samples (default), or batches: each batch of 64 counts alike.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of random starts, subsets and directions.")]
Threads = Annotated[int | None, typer.Option("--workers", "-w", min=1, help="Threads; one per core by default.")]
Local = Annotated[
    bool, typer.Option("--local", help="Also the local models of the last round's clients, before aggregation.")
]
Clients = Annotated[
    int | None, typer.Option("--clients", help="With --local: so many of the last round's clients; default all.")
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Where pictures that compare runs go; default the first run.")
]

NOT_TO_THE_BIT = "the last round, run again here, ends near the run's model but not at its very bits"


def flatness(
    paths: Runs,
    top: Annotated[int, typer.Option("--top", min=1, help="How many of the largest eigenvalues.")] = 5,
    bottom: Annotated[int, typer.Option("--bottom", min=0, help="How many of the smallest (lanczos).")] = 1,
    on: On = None,
    samples: Samples = None,
    model: ModelOption = None,
    method: Annotated[
        str | None,
        typer.Option("--method", help="lanczos (default), or power: the paper's, 20 iterations at most."),
    ] = None,
    local: Local = False,
    clients: Clients = None,
    density: Annotated[bool, typer.Option("--density", help="Also the density of the whole spectrum.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Also the Hessian's trace.")] = False,
    sharpness: Annotated[
        bool, typer.Option("--sharpness", help="Also the rise of the loss: SAM's worst case, and under noise.")
    ] = False,
    rho: Annotated[float, typer.Option("--rho", help="The radius of ascents.")] = 0.05,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Ascent steps.")] = 5,
    sigma: Annotated[float, typer.Option("--sigma", help="The noise's standard deviation.")] = 0.01,
    fidelity: Fidelity = "paper",
    constants: ConstantsOption = None,
    weighting: WeightingOption = None,
    seed: Seed = 0,
    workers: Threads = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Hessian eigenvalues of runs with error bars, and on request more. A stopped measurement goes on."""
    from ..analysis import to_json
    from ..analysis.figures import (
        delta_eps_figure,
        density_figure,
        eigenvalues_figure,
        local_global_figure,
    )
    from ..analysis.hessian import Method
    from ..flatness import Measures, measure_flatness
    from ..records import read_lines

    chosen = method or ("power" if fidelity == "released" else "lanczos")
    measures = Measures(
        top=top,
        bottom=bottom,
        method=_one_of(chosen, Method, "--method"),
        density=density,
        trace=trace,
        sharpness=sharpness,
        rho=rho,
        steps=steps,
        sigma=sigma,
        local=local,
        clients=clients,
    )
    require(clients is None or local, "--clients", "goes with --local")
    console = Console(stderr=json, quiet=quiet)
    found: dict[str, Flatness] = {}
    with _opened(paths, workers) as runs, Showing(console) as showing:
        all_terms = {
            label: _terms(run, fidelity, model, on, samples, constants, weighting, seed)
            for label, run in runs.items()
        }
        for label, run in runs.items():
            _check(run, all_terms[label], local, clients)
        for label, run in runs.items():
            found[label] = measure_flatness(run, all_terms[label], measures, showing.of(label))
            stem = f"flatness-{all_terms[label].stem}-{measures.method}"
            pictures: dict[str, Figure] = {}
            if (one := found[label]).eigenvalues is not None:
                pictures["eigenvalues"] = eigenvalues_figure({label: one.eigenvalues})
            if one.density is not None:
                pictures["density"] = density_figure({label: one.density})
            if one.local:
                pictures["local"] = local_global_figure(one.local)
            if one.delta_eps:
                lines = read_lines(run.folder.rounds, "round")
                pictures["delta-eps"] = delta_eps_figure({label: [line["delta_eps"] for line in lines]})
            _draw(run.folder.analysis, stem, pictures)
    if len(found) > 1:
        compared: dict[str, Figure] = {
            "eigenvalues": eigenvalues_figure({n: one.eigenvalues for n, one in found.items() if one.eigenvalues})
        }
        if density:
            compared["density"] = density_figure({n: one.density for n, one in found.items() if one.density})
        _draw(out or next(iter(runs.values())).folder.analysis, "flatness-compared", compared)
    if json:
        print(json_module.dumps({str(p): to_json(one) for p, one in zip(paths, found.values(), strict=True)}))
        return
    _print_flatness(console, found)
    for run in runs.values():
        console.print(f"results and pictures: {run.folder.analysis}", highlight=False, soft_wrap=True)


def landscape(
    paths: Runs,
    grid: Annotated[int, typer.Option("--grid", min=2, help="Points a side.")] = 25,
    span: Annotated[tuple[float, float], typer.Option("--range", help="From where to where.")] = (-1.0, 1.0),
    on: On = None,
    samples: Annotated[
        int | None, typer.Option("--samples", min=1, help="On a random subset of this size; default 2000.")
    ] = None,
    model: ModelOption = None,
    local: Local = False,
    clients: Clients = None,
    directions: Annotated[
        str, typer.Option("--directions", help="random (filter-normalised), or eigenvectors: the top two.")
    ] = "random",
    ceiling: Annotated[float | None, typer.Option("--ceiling", help="Pictures cut higher losses off.")] = None,
    fidelity: Fidelity = "paper",
    constants: ConstantsOption = None,
    weighting: WeightingOption = None,
    seed: Seed = 0,
    workers: Threads = None,
    out: Out = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The loss around the models of runs, on one and the same random plane. A stopped measurement goes on."""
    from ..analysis import Surface
    from ..analysis.figures import contours_figure, surfaces_figure
    from ..flatness import Directions, measure_landscape, measure_local_landscapes

    along = _one_of(directions, Directions, "--directions")
    require(clients is None or local, "--clients", "goes with --local")
    require(along == "random" or not local, "--directions", "local models have random planes; leave --local out")
    require(
        -math.inf < span[0] < span[1] < math.inf,
        "--range",
        f"must rise and be finite, got {span[0]:g} to {span[1]:g}",
    )
    require(ceiling is None or ceiling > 0, "--ceiling", f"must be positive, got {ceiling}")
    console = Console(stderr=json, quiet=quiet)
    found: dict[str, Surface] = {}
    with _opened(paths, workers) as runs, Showing(console) as showing:
        all_terms: dict[str, Terms] = {}
        for label, run in runs.items():
            terms = _terms(run, fidelity, model, on, samples, constants, weighting, seed)
            all_terms[label] = replace(terms, samples=samples or run.most_samples(terms.on))
            _check(run, all_terms[label], local, clients)
        for label, run in runs.items():
            terms = all_terms[label]
            name = "landscape" if along == "random" else f"landscape-{along}"
            one = measure_landscape(run, terms, grid=grid, span=span, directions=along, report=showing.of(label))
            found[label] = one
            _draw(
                run.folder.analysis,
                f"{name}-{terms.stem}",
                {
                    "surface": surfaces_figure((label, one), ceiling=ceiling),
                    "contours": contours_figure({label: one}, ceiling=ceiling),
                },
            )
            if local:
                union = replace(terms, on="train", model="last", samples=samples or run.most_samples("train"))
                pairs = measure_local_landscapes(
                    run, union, clients=clients, grid=grid, span=span, report=showing.of(label)
                )
                for client, (own, everybody) in pairs.items():
                    solid, net = ("own data", own), ("all clients' data", everybody)
                    picture = surfaces_figure(solid, net, ceiling=ceiling, title=f"{label}, client {client}")
                    _draw(run.folder.analysis, f"landscape-client{client}-{union.stem}", {"surface": picture})
    if len(found) > 1:
        place = out or next(iter(runs.values())).folder.analysis
        (first, base), *others = found.items()
        pairs_of_runs = {
            f"{first}-and-{name}": surfaces_figure((first, base), (name, net), ceiling=ceiling)
            for name, net in others
        }
        _draw(place, "landscapes-compared", {**pairs_of_runs, "contours": contours_figure(found, ceiling=ceiling)})
    if json:
        from ..analysis import to_json

        print(json_module.dumps({str(p): to_json(one) for p, one in zip(paths, found.values(), strict=True)}))
        return
    table = Table("run", "loss at the model", "highest on the plane", "accuracy", box=None, pad_edge=False)
    for label, one in found.items():
        highest = max((v for row in one.loss for v in row if v == v), default=float("nan"))
        table.add_row(label, f"{one.centre['loss']:.4f}", f"{highest:.4g}", _percent(one.centre.get("accuracy")))
    console.print(table)
    for label, run in runs.items():
        if local and not run.last_round.exact:
            console.print(f"{label}: {NOT_TO_THE_BIT}", highlight=False, soft_wrap=True)
        console.print(f"results and pictures: {run.folder.analysis}", highlight=False, soft_wrap=True)


def interpolate(
    first: Annotated[Path, typer.Argument(metavar="RUN_A", help="The run at 0.")],
    second: Annotated[Path, typer.Argument(metavar="RUN_B", help="The run at 1.")],
    points: Annotated[int, typer.Option("--points", min=2, help="How many points.")] = 31,
    start: Annotated[float, typer.Option("--from", help="Where the line begins.")] = -1.0,
    stop: Annotated[float, typer.Option("--to", help="Where it ends.")] = 2.0,
    on: Annotated[str | None, typer.Option("--on", help="train or test; default both.")] = None,
    samples: Samples = None,
    model: ModelOption = None,
    seed: Seed = 0,
    workers: Threads = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """The loss on the line through two runs' models, and the barrier between them, on train and on test."""
    from ..analysis import to_json
    from ..analysis.figures import interpolation_figure
    from ..flatness import Model, Split, Terms, described_lines, line_stem, measure_interpolation

    require(
        -math.inf < start < stop < math.inf,
        "--from",
        f"must be below --to, both finite, got {start:g} and {stop:g}",
    )
    console = Console(stderr=json, quiet=quiet)
    splits = [_one_of(on, Split, "--on")] if on else list(get_args(Split))
    which = _one_of(model or "last", Model, "--model")
    if first.resolve() == second.resolve():
        raise InvalidInput(f"{second}: is the same run twice; name two")
    with _opened([first, second], workers) as runs, Showing(console) as showing:
        one, other = runs.values()
        names = list(runs)
        terms = [Terms(model=which, on=split, samples=samples, seed=seed) for split in splits]
        found = measure_interpolation(
            one,
            other,
            terms,
            points=points,
            start=start,
            stop=stop,
            report=showing.of(names[0]),
        )
        pictures = {
            quantity: interpolation_figure(
                {str(split): curve for split, curve in found.items()},
                first=names[0],
                second=names[1],
                quantity=quantity,
            )
            for quantity in ("loss", "accuracy")
            if all(quantity in curve.curves for curve in found.values())
        }
        _draw(one.folder.analysis, line_stem(other, terms), pictures)
    if json:
        print(json_module.dumps(to_json(described_lines(other, found))))
        return
    table = Table("data", f"loss of {names[0]}", f"loss of {names[1]}", "barrier", box=None, pad_edge=False)
    for split, curve in found.items():
        ends = dict(zip(curve.coefficients, curve.loss, strict=True))
        table.add_row(split, *(_number(ends.get(end)) for end in (0.0, 1.0)), _number(curve.barrier))
    console.print(table)
    if one.config.data.name != other.config.data.name:
        note = f"{names[1]} was trained on {other.config.data.name}; the line is measured on {one.config.data.name}"
        console.print(note, highlight=False, soft_wrap=True)
    console.print(f"results and pictures: {one.folder.analysis}", highlight=False, soft_wrap=True)


class Showing:
    """What is being measured: a bar on a terminal, a few plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = bar(console) if console.is_terminal else None
        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._shares: dict[tuple[str, str], int] = {}

    def __enter__(self) -> Showing:
        if self._progress is not None:
            self._progress.start()
        return self

    def _finish(self) -> None:
        """An iteration may end before its limit: its bar is then full, and its clock stands."""
        if self._progress is not None and self._progress.tasks:
            last = self._progress.tasks[-1]
            self._progress.update(last.id, total=last.completed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            if error is None:
                self._finish()
            self._progress.stop()
        if isinstance(error, KeyboardInterrupt):
            self._console.print("stopped; what was computed is kept, and the same command goes on", highlight=False)
            raise SystemExit(130) from None

    def of(self, label: str) -> Any:
        def report(what: str, done: int, total: int) -> None:
            key = label, what
            if self._progress is not None:
                if key not in self._tasks:
                    self._finish()
                    self._tasks[key] = self._progress.add_task(f"{label}: {what}", total=total, figures="")
                self._progress.update(self._tasks[key], completed=done, total=total)
            elif (share := (4 if total >= 20 else 1) * done // total) > self._shares.get(key, -1):
                self._shares[key] = share
                self._console.print(f"{label}: {what} {done}/{total}", highlight=False, soft_wrap=True)

        return report


@contextmanager
def _opened(paths: Sequence[Path], workers: int | None) -> Iterator[dict[str, MeasuredRun]]:
    """The runs by short names that differ."""
    from ..flatness import MeasuredRun

    if len({path.resolve() for path in paths}) < len(paths):
        raise InvalidInput("RUN: the same run is named twice")
    runs = [MeasuredRun(path, workers=workers) for path in paths]
    methods = [run.algorithm for run in runs]
    short = methods if len(set(methods)) == len(runs) else [run.name for run in runs]
    labels = short if len(set(short)) == len(runs) else [str(run.path) for run in runs]
    yield dict(zip(labels, runs, strict=True))


def _check(run: MeasuredRun, terms: Terms, local: bool, clients: int | None) -> None:
    """What cannot be had is said before hours of work on other runs."""
    run.weights(terms.model)
    loss = run.loss(terms)
    if terms.samples is not None:
        loss.disjoint(terms.samples, 1, terms.seed)
    if local:
        run.last_round.first(clients)


def _terms(
    run: MeasuredRun,
    fidelity: str,
    model: str | None,
    on: str | None,
    samples: int | None,
    constants: str | None,
    weighting: str | None,
    seed: int,
) -> Terms:
    """The terms asked for; what is not said follows the fidelity."""
    from ..analysis.mean_loss import Weighting
    from ..flatness import Constants, Fidelity, Model, Split, Terms

    base = run.usual_terms(_one_of(fidelity, Fidelity, "--fidelity"))
    return Terms(
        model=_one_of(model or base.model, Model, "--model"),
        on=_one_of(on or base.on, Split, "--on"),
        samples=samples,
        constants=_one_of(constants or base.constants, Constants, "--constants"),
        weighting=_one_of(weighting or base.weighting, Weighting, "--weighting"),
        seed=seed,
    )


def _one_of(value: str, choices: Any, option: str) -> Any:
    known = get_args(choices)
    require(value in known, option, f"is {' or '.join(map(repr, known))}, got {value!r}")
    return value


def _draw(folder: Path, stem: str, pictures: Mapping[str, Figure]) -> None:
    from ..analysis.figures import write_figure

    for name, figure in pictures.items():
        write_figure(figure, folder / f"{stem}-{name}")


def _print_flatness(console: Console, found: Mapping[str, Flatness]) -> None:
    extra: dict[str, list[str]] = {}
    table = Table("run", "accuracy", "loss", "lambda_1", "residual", "smallest", "trace", box=None, pad_edge=False)
    for label, one in found.items():
        values = one.eigenvalues
        largest = values.largest if values is not None else None
        bars = "" if largest is None or largest.spread is None else f" ± {largest.spread:.3g}"
        table.add_row(
            label,
            _percent(one.means.get("accuracy")),
            _number(one.means["loss"]),
            "-" if largest is None else f"{largest.value:.4g}{bars}",
            "-" if largest is None else f"{largest.residual:.1g}",
            _number(values.bottom[0].value) if values is not None and values.bottom else "-",
            "-" if one.trace is None else f"{one.trace.value:.4g} ± {one.trace.error:.2g}",
        )
        lines = extra.setdefault(label, [])
        if values is not None and values.subject.weights == "average100":
            lines.append(f"weights: the mean of the last {one.models} models")
        if values is not None and not values.converged:
            lines.append("eigenvalues: not converged; look at the residual")
        for worst in one.worst_case:
            lines.append(f"SAM sharpness, rho {worst.rho:g}, {worst.steps} step(s): {worst.value:.4g}")
        if one.average_case is not None:
            mean = one.average_case
            lines.append(f"mean rise under noise of {mean.sigma:g}: {mean.value:.4g} ± {mean.error:.2g}")
        if one.alignment is not None:
            cosines = " ".join(f"{c:.2f}" for c in one.alignment.cosines)
            ascents = " ".join(f"{c:.2f}" for c in one.alignment.ascents)
            lines.append(f"|cos| of the {one.alignment.of} with the top eigenvectors: {cosines}")
            lines.append(f"|cos| of repeated ascents with the first: {ascents}")
        lines += [f"delta_eps, {name}, last rounds: {value:.3g}" for name, value in one.delta_eps.items()]
        if one.drift is not None:
            lines.append(f"drift {one.drift.drift:.3g}, agreement {one.drift.agreement:.3g} of the last updates")
        if one.exact is False:
            lines.append(NOT_TO_THE_BIT)
        for client in one.local:
            here, union = client.local.largest.value, client.union.largest.value
            lines.append(f"client {client.client}: lambda_1 {here:.4g} on its own data, {union:.4g} on all")
    console.print(table)
    for label, lines in extra.items():
        for line in lines:
            console.print(f"{label}: {line}", highlight=False, soft_wrap=True)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
