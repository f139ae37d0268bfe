"""The report: one HTML file that holds its data, its drawing library and its looks, and asks nothing of a network.

Python decides what is shown (``page_data``); ``assets/page.js`` shows it. All text reaches the page as JSON and is
set as text, never as markup.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from importlib.metadata import version
from typing import Any

import numpy as np
import numpy.typing as npt

from ..costs import size
from ..errors import InvalidInput
from . import results
from .curves import Curve, Quantity, curves_of, quantities
from .measurements import Measurement
from .palette import DARK, LIGHT, appearance
from .runs import Run, Skipped
from .study import Repeats, Setting, arrange, differing_keys, flatten, labels, show
from .tables import Table

ALL_POINTS, FEWEST_POINTS = 900_000, 600
"""Points of all curves together, and of one at least: 40 runs of 10,000 rounds stay below 18 MB and open in 4 s."""

AGAINST_BYTES = ("accuracy", "test_loss", "train_loss")
DENSITY_PLACES = 400


def page(data: Mapping[str, Any], *, live: bool = False) -> str:
    """The whole page. ``live``: it may ask the server it came from for newer data, and nothing else."""
    assets = resources.files("fedgloss.reports") / "assets"
    plotly, script = _plotly(), (assets / "page.js").read_text()
    policy = "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash(plotly)} {_hash(script)}",
            "style-src 'unsafe-inline'",  # plotly writes style rules and attributes
            "img-src data: blob:",
            f"connect-src {chr(39)}{'self' if live else 'none'}{chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )
    parts = {
        "policy": policy,
        "generator": f"fedgloss {data['version']}",
        "title": html.escape(data["title"]),
        "style": (assets / "page.css").read_text(),
        "data": embedded(data),
        "plotly": plotly,
        "script": script,
    }
    before, *rest = (assets / "page.html").read_text().split("{{")
    return before + "".join(parts[name] + text for name, text in (piece.split("}}", 1) for piece in rest))


def embedded(data: Any) -> str:
    """JSON that no HTML parser can take for anything else.

    >>> embedded({"name": "</script><!--"})
    '{"name":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


@cache
def _plotly() -> str:
    try:
        found = resources.files("plotly") / "package_data" / "plotly.min.js"
        return found.read_text(encoding="utf-8").rstrip("\n")
    except (ModuleNotFoundError, OSError):
        raise InvalidInput("the report draws with plotly, which is not installed: pip install plotly") from None


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@np.errstate(over="ignore", invalid="ignore")  # a figure beyond all bounds shows as a gap
def page_data(
    runs: Sequence[Run], skipped: Sequence[Skipped], *, live: float | None = None, first: Sequence[Table] = ()
) -> dict[str, Any]:
    """Everything the page shows. ``live``: seconds between looks for news; ``first``: tables to begin with."""
    settings = arrange(runs)
    methods = labels(settings)
    points = _points_of_a_curve(settings)
    tables = {
        "across": results.across(settings),
        "differences": results.differences(runs) if runs else None,
        "shared": results.shared(runs) if runs else None,
        "machines": results.machines(runs) if runs else None,
    }
    return {
        "title": _title(settings),
        "version": version("fedgloss"),
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "live": live,
        "palette": {"light": LIGHT, "dark": DARK},
        "skipped": [[item.path, item.reason] for item in skipped],
        "methods": [_look(index, label, client) for index, (label, client) in enumerate(methods.items())],
        "settings": [_setting(setting, list(methods), points) for setting in settings],
        "first": [table.to_json() for table in first],
        "tables": _tables(tables),
        "runs": [{**results.provenance(run), "written": run.written} for run in runs],
        "differing": differing_keys([dict(flatten(run.config)) for run in runs]),
    }


def numbers(values: npt.ArrayLike) -> dict[str, Any]:
    """An array as bytes in base 64: whole numbers in the narrowest type, others in single precision."""
    array = np.asarray(values)
    if array.dtype.kind in "iu":
        kind = "u2" if array.size == 0 or int(array.max()) < 2**16 else "u4"
        return {kind: base64.b64encode(array.astype(f"<{kind}").tobytes()).decode()}
    single = array.astype("<f4")
    single[~np.isfinite(single)] = np.nan
    return {"f4": base64.b64encode(single.tobytes()).decode()}


def _exact(values: npt.NDArray[np.float64]) -> dict[str, Any]:
    return {"f8": base64.b64encode(values.astype("<f8").tobytes()).decode()}


def _title(settings: Sequence[Setting]) -> str:
    names = list(dict.fromkeys(str(s.config["data"].get("name", "data")) for s in settings))
    return f"{', '.join(names)} · fedgloss" if names else "fedgloss"


def _look(index: int, label: str, client: str) -> dict[str, Any]:
    colour, stroke = appearance(index)
    return {"label": label, "client": client, "colour": colour, "stroke": stroke}


def _tables(found: Mapping[str, Table | None]) -> dict[str, Any]:
    return {name: None if table is None else table.to_json() for name, table in found.items()}


