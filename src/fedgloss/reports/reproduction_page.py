"""The page a reproduction is kept as: what was run, how far it came, what came out, and what was not run."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from ..costs import size
from . import paper
from .paper import Exhibit
from .reproduction import RULE, Entry, early, table, table_row
from .results import divergence, duration
from .runs import Run
from .study import Repeats, Setting, arrange
from .tables import CROSS, DASH, Cell, Column, Table, markdown_text

Answers: TypeAlias = Sequence[tuple[Exhibit, Sequence[Entry]]]
"""Every exhibit asked about, with an entry a cell."""

EVALUATIONS = 10
"""Rows of a table of evaluations, at most."""

VERDICTS = ("agrees", "differs")


@dataclass(frozen=True)
class _Ran:
    """A run, the rounds the paper gives it, and the accuracies it prints for such a run, by round."""

    run: Run
    rounds: int
    published: Mapping[int, str]

    @property
    def short(self) -> bool:
        return self.run.status != "diverged" and self.run.length < self.rounds

    @property
    def early(self) -> bool:
        return early(self.run.length, self.rounds)

    @property
    def on_the_way(self) -> bool:
        """Whether there is a way to show."""
        return not self.early and len(_evaluations(self.run)) > 1

    @property
    def state(self) -> str:
        if self.run.status == "diverged":
            return f"{CROSS} {divergence(self.run)}"
        if self.run.status == "finished":
            return "shortened" if self.short else "whole"
        return self.run.status


def markdown(answers: Answers, needs: Mapping[str, str], figures: Mapping[str, Sequence[str]]) -> str:
    """``needs``: by label, what an exhibit takes; ``figures``: by setting, the pictures of its runs to show."""
    ran = _ran(answers)
    runs = [one.run for one in ran.values()]
    lines = [
        "# Reproduction of the paper",
        "",
        "Written by `fedgloss reproduce --read --markdown`, from the records of the runs listed here; do not edit. "
        "Published numbers, settings and the rules of the verdict are those of [paper.md](paper.md).",
        "",
        *_in_short(answers, ran),
    ]
    for setting in settings(runs):
        lines += _came_out(setting, ran, figures.get(setting.name, ()))
    lines += [*_cell_by_cell(answers), *_not_run(answers, needs), *_how(runs)]
    return "\n".join(lines)


def settings(runs: Sequence[Run]) -> list[Setting]:
    """What runs have in common, however far each was meant to go."""
    most = max((run.planned for run in runs), default=0)
    return arrange(
        [
            replace(run, config={**run.config, "training": {**run.section("training"), "rounds": most}})
            for run in runs
        ]
    )


def _ran(answers: Answers) -> dict[Path, _Ran]:
    found: dict[Path, _Ran] = {}
    for _, entries in answers:
        for one in entries:
            printed = one.cell.published
            tells = one.cell.quantity in ("accuracy", "accuracy_half") and printed is not None
            said = {one.cell.rounds_needed: _printed(printed.text)} if tells and printed else {}
            for run in one.runs:
                known = found.get(run.path, _Ran(run, 0, {}))
                rounds = max(known.rounds, one.cell.setting.rounds)
                found[run.path] = _Ran(run, rounds, {**known.published, **said})
    return found


def _printed(text: str) -> str:
    return text.replace("±", " ± ").replace("X", CROSS)


# ---- in short ---------------------------------------------------------------------------------------------------


def _in_short(answers: Answers, ran: Mapping[Path, _Ran]) -> list[str]:
    entries = [one for _, found in answers for one in found]
    needed = paper.runs(one.cell for one in entries)
    rounds = sum(one.run.length for one in ran.values())
    whole = sum(not one.short for one in ran.values())
    seeds = ", ".join(map(str, sorted({one.run.seed for one in ran.values()})))
    theirs = ", ".join(map(str, sorted({run.seed for run in needed})))
    lines = [
        "## In short",
        "",
        f"- **Run:** {_count(len(ran), 'run')} and {rounds:,} rounds, of the {_count(len(needed), 'run')} and "
        f"{sum(needed.values()):,} rounds the cells below take with all their seeds.",
        f"- **To the end:** {whole} of these {len(ran)}. A shortened run is not the paper's: its figures stand "
        "here with their rounds, and are compared only where the paper gives a value by that round.",
        f"- **Seeds:** {seeds}; the paper's: {theirs}. One seed alone is shown and not judged.",
        *(f"- **{markdown_text(setting.name)}:** {_outcomes(setting)}." for setting in with_courses(answers)),
        "",
    ]
    groups = {name: [one for one in entries if one.telling and one.verdict == name] for name in VERDICTS}
    pictures = [one for one in entries if one.telling and one.verdict == "drawn"]
    judged = [one for group in (*groups.values(), pictures) for one in group]
    groups["shown without a verdict"] = [one for one in entries if one.telling and one not in judged]
    groups["drawn"] = pictures
    rows = [(Cell(name), Cell(f"{len(found):,}"), Cell(_kinds(found))) for name, found in groups.items()]
    rest = sum(not one.telling for one in entries)
    rows.append(
        (Cell("not run, or not far enough to tell"), Cell(f"{rest:,}"), Cell("listed under What was not run"))
    )
    columns = (Column("Verdict", numeric=False), Column("Cells"), Column("Of what", numeric=False))
    return [*lines, Table("verdicts", "The cells", columns, (("", tuple(rows)),)).to_markdown()]


def _outcomes(setting: Setting) -> str:
    """Each run's last word."""
    return "; ".join(
        markdown_text(f"{_name(method, run, setting)} {_reached(run)}")
        for method in setting.methods
        for run in method.runs
    )


