"""`fedgloss data`: what there is, where to get it, and how skewed it is among clients."""

from __future__ import annotations

import json as json_module
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from ..config import parse_setting
from ..data.datasets import DATA_SETS, NEED_A_PATH, DataSet, load, where
from ..data.federate import SPLITS, federate
from ..data.federation import Federation, Partition
from ..data.store import StoredSamples
from ..errors import InvalidInput
from .options import AllowMissing, Json

app = typer.Typer(name="data", help="Data sets: list, get, show how they are divided.", no_args_is_help=True)

SHADES = " \N{LIGHT SHADE}\N{MEDIUM SHADE}\N{DARK SHADE}\N{FULL BLOCK}"
MOST_ROWS = 20
REMARKS = ("leaked test pictures", "lists", "users left out", "in both lists")

Name = Annotated[str, typer.Argument(help="A name from `fedgloss data list`, or package:function.")]
DataPath = Annotated[
    str | None, typer.Option("--path", help="Where the data are, if not where they are looked for.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="KEY=VALUE", help="An option of the data set.")
]


@app.command("list")
def list_sets(json: Json = False) -> None:
    """Every data set by name, and whether it is on this machine."""
    from ..data.plugin import installed

    places = {name: where(name) for name in DATA_SETS}
    if json:
        facts = {name: {"summary": entry.summary, "place": places[name]} for name, entry in DATA_SETS.items()}
        facts |= {name: {"summary": target, "place": None} for name, target in installed().items()}
        print(json_module.dumps(facts, indent=2))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what", "where"):
        table.add_column(heading, overflow="fold")
    for name, entry in DATA_SETS.items():
        table.add_row(name, entry.summary, places[name] or f"[dim]{_how(name)}[/dim]")
    for name, target in installed().items():
        table.add_row(name, f"plug-in {target}", "installed")
    Console(highlight=False).print(table)


@app.command("get")
def get_set(name: Name) -> None:
    """Fetch a data set, verify its checksums and prepare it."""
    from ..data.download import get

    console = Console(highlight=False)
    archive = get(name)
    data = load(name)
    assert isinstance(data, DataSet)
    console.print(
        f"{name} is ready: {len(data.train):,} training and {len(data.test):,} test pictures, "
        f"{'checksums as published' if data.notes['published'] else '[yellow]not the published pictures[/yellow]'}"
    )
    console.print(f"[dim]{archive}[/dim]", soft_wrap=True)


@app.command()
def prepare(
    name: Name, path: DataPath = None, allow_missing: AllowMissing = None, settings: Settings = None
) -> None:
    """Convert or decode all of a data set now, on all cores, and list the pictures that are missing or corrupt.

    A run does the same piece by piece, as it needs them.
    """
    loaded = _load(name, path, allow_missing, settings)
    for samples in (loaded.train, loaded.test):
        if isinstance(samples, StoredSamples):
            samples.prepare(np.arange(len(samples)))
    count = len(loaded.train) + (len(loaded.test) if loaded.test is not None else 0)
    left = loaded.notes.get("left out")
    without = f", without {left['missing']} missing and {left['corrupt']} corrupt ({left['list']})" if left else ""
    print(f"{name} is ready: {count:,} pictures{without}")


@app.command()
def show(
    name: Name,
    path: DataPath = None,
    split: Annotated[str | None, typer.Option(help=f"How to divide them: {', '.join(SPLITS)}.")] = None,
    clients: Annotated[int | None, typer.Option(help="How many clients.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Concentration; 0 gives each client one class.")] = None,
    classes_per_client: Annotated[int | None, typer.Option(help="For the split shards.")] = None,
    lists: Annotated[str | None, typer.Option(help="For the split official: the authors' JSON files.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the division.")] = 0,
    validation: Annotated[float, typer.Option(help="Share of each client's pictures kept for tuning.")] = 0.0,
    allow_missing: AllowMissing = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Folder for the picture of the division (PNG and SVG).")] = Path("."),
    json: Json = False,
) -> None:
    """Describe a data set and its division among clients, and draw the picture of clients and classes."""
    loaded = _load(name, path, allow_missing, settings)
    if isinstance(loaded, Federation):
        federation, title = loaded, name
    else:
        split = split or ("natural" if loaded.owners is not None else "hsu")
        if split not in SPLITS:
            raise InvalidInput(f"--split: unknown split {split!r}; there are {', '.join(SPLITS)}")
        wanted = (*SPLITS[split].takes, *SPLITS[split].may_take)
        defaults: dict[str, Any] = {"clients": DATA_SETS[name].clients if name in DATA_SETS else 20}
        defaults |= {} if split == "official" else {"alpha": 0.0}
        division = {key: value for key, value in defaults.items() if key in wanted}
        given = {"clients": clients, "alpha": alpha, "classes_per_client": classes_per_client, "path": lists}
        division |= {key: value for key, value in given.items() if value is not None}
        federation = federate(loaded, split=split, seed=seed, validation=validation, **division)
        drawn = f"alpha {division['alpha']:g}" if "alpha" in division else ""
        title = ", ".join(part for part in (name, split, drawn) if part)
    facts = _facts(federation, title)
    pictures = _draw(federation, title, out) if facts["division"] else ()
    if json:
        print(json_module.dumps(facts | {"pictures": [str(file) for file in pictures]}, indent=2))
        return
    console = Console(highlight=False)
    console.print(_table(name, _described(facts, federation)))
    if facts["division"]:
        console.print(_table(title, _divided(facts["division"])))
        console.print(_sketch(federation, facts["classes"], console.width), end="")
    if pictures:
        console.print(f"picture: {' and '.join(str(file) for file in pictures)}", soft_wrap=True)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="landmarks-user-160k")],
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    users: Annotated[int, typer.Option(help="How many users.")] = 12,
    classes: Annotated[int, typer.Option(help="How many landmarks.")] = 10,
    pictures: Annotated[int, typer.Option(help="How many training pictures.")] = 240,
    test_pictures: Annotated[int, typer.Option(help="How many test pictures.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of all that is drawn.")] = 0,
    shards: Annotated[bool, typer.Option("--shards", help="Tar shards instead of single files.")] = False,
) -> None:
    """Make a small federation in the true format of landmarks-user-160k, to try things out."""
    from ..data.synthetic_landmarks import make_landmarks

    if name != "landmarks-user-160k":
        raise InvalidInput(f"{name}: only landmarks-user-160k can be made")
    make_landmarks(
        folder,
        users=users,
        classes=classes,
        pictures=pictures,
        test_pictures=test_pictures,
        seed=seed,
        shards=shards,
    )
    print(f"{folder}: {pictures} pictures of {classes} landmarks by {users} users; see them with")
    print(f"fedgloss data show landmarks-user-160k --path {folder}")