def _setting(setting: Setting, order: Sequence[str], points: int) -> dict[str, Any]:
    runs = list(setting.runs)
    shown = quantities(runs)
    place = {method.label: order.index(method.label) for method in setting.methods}
    tables = {
        "results": results.results(setting),
        "comparisons": results.comparisons(setting),
        "curvature_comparisons": results.curvature_comparisons(setting),
        "measures": results.measures(setting),
        "costs": results.costs(setting),
    }
    return {
        "name": setting.name,
        "metric": setting.metric,
        "facts": _facts(setting),
        "methods": sorted(place.values()),
        "tables": _tables(tables),
        "quantities": [{"id": q.id, "title": q.title, "axis": q.axis} for q in shown],
        "curves": {q.id: _curves(setting, q, place, points) for q in shown},
        "federation": next((_federation(run.federation) for run in runs if run.federation), None),
        "vectors": [_vectors(method, place) for method in setting.methods],
        "seconds": [found for method in setting.methods if (found := _seconds(method, place))],
        **_geometry(setting, place),
    }


def _facts(setting: Setting) -> list[list[str]]:
    """What was trained, on what, and how: (term, words)."""
    runs = list(setting.runs)
    data, model, local, training = (setting.config[name] for name in ("data", "model", "local", "training"))
    picture: Mapping[str, Any] = next((run.federation for run in runs if run.federation), {})

    on = [show(picture.get("name", data.get("name")))]
    if picture:
        on.append(f"{picture['train']:,} training and {picture['test']:,} test samples")
        on += [f"{len(picture['classes']):,} classes"] if picture["classes"] else []

    split = [f"{show(picture.get('clients', data.get('clients')))} clients", f"split {show(data.get('split'))}"]
    split += [f"α = {show(data['alpha'])}"] if "alpha" in data else []
    if division := picture.get("division"):
        kinds, sizes = division["classes_per_client"], division["sizes"]
        least, most = (f"{sizes[end]:,.0f}" for end in ("least", "most"))
        samples = least if least == most else f"{least} to {most}"
        mean = kinds["mean"]
        split.append(f"{samples} samples each, of {'1 class' if mean == 1 else f'{mean:.3g} classes on average'}")

    copy = next((run.model_bytes for run in runs if run.model_bytes), 0)
    network = [show(model.get("name"))] + ([f"{size(copy)} a copy"] if copy else [])
    words = {"lr": "lr", "epochs": "epochs", "batch_size": "batch size", "weight_decay": "weight decay"}
    words |= {key: key for key in ("momentum", "clip")}
    step = [f"{word} {show(local[key])}" for key, word in words.items() if local.get(key)]
    who = f"{show(training.get('cohort'))} clients each"
    if "participation" in training:
        who = f"each client taking part with probability {show(training['participation'])}"
    return [
        ["Data", ", ".join(on)],
        ["Clients", ", ".join(split)],
        ["Network", ", ".join(network)],
        ["Local training", ", ".join(step)],
        ["Rounds", f"{show(training.get('rounds'))}, {who}"],
        ["Seeds", ", ".join(map(str, sorted({run.seed for run in runs})))],
    ]


