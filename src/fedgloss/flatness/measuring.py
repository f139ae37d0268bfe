"""Measurements of runs.

Results are JSON files in the run's ``analysis`` folder. Each piece of a measurement is kept in ``analysis/pieces``
as soon as it is done, so that a measurement that was stopped, or is asked for more, goes on from there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import torch

from ..analysis import (
    AverageCase,
    Drift,
    Eigenvalues,
    Hessian,
    Interpolation,
    Interrupted,
    LocalAgainstGlobal,
    MeanLoss,
    SpectralDensity,
    Surface,
    Trace,
    WorstCase,
    alignment,
    average_sharpness,
    drift,
    eigenvalues,
    interpolation,
    load,
    local_against_global,
    over_subsets,
    repeated_ascent,
    save,
    spectral_density,
    surface,
    to_json,
    trace,
    worst_case_sharpness,
)
from ..analysis.hessian import Method
from ..errors import InvalidInput, require
from ..files import disk_errors
from ..vectors import Vector, norm
from .measured_run import SURFACE_SAMPLES, MeasuredRun, Split, Terms

Directions: TypeAlias = Literal["random", "eigenvectors"]
Report: TypeAlias = Callable[[str, int, int], None]
"""(what is being measured, done, at most to do)."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Measures:
    """What to measure of a model. On a subset of the data, eigenvalues are measured on several disjoint ones.

    ``tolerance`` is Lanczos's: a relative residual of 1e-2 gives the largest eigenvalue to about four digits. Power
    iteration stops as the paper's does.
    """

    top: int = 5
    bottom: int = 1
    method: Method = "lanczos"
    subsets: int = 5
    tolerance: float = 1e-2
    density: bool = False
    trace: bool = False
    sharpness: bool = False
    rho: float = 0.05
    steps: int = 5
    sigma: float = 0.01
    draws: int = 20
    local: bool = False
    clients: int | None = None

    def __post_init__(self) -> None:
        for name in ("rho", "sigma", "tolerance"):
            value = getattr(self, name)
            require(0 < value < math.inf, name, f"must be positive, got {value:g}")


@dataclass(frozen=True)
class Alignment:
    """|cos| with the top eigenvectors, a value for each: of the last pseudo-gradient, in ``cosines``.

    ``of`` says what stood for it: the method's own pseudo-gradient, or the server's last step where it keeps none.
    ``ascents`` are the |cos| with the first eigenvector of ascents repeated at the perturbed model, as server-side
    SAM does: a power iteration, where ``gradient_norm`` is small beside ``rho`` times the eigenvalue.
    """

    of: str
    cosines: tuple[float, ...]
    rho: float
    ascents: tuple[float, ...]
    gradient_norm: float


@dataclass(frozen=True)
class Flatness:
    """All that was measured of one run on one set of terms. Means are those of loss and metrics on the whole split.

    ``models``: of how many models the weights are the mean. ``exact``: whether the last round, run again for
    ``drift`` and ``local``, led to the very bits of the run.
    """

    run: str
    algorithm: str
    rounds: int
    means: Mapping[str, float]
    eigenvalues: Eigenvalues | None = None
    alignment: Alignment | None = None
    density: SpectralDensity | None = None
    trace: Trace | None = None
    worst_case: tuple[WorstCase, ...] = ()
    average_case: AverageCase | None = None
    delta_eps: Mapping[str, float] = field(default_factory=dict)
    drift: Drift | None = None
    local: tuple[LocalAgainstGlobal, ...] = ()
    exact: bool | None = None
    models: int = 1


class Pieces:
    """Finished pieces of a run's measurements, a file each, found again by all that decides their numbers."""

    def __init__(self, run: MeasuredRun) -> None:
        self.folder = run.folder.analysis / "pieces"
        self._data = run.config.data.model_dump(mode="json")
        with disk_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)

    def path(self, what: str, params: Vector, terms: Terms, *settings: str | float | None) -> Path:
        described = [what, self._data, asdict(terms), *settings]
        digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
        digest.update(params.cpu().numpy().tobytes())
        return self.folder / f"{what.replace(' ', '-')}-{digest.hexdigest()[:16]}.json"

    def get(self, path: Path, kind: type[Result], compute: Callable[[], Result]) -> Result:
        """What the piece's file holds, or else what is computed, and then kept there."""
        if path.exists():
            return load(path, kind)
        found = compute()
        with disk_errors(path):
            save(path, found)
        return found


@dataclass(frozen=True)
class _Curvature:
    """Eigenvalues on one subset, and what needs their vectors."""

    eigenvalues: Eigenvalues
    alignment: Alignment | None