def _reached(run: Run) -> str:
    if run.status == "diverged":
        return f"diverged after {run.length:,} rounds"
    accuracy, done = _accuracy(run)
    return f"{accuracy:.2f} % after {done:,} rounds"


def _kinds(entries: Sequence[Entry]) -> str:
    kinds = Counter(one.cell.quantity.replace("_", " ") for one in entries)
    return ", ".join(f"{name} {count:,}" for name, count in kinds.most_common()) or DASH


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


# ---- what came out ----------------------------------------------------------------------------------------------


def with_courses(answers: Answers) -> list[Setting]:
    """The settings, each with the runs whose way is worth a look."""
    ran = _ran(answers)

    def kept(method: Repeats) -> Repeats:
        return replace(method, runs=[run for run in method.runs if ran[run.path].on_the_way])

    found = [
        replace(setting, methods=[method for method in map(kept, setting.methods) if method.runs])
        for setting in settings([one.run for one in ran.values()])
    ]
    return [setting for setting in found if setting.methods]


def _came_out(setting: Setting, ran: Mapping[Path, _Ran], figures: Sequence[str]) -> list[str]:
    here = [(_name(method, run, setting), ran[run.path]) for method in setting.methods for run in method.runs]
    lines = [f"## What came out: {markdown_text(setting.name)}", "", _runs_table(here).to_markdown()]
    on_the_way = [(name, one) for name, one in here if one.on_the_way]
    if on_the_way:
        lines += [" ".join(f"![{_alt(figure)}]({figure})" for figure in figures), ""] if figures else []
        lines += [_accuracies(on_the_way).to_markdown(), _norms(on_the_way).to_markdown()]
    return lines


def _name(method: Repeats, run: Run, setting: Setting) -> str:
    return f"{method.label}, seed {run.seed}" if len({r.seed for r in setting.runs}) > 1 else method.label


def _runs_table(here: Sequence[tuple[str, _Ran]]) -> Table:
    def row(name: str, one: _Ran) -> tuple[Cell, ...]:
        run, norms = one.run, one.run.rounds.get("norms.params", np.array([]))
        norm = f"{norms[-1]:.2f}" if len(norms) and math.isfinite(norms[-1]) else DASH
        rounds = f"{run.length:,} of {one.rounds:,}"
        accuracy = f"{_accuracy(run)[0]:.2f}" if one.on_the_way else DASH
        texts = (name, rounds, one.state, accuracy, norm, size(run.travelled(run.length)))
        return tuple(map(Cell, (*texts, duration(float(run.seconds.sum())))))

    columns = (
        Column("Method", numeric=False),
        Column("Rounds"),
        Column("State", numeric=False),
        Column("Accuracy (%)"),
        Column("‖w‖"),
        Column("Sent"),
        Column("Time"),
    )
    telling = [one for _, one in here if not one.early] or [one for _, one in here]
    protocols = dict.fromkeys(str(one.run.summary["protocol"]) for one in telling if "protocol" in one.run.summary)
    notes = [f"Accuracy: {protocol}" for protocol in protocols]
    if any(one.run.status not in ("finished", "diverged") for _, one in here):
        notes.append("Of a run that was interrupted it is the last regular evaluation.")
    if any(one.short for _, one in here):
        notes.append("Shortened: stopped before the paper's rounds, with schedules unchanged.")
    notes.append(
        "‖w‖ is the norm of the last global model; sent is what all clients got and gave, as it was serialised; "
        "time is that of the rounds."
    )
    far = tuple(row(name, one) for name, one in here if not one.early)
    few = tuple(row(name, one) for name, one in here if one.early)
    groups = [("", far), ("first rounds only: enough for what a round costs, not for an accuracy", few)]
    content = tuple((name, rows) for name, rows in groups if rows)
    return Table("runs", "How far each run came", columns, content, tuple(notes))