def _points_of_a_curve(settings: Sequence[Setting]) -> int:
    curves = sum(len(quantities(list(s.runs))) * (len(list(s.runs)) + len(s.methods)) for s in settings)
    return max(FEWEST_POINTS, ALL_POINTS // max(1, curves))


def _curves(setting: Setting, quantity: Quantity, place: Mapping[str, int], points: int) -> list[dict[str, Any]]:
    found = []
    against_bytes = quantity.source == "evaluations" or quantity.id in AGAINST_BYTES
    for method in setting.methods:
        mean, each = curves_of(method, quantity)
        if not each:
            continue
        lost = [run.seed for run in method.runs if run.status == "diverged"]
        found.append(
            {
                "method": place[method.label],
                "mean": None if mean is None else _curve(mean.thinned(points), against_bytes),
                "runs": [
                    {"seed": seed, "lost": seed in lost, **_curve(curve.thinned(points), against_bytes)}
                    for seed, curve in each
                ],
            }
        )
    return found


def _curve(curve: Curve, against_bytes: bool) -> dict[str, Any]:
    found = {"rounds": numbers(curve.rounds), "values": numbers(curve.values)}
    found |= {"bytes": _exact(curve.bytes)} if against_bytes else {}
    return found if curve.sd is None else {**found, "sd": numbers(curve.sd)}


def _federation(picture: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("name", "clients", "shown", "sizes", "classes", "counts")
    return {**{key: picture[key] for key in kept}, "entropies": numbers(entropies(picture))}


def entropies(picture: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """How mixed each client's classes are, in nats."""
    found = []
    for counts in picture["counts"]:
        shares = np.array(counts[1::2], dtype=np.float64)
        shares /= max(1.0, shares.sum())
        shares = shares[shares > 0]
        found.append(abs(float(-(shares * np.log(shares)).sum())))
    return np.array(found, dtype=np.float64)


def _vectors(method: Repeats, place: Mapping[str, int]) -> dict[str, Any]:
    return {"method": place[method.label], "bytes": vector_bytes(method)}


def vector_bytes(method: Repeats) -> dict[str, float]:
    """Bytes of each named vector in a round, a mean over runs."""
    runs = [run for run in method.runs if run.length]
    names = list(dict.fromkeys(name for run in runs for name in run.traffic.by_vector))
    return {
        name: float(np.mean([run.traffic.by_vector.get(name, 0) / run.length for run in runs])) for name in names
    }


def _seconds(method: Repeats, place: Mapping[str, int]) -> dict[str, Any] | None:
    found = round_seconds(method)
    if found is None:
        return None
    return {"method": place[method.label], **dict(zip(("low", "median", "high"), found, strict=True))}


def round_seconds(method: Repeats) -> tuple[float, float, float] | None:
    """The 10th, 50th and 90th percentile of a round's time over all rounds and seeds."""
    seconds = np.concatenate([run.seconds for run in method.runs])
    seconds = seconds[np.isfinite(seconds)]
    if not len(seconds):
        return None
    low, middle, high = (float(q) for q in np.percentile(seconds, [10, 50, 90]))
    return low, middle, high


def _geometry(setting: Setting, place: Mapping[str, int]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {
        key: [] for key in ("surfaces", "interpolations", "eigenvalues", "densities", "locals")
    }
    for method in setting.methods:
        for run in method.runs:
            for m in run.measurements:
                content, words = m.content, results.subject_words(m.subject)
                about = {"method": place[method.label], "seed": run.seed, "name": m.name, "subject": words}
                if m.kind == "surface":
                    grids = {name: numbers(grid.ravel()) for name, grid in content["grids"].items()}
                    axes = {axis: _plain(content[axis]) for axis in ("x", "y")}
                    found["surfaces"].append({**about, **axes, "grids": grids, "directions": content["directions"]})
                elif m.kind == "interpolation":
                    curves = {name: _plain(curve) for name, curve in content["curves"].items()}
                    (barrier,) = _plain(np.array([content["barrier"]]))
                    line = {"coefficients": _plain(content["coefficients"]), "curves": curves}
                    ends = {"to": results.other_end(m), "barrier": barrier}
                    found["interpolations"].append({**about, **ends, **line})
                elif m.kind == "eigenvalues":
                    final = m.subject.get("weights") == "last"
                    found["eigenvalues"].append(
                        {**about, "on": _samples(m), "final": final, **_eigenvalues(content)}
                    )
                elif m.kind == "density":
                    places, width = density_places(setting, DENSITY_PLACES)
                    values = numbers(blurred(content["probes"], places, width))
                    found["densities"].append({**about, "at": numbers(places), "values": values})
                elif m.kind == "local":
                    ends = {key: _first(content[key]["top"]) for key in ("local", "union")}
                    found["locals"].append({**about, "on": _samples(m), "client": content["client"], **ends})
    return found


def _samples(measurement: Measurement) -> str:
    """What a figure was measured on, whichever model it was of."""
    return results.subject_words({**measurement.subject, "weights": ""})


def _plain(values: npt.NDArray[np.float64]) -> list[float | None]:
    return [float(f"{value:.7g}") if math.isfinite(value) else None for value in values.tolist()]


def _eigenvalues(content: Mapping[str, Any]) -> dict[str, Any]:
    def column(key: str) -> list[float | None]:
        return _plain(np.array([one[key] for one in [*content["top"], *reversed(content["bottom"])]]))

    spread, residual = column("spread"), column("residual")
    errors = [r if s is None else s for s, r in zip(spread, residual, strict=True)]
    return {"values": column("value"), "errors": errors, "top": len(content["top"]), "how": content["method"]}


def _first(top: Sequence[Mapping[str, float]]) -> float | None:
    value = top[0]["value"] if top else math.nan
    return value if math.isfinite(value) else None


def density_places(setting: Setting, count: int) -> tuple[npt.NDArray[np.float64], float]:
    """Where to draw a setting's densities, and how broad to draw each point of mass."""
    found = [m.content["probes"] for method in setting.methods for _, m in method.measurements("density")]
    points = np.concatenate([points for probes in found for points, _ in probes])
    low, high = float(np.nanmin(points)), float(np.nanmax(points))
    width = max((high - low) / 100, 1e-12)
    return np.linspace(low - 4 * width, high + 4 * width, count), width


def blurred(
    probes: Sequence[tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]],
    places: npt.NDArray[np.float64],
    width: float,
) -> npt.NDArray[np.float64]:
    """The density at these places: each point of mass as a Gaussian of this width, the mean over probes."""
    total = np.zeros(len(places))
    for points, masses in probes:
        total += np.exp(-0.5 * ((places[:, None] - points) / width) ** 2) @ masses
    return total / (width * math.sqrt(2 * math.pi) * len(probes))