def measure_flatness(
    run: MeasuredRun,
    terms: Terms = Terms(),
    measures: Measures = Measures(),
    report: Report | None = None,
) -> Flatness:
    """Measure a run and write the result to its ``analysis`` folder, as ``flatness-<terms>-<method>.json``.

    What the file already tells of the same model, and is not measured anew, stays in it, also what another process
    wrote meanwhile. At Ctrl-C it gets what is finished, eigenvalues that have not converged included where it has
    no better, and ``Interrupted`` is raised with the same.
    """
    params, whole = run.weights(terms.model), run.loss(terms)
    with disk_errors(run.folder.analysis):
        run.folder.analysis.mkdir(exist_ok=True)
    parts = [whole] if terms.samples is None else whole.disjoint(terms.samples, measures.subsets, terms.seed)
    pieces, first = Pieces(run), parts[0]
    file = run.folder.analysis / f"flatness-{terms.stem}-{measures.method}.json"
    means, models = whole.evaluate(params), run.models(terms.model)
    found = Flatness(run.name, run.algorithm, run.rounds, means, delta_eps=run.delta_eps(), models=models)
    _beside(found, file)  # a file that cannot be added to is refused before hours of work
    last = run.last_round if measures.local else None
    chosen = last.first(measures.clients) if last is not None else {}
    curvatures: list[_Curvature] = []
    hessian = Hessian(first, params, weights=terms.model)
    try:
        for index, part in enumerate(parts):
            name = "eigenvalues" if len(parts) == 1 else f"eigenvalues, subset {index + 1} of {len(parts)}"
            curvatures.append(_curvature(run, pieces, part, params, terms, measures, index, _says(report, name)))
            together = over_subsets([one.eigenvalues for one in curvatures])
            found = replace(found, eigenvalues=together, alignment=curvatures[0].alignment)
        if measures.trace:
            compute = partial(trace, hessian, seed=terms.seed, progress=_says(report, "trace"))
            found = replace(found, trace=pieces.get(pieces.path("trace", params, terms), Trace, compute))
        if measures.density:
            seen = _says(report, "spectral density")
            draw = partial(spectral_density, hessian, seed=terms.seed, progress=seen)
            path = pieces.path("density", params, terms)
            found = replace(found, density=pieces.get(path, SpectralDensity, draw))
        if measures.sharpness:
            rises = [
                _worst_case(pieces, first, params, terms, measures.rho, steps, report)
                for steps in sorted({1, measures.steps})
            ]
            mean = _average_case(pieces, first, params, terms, measures, report)
            found = replace(found, worst_case=tuple(rises), average_case=mean)
        if last is not None:
            pulls = drift(list(last.deltas.values()), list(last.sizes.values()))
            found = replace(found, drift=pulls, exact=last.exact)
            for one in _locals(run, pieces, chosen, terms, measures, report):
                found = replace(found, local=(*found.local, one))
    except KeyboardInterrupt as stopped:
        partial_result = stopped.partial if isinstance(stopped, Interrupted) else None
        if isinstance(partial_result, Eigenvalues) and not curvatures:
            found = replace(found, eigenvalues=partial_result)
        raise Interrupted(_add(found, file, stopped=True)) from None
    return _add(found, file)