def _accuracy(run: Run) -> tuple[float, int]:
    """In percent, and after how many rounds: what the run reports or, before its end, its last evaluation."""
    value = run.reported("accuracy")
    if value is not None:
        return 100 * value, run.length
    done, last = list(_evaluations(run).items())[-1]
    return 100 * last, done


def _evaluations(run: Run) -> dict[int, float]:
    """The regular evaluations: accuracy by round."""
    every = run.section("training").get("eval_every", 1)
    values = run.evaluations.get("accuracy", np.full(len(run.evaluated), np.nan))
    found = zip(run.evaluated.tolist(), values.tolist(), strict=True)
    return {done: value for done, value in found if done % every == 0 and math.isfinite(value)}


def _accuracies(here: Sequence[tuple[str, _Ran]]) -> Table:
    found = [_evaluations(one.run) for _, one in here]
    rows = [
        (f"{done:,}", *(f"{100 * values[done]:.1f}" if done in values else DASH for values in found))
        for done in _places(here)
    ]
    later = sorted({done for _, one in here for done in one.published})
    theirs = [(f"{done:,}", *(one.published.get(done, DASH) for _, one in here)) for done in later]
    groups = [("", rows), ("printed in the paper, at its own rounds", theirs)] if theirs else [("", rows)]
    note = "Single evaluations, every sample of the test set; no means over rounds."
    return _by_round("Accuracy (%) on the way", here, groups, note)


def _norms(here: Sequence[tuple[str, _Ran]]) -> Table:
    def norm(run: Run, done: int) -> str:
        values = run.rounds.get("norms.params")
        known = values is not None and done <= len(values) and math.isfinite(values[done - 1])
        return f"{values[done - 1]:.2f}" if known and values is not None else DASH

    rows = [(f"{done:,}", *(norm(one.run, done) for _, one in here)) for done in _places(here)]
    return _by_round(
        "Norm of the global model on the way",
        here,
        [("", rows)],
        "A norm that grows without end is the sign of a dual that explodes.",
    )


def _places(here: Sequence[tuple[str, _Ran]]) -> list[int]:
    """Rounds to show: a few of those evaluated, the last among them."""
    found = sorted({done for _, one in here for done in _evaluations(one.run)})
    step = math.ceil(len(found) / EVALUATIONS)
    return found[::-1][::step][::-1]


def _by_round(
    title: str, here: Sequence[tuple[str, _Ran]], groups: Sequence[tuple[str, Sequence[tuple[str, ...]]]], note: str
) -> Table:
    columns = (Column("After rounds"), *(Column(name) for name, _ in here))
    content = tuple((name, tuple(tuple(map(Cell, row)) for row in rows)) for name, rows in groups)
    return Table("course", title, columns, content, (note,))


# ---- cell by cell -----------------------------------------------------------------------------------------------


def _cell_by_cell(answers: Answers) -> list[str]:
    """A table an exhibit of what was compared; factors that a table above has shown are not shown again."""
    lines = ["## Cell by cell", "", RULE, ""]
    factors: set[tuple[str, str]] = set()
    repeated: list[str] = []
    for exhibit, entries in answers:
        compared = [one for one in entries if one.telling and one.verdict in (*VERDICTS, "not judged")]
        fresh = [one for one in compared if _factor(one) not in factors]
        factors |= {factor for one in compared if (factor := _factor(one)) is not None}
        if fresh:
            found = table(exhibit, fresh)
            kept = tuple(note for note in found.notes if note != RULE)
            lines += [f"### {exhibit.label}", "", replace(found, title=exhibit.about, notes=kept).to_markdown()]
        elif compared:
            repeated.append(f"`{exhibit.label}`")
    if repeated:
        lines += [f"The same factors also stand in {', '.join(repeated)}.", ""]
    open_cells = [one for _, entries in answers for one in entries if one.telling and one.verdict == "no verdict"]
    if open_cells:
        lines += ["### Shown without a verdict", "", _open_table(open_cells).to_markdown()]
    drawn = [line for exhibit, entries in answers for line in _pictures(exhibit, entries)]
    if drawn:
        lines += ["### Pictures", "", "Without published values, hence without a verdict.", "", *drawn, ""]
    return lines


