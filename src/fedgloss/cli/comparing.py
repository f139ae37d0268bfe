"""`compare`: methods x clients x seeds, each cell a resumable run, one table."""

from __future__ import annotations

import json as json_module
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from ..algorithms import METHODS
from ..config import Config, Resolved
from ..errors import require
from ..forkserver import interrupts_held
from ..records import RunFolder
from ..run import Execution, Interruption, Job
from ..training import Step
from .options import (
    CLIENTS,
    KEYS,
    Asked,
    Jobs,
    Json,
    Quiet,
    RunsFolder,
    Seeds,
    Source,
    complete_methods,
    configurable,
)
from .progress import ShowProgress, bar, figures_of
from .tables import comparison, division


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    label: str
    folder: Path
    config: Config

    @property
    def name(self) -> str:
        return f"{self.label}, seed {self.config.training.seed}"


def listed(text: str, option: str) -> list[str]:
    items = [item.strip() for item in text.split(",") if item.strip()]
    require(bool(items), option, "is empty")
    require(len(set(items)) == len(items), f"{option} {text}", "names the same twice")
    return items


def seeds_of(text: str) -> list[int]:
    numbers = listed(text, "--seeds")
    fine = all(number.isdecimal() for number in numbers)
    require(fine, f"--seeds {text}", "must be whole numbers with commas between them")
    return [int(number) for number in numbers]


def cells(
    methods: Sequence[str],
    clients: Sequence[str] | None,
    seeds: Sequence[int],
    make: Callable[..., Resolved],
    out: Path,
) -> list[Cell]:
    """Every method with every client it takes and every seed; a method that fixes its client appears once."""
    found = []
    for method in methods:
        takes = method in METHODS and METHODS[method].takes_client
        choices: Sequence[str | None] = clients if clients and takes else [None]
        for client in choices:
            label = method if client is None else f"{method}-{client}"
            for seed in seeds:
                resolved = make(method=method, client=client, seed=seed)
                found.append(Cell(label, out / f"{label}-seed{seed}", resolved.config))
    return found