def _add(found: Flatness, path: Path, *, stopped: bool = False) -> Flatness:
    """Write what was found beside what the file holds, one process at a time; returns all of it."""
    with disk_errors(path), (path.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = _beside(found, path, stopped=stopped)
        save(path, found)
    return found


def _beside(found: Flatness, path: Path, *, stopped: bool = False) -> Flatness:
    """What was found, with what an earlier measurement of the same model has beside it, and with that instead of
    what was stopped before it got as far."""
    earlier = load(path, Flatness) if path.exists() else found
    if (earlier.run, earlier.rounds, earlier.means) != (found.run, found.rounds, found.means):
        return found
    kept = {one.name for one in fields(found) if getattr(found, one.name) in (None, ())} - {"alignment"}
    if stopped and _reach(earlier.eigenvalues) > _reach(found.eigenvalues):
        kept |= {"eigenvalues"}
    if stopped and len(earlier.local) > len(found.local):
        kept |= {"local"}
    if "eigenvalues" in kept:
        kept |= {"alignment"}  # with these vectors
    return replace(found, **{name: getattr(earlier, name) for name in kept})


def _reach(found: Eigenvalues | None) -> tuple[bool, int]:
    """How far a measurement got."""
    return (False, 0) if found is None else (found.converged, found.products)


def measure_landscape(
    run: MeasuredRun,
    terms: Terms = Terms(samples=SURFACE_SAMPLES),
    *,
    grid: int = 25,
    span: tuple[float, float] = (-1.0, 1.0),
    directions: Directions = "random",
    report: Report | None = None,
) -> Surface:
    """The loss on a plane around a run's model, written as ``landscape-<terms>.json``.

    Random directions are filter-normalised, from one raw draw for all runs of a seed.
    """
    params, loss = run.weights(terms.model), _subset(run.loss(terms), terms)
    name = "landscape" if directions == "random" else "landscape-eigenvectors"
    plane = None
    if directions == "eigenvectors":
        found = eigenvalues(loss, params, top=2, seed=terms.seed, progress=_says(report, "top two eigenvectors"))
        plane = found.vectors[0], found.vectors[1]
    made = _surface(run, loss, params, terms, grid, span, name, report, plane=plane, weights=terms.model)
    _write(run, f"{name}-{terms.stem}", made)
    return made


def measure_local_landscapes(
    run: MeasuredRun,
    terms: Terms = Terms(samples=SURFACE_SAMPLES),
    *,
    clients: int | None = None,
    grid: int = 25,
    span: tuple[float, float] = (-1.0, 1.0),
    report: Report | None = None,
) -> dict[int, tuple[Surface, Surface]]:
    """For clients of the last round, their models after local training: on their own data, and on the union."""
    terms = replace(terms, on="train", model="last")
    whole = run.loss(terms)
    union = _subset(whole, terms)
    found: dict[int, tuple[Surface, Surface]] = {}
    for client, params in run.last_round.first(clients).items():
        own = whole.on(run.own_samples(client), split=f"client {client}")
        weights = f"client {client} after local training"
        pair = []
        for loss, data in ((own, "own data"), (union, "all clients' data")):
            what = f"landscape of client {client} on {data}"
            one = _surface(run, loss, params, terms, grid, span, what, report, weights=weights)
            _write(run, f"landscape-client{client}-{'own' if loss is own else 'union'}-{terms.stem}", one)
            pair.append(one)
        found[client] = pair[0], pair[1]
    return found


def measure_interpolation(
    first: MeasuredRun,
    second: MeasuredRun,
    terms: Sequence[Terms] = (Terms(on="train"), Terms(on="test")),
    *,
    points: int = 31,
    start: float = -1.0,
    stop: float = 2.0,
    report: Report | None = None,
) -> dict[Split, Interpolation]:
    """The line through two runs' models on the first run's data.

    Written as ``interpolation-to-<second>-<terms>.json``; the split is part of the name where there is but one.
    """
    if first.layout.fingerprint != second.layout.fingerprint:
        raise InvalidInput(
            f"{second.path}: its network differs from that of {first.path}: there is no line between"
        )
    pieces = Pieces(first)
    found: dict[Split, Interpolation] = {}
    for one in terms:
        ends = first.weights(one.model), second.weights(one.model)
        loss = _subset(first.loss(one), one)
        path = pieces.path("line", torch.cat(ends), one)
        known = load(path, Interpolation) if path.exists() else None
        try:
            found[one.on] = interpolation(
                loss,
                *ends,
                points=points,
                start=start,
                stop=stop,
                weights=one.model,
                known=known,
                progress=_says(report, f"line to {second.name} on {one.on}"),
            )
        except Interrupted as stopped:
            if isinstance(stopped.partial, Interpolation):
                _keep(path, stopped.partial)
            raise Interrupted(found) from None
        _keep(path, found[one.on])
    _write(first, line_stem(second, terms), described_lines(second, found))
    return found


def described_lines(second: MeasuredRun, found: Mapping[Split, Interpolation]) -> dict[str, object]:
    """Lines by their split, with where they lead and what stands in the way."""
    return {split: {"to": second.name, "barrier": line.barrier, **to_json(line)} for split, line in found.items()}


def line_stem(second: MeasuredRun, terms: Sequence[Terms]) -> str:
    """The name, without suffix, of the file of a line to this run."""
    return f"interpolation-to-{second.name}-{terms[0].stem if len(terms) == 1 else terms[0].stem_of_splits}"


def _curvature(
    run: MeasuredRun,
    pieces: Pieces,
    loss: MeanLoss,
    params: Vector,
    terms: Terms,
    measures: Measures,
    index: int,
    progress: Callable[[int, int], None],
) -> _Curvature:
    bottom = measures.bottom if measures.method == "lanczos" else 0
    asked = (measures.top, bottom, measures.method, measures.tolerance, measures.rho, measures.steps, index)

    def compute() -> _Curvature:
        found = eigenvalues(
            loss,
            params,
            top=measures.top,
            bottom=bottom,
            method=measures.method,
            tolerance=measures.tolerance if measures.method == "lanczos" else None,
            seed=terms.seed,
            weights=terms.model,
            progress=progress,
        )
        return _Curvature(found, _alignment(run, loss, params, found, measures) if index == 0 else None)

    return pieces.get(pieces.path("eigenvalues", params, terms, *asked), _Curvature, compute)


def _alignment(
    run: MeasuredRun, loss: MeanLoss, params: Vector, found: Eigenvalues, measures: Measures
) -> Alignment | None:
    if not found.top or (last := run.pseudo_gradient()) is None:
        return None
    vectors = found.vectors[: len(found.top)]
    ascents = repeated_ascent(loss, params, rho=measures.rho, steps=measures.steps)
    return Alignment(
        of=last[0],
        cosines=alignment(last[1], vectors),
        rho=measures.rho,
        ascents=tuple(alignment(ascent, vectors[:1])[0] for ascent in ascents),
        gradient_norm=norm(loss.gradient(params)[1]),
    )


def _worst_case(
    pieces: Pieces, loss: MeanLoss, params: Vector, terms: Terms, rho: float, steps: int, report: Report | None
) -> WorstCase:
    progress = _says(report, f"worst-case sharpness, {steps} step{'s' if steps > 1 else ''}")
    compute = partial(
        worst_case_sharpness, loss, params, rho=rho, steps=steps, weights=terms.model, progress=progress
    )
    return pieces.get(pieces.path("worst case", params, terms, rho, steps), WorstCase, compute)


def _average_case(
    pieces: Pieces, loss: MeanLoss, params: Vector, terms: Terms, measures: Measures, report: Report | None
) -> AverageCase:
    compute = partial(
        average_sharpness,
        loss,
        params,
        sigma=measures.sigma,
        draws=measures.draws,
        seed=terms.seed,
        weights=terms.model,
        progress=_says(report, "average-case sharpness"),
    )
    path = pieces.path("average case", params, terms, measures.sigma, measures.draws)
    return pieces.get(path, AverageCase, compute)


def _locals(
    run: MeasuredRun,
    pieces: Pieces,
    models: Mapping[int, Vector],
    terms: Terms,
    measures: Measures,
    report: Report | None,
) -> Iterator[LocalAgainstGlobal]:
    """Each client's local model on its own data and on the union of all clients' training data."""
    terms = replace(terms, on="train", model="last")
    union = _subset(run.loss(terms), terms)
    progress = _says(report, "clients of the last round")
    for done, (client, params) in enumerate(models.items()):

        def compute(client: int = client, params: Vector = params) -> LocalAgainstGlobal:
            (found,) = local_against_global(
                union,
                {client: params},
                {client: run.own_samples(client)},
                method=measures.method,
                tolerance=measures.tolerance if measures.method == "lanczos" else None,
                seed=terms.seed,
            )
            return found

        path = pieces.path("local", params, terms, measures.method, measures.tolerance, client)
        yield pieces.get(path, LocalAgainstGlobal, compute)
        progress(done + 1, len(models))


def _surface(
    run: MeasuredRun,
    loss: MeanLoss,
    params: Vector,
    terms: Terms,
    grid: int,
    span: tuple[float, float],
    name: str,
    report: Report | None,
    *,
    weights: str,
    plane: tuple[Vector, Vector] | None = None,
) -> Surface:
    pieces = Pieces(run)
    with disk_errors(pieces.folder):
        return surface(
            loss,
            params,
            directions=plane,
            kind=None if plane is None else "top eigenvectors",
            grid=grid,
            span=span,
            seed=terms.seed,
            weights=weights,
            saved=pieces.path("surface", params, terms, name, grid, *span, loss.split),
            progress=_says(report, name.replace("-", " along ")),
        )


def _subset(loss: MeanLoss, terms: Terms) -> MeanLoss:
    return loss if terms.samples is None else loss.disjoint(terms.samples, 1, terms.seed)[0]


def _says(report: Report | None, what: str) -> Callable[[int, int], None]:
    return (lambda done, total: None) if report is None else (lambda done, total: report(what, done, total))


def _keep(path: Path, result: object) -> None:
    with disk_errors(path):
        save(path, result)


def _write(run: MeasuredRun, stem: str, result: object) -> None:
    _keep(run.folder.analysis / f"{stem}.json", result)