def _open_table(entries: Sequence[Entry]) -> Table:
    rows = [(Cell(one.cell.id), *table_row(one)[1:3], table_row(one)[-1]) for one in entries]
    columns = (Column("Cell", numeric=False), Column("Published"), Column("Ours"), Column("Why", numeric=False))
    title = "Not the paper's figures: its own belong to the whole run, or are not printed"
    return Table("open", title, columns, (("", tuple(rows)),))


def _factor(one: Entry) -> tuple[str, str] | None:
    """What a round tells for good, whatever table it stands in."""
    return (one.cell.row, one.cell.quantity) if paper.QUANTITIES[one.cell.quantity].exact else None


def _pictures(exhibit: Exhibit, entries: Sequence[Entry]) -> Iterator[str]:
    drawn = [one for one in entries if one.telling and one.verdict == "drawn"]
    if drawn:
        rounds = [one.rounds for one in drawn if one.rounds is not None]
        short = f", after {min(rounds):,} rounds only" if rounds else ""
        names = ", ".join(dict.fromkeys(one.cell.row for one in drawn))
        about = paper.QUANTITIES[drawn[0].cell.quantity].about
        yield f"- `{exhibit.label}`, {about}: {names} ({len(drawn)} of {len(exhibit.cells)} cells{short})"


# ---- what was not run, and how the rest was ---------------------------------------------------------------------


def _not_run(answers: Answers, needs: Mapping[str, str]) -> list[str]:
    rows = []
    for exhibit, entries in answers:
        left = sum(not one.telling for one in entries)
        if left:
            rows.append(f"| `{exhibit.label}` | {left} of {len(entries)} | {needs.get(exhibit.label, DASH)} |")
    heads = ["| what | cells without an answer | all of it needs |", "|---|---:|---|"]
    return ["## What was not run", "", *heads, *rows, ""] if rows else []


def _how(runs: Sequence[Run]) -> list[str]:
    lines = ["## How it was run", "", "| run | seed | time a round | command |", "|---|---:|---:|---|"]
    for run in runs:
        command = run.environment.get("command")
        words = shlex.join(map(str, command)) if isinstance(command, list) else ""
        median = float(np.median(run.seconds)) if len(run.seconds) else math.nan
        lines.append(f"| {markdown_text(run.name)} | {run.seed} | {duration(median)} | `fedgloss {_code(words)}` |")
    lines += ["", "The same command goes on where a run was stopped; `--rounds` says how far.", ""]
    for title, about in (("Machine and versions", _machine), ("Data", _sources)):
        found = Counter(text for run in runs if (text := about(run.environment)))
        lines += [f"- {title} ({count} of {_count(len(runs), 'run')}): {text}" for text, count in found.items()]
    return [*lines, ""]


def _machine(about: Mapping[str, Any]) -> str:
    code = f" ({about['code']})" if about.get("code") else ""
    versions = [f"fedgloss {about.get('fedgloss', '?')}{code}"]
    versions += [f"{name} {about[name]}" for name in ("python", "torch", "numpy") if name in about]
    machine = [f"{about.get('cpu', '?')}, {about.get('cores', '?')} cores", about.get("instruction_set", "")]
    return markdown_text("; ".join([", ".join(versions), ", ".join(filter(None, map(str, machine)))]))


def _sources(about: Mapping[str, Any]) -> str:
    data = about.get("data")
    sources = data.get("sources") if isinstance(data, dict) else None
    found = [one for one in sources if isinstance(one, dict)] if isinstance(sources, list) else []
    return markdown_text("; ".join(f"{one.get('file')}, SHA-256 {one.get('sha256')}" for one in found))


def _alt(figure: str) -> str:
    return Path(figure).stem.replace("-", " ")


def _code(text: str) -> str:
    return " ".join(text.replace("|", "/").replace("`", "'").split())