def _load(
    name: str, path: str | None, allow_missing: bool | None, settings: list[str] | None
) -> DataSet | Federation:
    options = dict(parse_setting(text) for text in settings or ())
    options |= {"path": path} if path is not None else {}
    options |= {"allow_missing": True} if allow_missing else {}
    return load(name, **options)


def _how(name: str) -> str:
    from ..data.download import SOURCES

    if name in SOURCES:
        return f"fedgloss data get {name}"
    return "give its path" if name in NEED_A_PATH else DATA_SETS[name].by_hand


def _facts(federation: Federation, title: str) -> dict[str, Any]:
    """All that is shown, as plain values."""
    from ..data.statistics import describe

    inputs, _ = federation.train.fetch(federation.partition[0][:1])
    labels = _labels(federation)
    facts: dict[str, Any] = {
        "title": title,
        "train": len(federation.train),
        "test": len(federation.test) if federation.test is not None else 0,
        "validation": len(federation.validation) if federation.validation is not None else 0,
        "shape": list(inputs.shape[1:]),
        "dtype": str(inputs.dtype).removeprefix("torch."),
        "notes": dict(federation.notes),
        "division": None,
    }
    if labels is not None:
        classes = _classes(federation, labels)
        facts["classes"] = list(classes)
        facts["division"] = asdict(describe(federation.partition, labels, len(classes)))
    return facts