class Report:
    """A tracker in a child process: tells the parent how far the run is."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._accuracy: float | None = None
        self._seconds = 0.0
        self._rounds = 0

    def started(self, job: Job, done: int, notices: Sequence[str]) -> None:
        _child.events.put((self._number, done, ""))

    def stepped(self, step: Step, seconds: float) -> None:
        if step.evaluation is not None:
            self._accuracy = step.evaluation.metrics.get("accuracy")
        self._seconds, self._rounds = self._seconds + seconds, self._rounds + 1
        shown = figures_of(step, self._accuracy, self._rounds / max(self._seconds, 1e-9))
        _child.events.put((self._number, step.state.round, shown))

    def ended(self, summary: Mapping[str, Any]) -> None: ...


class Child:
    """A process that carries out cells. It ends its run when told to, and does not outlive its parent."""

    def __init__(self) -> None:
        self.events: Any = None
        self.busy = threading.Lock()

    def begin(self, events: Any, stop: Any, abandon: Any) -> None:
        self.events = events
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # until a run listens for them
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
        threading.Thread(target=self._watch, args=(stop, abandon), daemon=True).start()

    def _watch(self, stop: Any, abandon: Any) -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        while not stop.wait(0.5) and parent.is_alive():
            pass
        while True:
            os.kill(os.getpid(), signal.SIGTERM)  # the run, if there is one, ends with its round and saves
            if abandon.wait(0.5) or (not parent.is_alive() and self.busy.acquire(blocking=False)):
                os._exit(1)


_child = Child()


def begin_child(events: Any, stop: Any, abandon: Any) -> None:
    _child.begin(events, stop, abandon)


def run_cell(cell: Cell, execution: Execution, number: int) -> dict[str, Any]:
    """One cell, in a process of its own."""
    from ..job import build_job
    from ..run import execute

    with _child.busy:
        return execute(build_job(cell.config), RunFolder(cell.folder), execution, [Report(number)])


def shares(cells: Sequence[Cell], jobs: int | None) -> tuple[int, int]:
    """How many cells at a time, and with how many workers each: cores are divided among them, a device is not."""
    from ..transports import usable_workers

    run = cells[0].config.run
    cores = usable_workers("auto", run.device)
    fitting = cores if run.workers == "auto" else max(1, cores // run.workers)
    at_once = min(jobs or fitting, len(cells))
    return at_once, max(1, cores // at_once)


def execution_of(cell: Cell, workers: int) -> Execution:
    """How to carry a cell out: with the workers its configuration asks for, else with its share of this machine's
    cores, or with what a Ray cluster has room for."""
    from ..job import build_execution

    execution = build_execution(cell.config)
    here = execution.transport == "local" or execution.address == "local"
    return replace(execution, workers=workers) if here and execution.workers == "auto" else execution


def run_one_by_one(cells: Sequence[Cell], workers: int, console: Console) -> list[dict[str, Any]]:
    """All cells up to one that is interrupted, in this process."""
    from ..job import build_job
    from ..run import execute

    summaries: list[dict[str, Any]] = []
    for cell in cells:
        job = build_job(cell.config)
        with ShowProgress(console, cell.name) as shown:
            summary = execute(job, RunFolder(cell.folder), execution_of(cell, workers), [shown])
        summaries.append(summary)
        if summary["status"] == "interrupted":
            break
    return summaries


def run_cells(cells: Sequence[Cell], jobs: int, workers: int, console: Console) -> list[dict[str, Any]]:
    """All cells, ``jobs`` at a time. Ctrl-C and SIGTERM let each finish its round and save; a second Ctrl-C does
    not wait for that."""
    if jobs == 1:
        return run_one_by_one(cells, workers, console)
    context = multiprocessing.get_context("spawn")
    events, stop, abandon = context.Queue(), context.Event(), context.Event()
    interruption = Interruption()
    with (
        interruption.handled(),
        ProcessPoolExecutor(jobs, context, begin_child, (events, stop, abandon)) as pool,
        show_many(console, cells) as show,
    ):
        try:
            with interrupts_held():
                futures: list[Future[dict[str, Any]]] = [
                    pool.submit(run_cell, cell, execution_of(cell, workers), number)
                    for number, cell in enumerate(cells)
                ]
            while not all(future.done() for future in futures):
                if interruption.asked:
                    stop.set()
                    for future in futures:
                        future.cancel()
                with suppress(queue.Empty):
                    show(*events.get(timeout=0.2))
            with suppress(queue.Empty):
                while True:
                    show(*events.get(timeout=0.1))
        except KeyboardInterrupt:
            abandon.set()
            raise
    return [future.result() for future in futures if not future.cancelled()]


@contextmanager
def show_many(console: Console, cells: Sequence[Cell]) -> Iterator[Callable[[int, int, str], None]]:
    """A bar for every run on a terminal; elsewhere a line at every tenth of each."""
    rounds = [cell.config.training.rounds for cell in cells]
    if console.is_terminal:
        with bar(console) as progress:
            tasks = [progress.add_task(c.name, total=t, figures="") for c, t in zip(cells, rounds, strict=True)]
            yield lambda number, done, shown: progress.update(tasks[number], completed=done, figures=shown)
        return

    def line(number: int, done: int, shown: str) -> None:
        total = rounds[number]
        if shown and (done % max(1, total // 10) == 0 or done == total):
            text = f"{cells[number].name}  round {done}/{total}  {shown}"
            console.print(text, highlight=False, soft_wrap=True)

    yield line


@configurable(*(name for name in KEYS if name not in ("method", "client", "seed", "workers")))
def compare(
    source: Source,
    *,
    methods: Annotated[
        str, typer.Option("--methods", help="Methods, with commas between them.", autocompletion=complete_methods)
    ],
    clients: Annotated[
        str | None, typer.Option("--clients", help="sgd,sam: for methods that take a client.")
    ] = None,
    seeds: Seeds = "0",
    asked: Asked,
    out: RunsFolder = None,
    jobs: Jobs = None,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Train several methods and print one table. Runs that are there already are gone on with, or just read."""

    def make(method: str, client: str | None, seed: int) -> Resolved:
        return asked.of(source, {"algorithm.name": method, "algorithm.client": client, "training.seed": seed})

    chosen = None if clients is None else listed(clients, "--clients")
    for client in chosen or ():
        require(client in CLIENTS, f"--clients {clients}", f"there are {', '.join(CLIENTS)}, got {client!r}")
    folder = out or Path("runs") / f"{Path(source).stem}-compare"
    found = cells(listed(methods, "--methods"), chosen, seeds_of(seeds), make, folder)
    console = Console(stderr=json, quiet=quiet)
    summaries = run_cells(found, *shares(found, jobs), console)
    if len(summaries) < len(found) or any(s["status"] == "interrupted" for s in summaries):
        console.print("stopped; all is saved. The same command goes on.")
        raise SystemExit(130)
    rows: dict[str, list[dict[str, Any]]] = {}
    for cell, summary in zip(found, summaries, strict=True):
        rows.setdefault(cell.label, []).append(summary)
    if json:
        print(json_module.dumps({"out": str(folder), "methods": rows}))
        return
    console.print(comparison(rows, title=escape(division(found[0].config.data))))
    protocol = f"accuracy: {summaries[0]['protocol']} Mean ± sample standard deviation over seeds."
    console.print(protocol, highlight=False, soft_wrap=True)
    console.print(f"runs: {escape(str(folder))}", highlight=False, soft_wrap=True)