def _labels(federation: Federation) -> Any:
    """The training labels, where the targets are classes."""
    targets = federation.train.targets
    return targets.numpy() if targets.ndim == 1 and not targets.is_floating_point() else None


def _classes(federation: Federation, labels: Any) -> tuple[str, ...]:
    return federation.classes or tuple(str(label) for label in range(int(labels.max()) + 1))


def _draw(federation: Federation, title: str, out: Path) -> tuple[Path, ...]:
    from ..data.pictures import draw_split

    labels = _labels(federation)
    stem = "".join(c if c.isalnum() or c in ".-" else "-" for c in title.replace(", ", "-").replace("alpha ", ""))
    return draw_split(federation.partition, labels, _classes(federation, labels), out / stem, title)


def _described(facts: dict[str, Any], federation: Federation) -> list[tuple[str, str]]:
    notes = facts["notes"]
    rows = [("training", f"{facts['train']:,}"), ("test", f"{facts['test']:,}")]
    if facts["validation"]:
        rows.append(("validation", f"{facts['validation']:,}"))
    rows.append(("each", f"{' x '.join(map(str, facts['shape']))} {facts['dtype']}"))
    if "classes" in facts:
        names = facts["classes"]
        shown = ", ".join(names[:10]) + (", ..." if len(names) > 10 else "")
        rows.append(("classes", f"{len(names):,}: {shown}"))
    rows.append(("transform", str(federation.transform)))
    if "published" in notes:
        said = "as published" if notes["published"] else "[yellow]not those published under this name[/yellow]"
        rows.append(("checksums", said))
    if "left out" in notes:
        left = notes["left out"]
        counts = f"[yellow]{left['missing']} missing, {left['corrupt']} corrupt[/yellow]"
        rows.append(("left out", f"{counts} ({left['list']})"))
    rows += [(key, str(notes[key])) for key in REMARKS if notes.get(key)]
    rows += [("source", str(source.get("file"))) for source in notes.get("sources", [])[:4]]
    if "source" in notes:
        rows.append(("source", str(notes["source"])))
    return rows


def _divided(division: dict[str, Any]) -> list[tuple[str, str]]:
    def spread(name: str, form: str) -> str:
        values = division[name]
        low, high = format(values["least"], form), format(values["most"], form)
        mean = format(values["mean"], form if form != ",.0f" else ",.2f").removesuffix(".00")
        return mean if values["least"] == values["most"] else f"{mean}  ({low} to {high})"

    return [
        ("clients", f"{division['clients']:,}"),
        ("pictures per client", spread("sizes", ",.0f")),
        ("classes per client", spread("classes_per_client", ",.0f")),
        ("largest class share", spread("largest_share", ".3f")),
        ("entropy (nats)", f"{spread('entropy', '.3f')}  of {np.log(division['classes']):.3f}"),
    ]


def _sketch(federation: Federation, classes: list[str], width: int) -> str:
    """Clients across, classes down, a darker block for a larger share; as many clients as fit."""
    from ..data.statistics import class_counts

    if len(classes) > MOST_ROWS:
        return ""
    margin = min(16, max(map(len, classes)))
    room = max(10, width - margin - 2)
    population = federation.population
    chosen = np.unique(np.linspace(0, population - 1, min(population, room)).round().astype(int))
    some = Partition.of([federation.partition[client] for client in chosen])
    shares = class_counts(some, _labels(federation), len(classes)) / some.sizes[:, None]
    levels = np.ceil(shares * (len(SHADES) - 1)).astype(int)
    repeat = 2 if 2 * len(chosen) <= room else 1
    lines = [
        f"{name[:margin]:>{margin}}  " + "".join(SHADES[level] * repeat for level in levels[:, row])
        for row, name in enumerate(classes)
    ]
    shown = "each column a client" + (f" ({len(chosen)} of {population:,})" if len(chosen) < population else "")
    return "\n".join([*lines, f"{'':{margin}}  {shown}", ""])


def _table(title: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=f"[bold]{title}[/bold]", title_justify="left", show_header=False, box=box.ROUNDED)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
