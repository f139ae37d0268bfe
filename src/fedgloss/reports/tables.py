"""Tables as values, and the three ways they leave: CSV with every digit, Markdown, LaTeX.

Text in a table may come from anywhere (run names, notes, class names): each way out escapes it.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CROSS = "✗"
DASH = "–"


@dataclass(frozen=True)
class Cell:
    """What is shown; ``values`` is what it stands for, in full precision, for whoever computes on."""

    text: str
    values: Mapping[str, float | int | str] = field(default_factory=dict)
    bold: bool = False
    marked: bool = False
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A heading. ``parts`` names the values its cells hold; none: the text alone."""

    name: str
    parts: tuple[str, ...] = ()
    numeric: bool = True
    group: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of cells below columns, in named groups, with notes on how to read it."""

    id: str
    title: str
    columns: tuple[Column, ...]
    groups: tuple[tuple[str, tuple[tuple[Cell, ...], ...]], ...]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> list[tuple[Cell, ...]]:
        return [row for _, rows in self.groups for row in rows]

    def to_csv(self) -> str:
        """One line a row; a cell of several values becomes several columns."""
        grouped = any(name for name, _ in self.groups)
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        heads = [
            " ".join(part for part in (column.group, column.name, name) if part)
            for column in self.columns
            for name in (column.parts or ("",))
        ]
        writer.writerow((["group"] if grouped else []) + heads)
        for name, rows in self.groups:
            for row in rows:
                values: list[Any] = [_inert(name)] if grouped else []
                for column, cell in zip(self.columns, row, strict=True):
                    values += [_plain(cell.values.get(p)) for p in column.parts] or [_inert(cell.text)]
                writer.writerow(values)
        return out.getvalue()

    def to_markdown(self) -> str:
        heads = [" ".join(part for part in (column.group, column.name) if part) for column in self.columns]
        lines = [
            f"**{markdown_text(self.title)}**",
            "",
            "| " + " | ".join(map(markdown_text, heads)) + " |",
            "|" + "|".join("---:" if column.numeric else ":---" for column in self.columns) + "|",
        ]
        for name, rows in self.groups:
            if name:
                lines.append(f"| *{markdown_text(name)}* |" + " |" * (len(self.columns) - 1))
            for row in rows:
                shown = [f"**{markdown_text(c.text)}**" if c.bold else markdown_text(c.text) for c in row]
                lines.append("| " + " | ".join(shown) + " |")
        return "\n".join([*lines, "", *(f"{markdown_text(note)}\n" for note in self.notes)])

    def to_latex(self) -> str:
        r"""A ``table`` for LaTeX; needs ``\usepackage{booktabs,pifont}``."""
        layout = "".join("r" if column.numeric else "l" for column in self.columns)
        lines = [
            "% needs \\usepackage{booktabs,pifont}",
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{latex(self.title)}}}",
            f"\\label{{tab:{self.id}}}",
            f"\\begin{{tabular}}{{{layout}}}",
            "\\toprule",
            *_latex_spans(self.columns),
            " & ".join(latex(column.name) for column in self.columns) + r" \\",
        ]
        for name, rows in self.groups:
            lines.append("\\midrule")
            if name:
                lines.append(f"\\multicolumn{{{len(self.columns)}}}{{l}}{{\\textit{{{latex(name)}}}}} \\\\")
            for row in rows:
                shown = [f"\\textbf{{{latex(c.text)}}}" if c.bold else latex(c.text) for c in row]
                lines.append(" & ".join(shown) + r" \\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        if self.notes:
            lines += ["", f"\\smallskip\\parbox{{\\linewidth}}{{\\footnotesize {latex(' '.join(self.notes))}}}"]
        return "\n".join([*lines, "\\end{table}", ""])

    def to_json(self) -> dict[str, Any]:
        """For the page, with its ways out ready made."""
        return {
            "id": self.id,
            "title": self.title,
            "columns": [{"name": c.name, "numeric": c.numeric, "group": c.group} for c in self.columns],
            "groups": [
                {"name": name, "rows": [[_cell_json(cell) for cell in row] for row in rows]}
                for name, rows in self.groups
            ],
            "notes": list(self.notes),
            "csv": self.to_csv(),
            "markdown": self.to_markdown(),
            "latex": self.to_latex(),
        }


def _cell_json(cell: Cell) -> str | dict[str, Any]:
    found: dict[str, Any] = {"text": cell.text}
    found |= {key: True for key in ("bold", "marked") if getattr(cell, key)}
    found |= {"note": cell.note} if cell.note else {}
    return cell.text if len(found) == 1 else found


def _plain(value: float | int | str | None) -> float | int | str:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ""
    return _inert(value) if isinstance(value, str) else value


def _inert(text: str) -> str:
    """Text that no spreadsheet takes for a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def markdown_text(text: str) -> str:
    for character in "\\`*_[]<>|#~$":
        text = text.replace(character, "\\" + character)
    return " ".join(text.split())


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "±": r"$\pm$", "×": r"$\times$", "✗": r"\ding{55}", "–": "--",
    "−": "$-$", "√": r"$\surd$", "·": r"$\cdot$", "≥": r"$\ge$", "≤": r"$\le$", "‖": r"$\Vert$", "…": r"\ldots{}",
    "α": r"$\alpha$", "β": r"$\beta$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "λ": r"$\lambda$",
    "μ": r"$\mu$", "ρ": r"$\rho$", "σ": r"$\sigma$", "₁": "$_1$", "²": "$^2$", "⁺": "$^+$",
}  # fmt: skip


def latex(text: str) -> str:
    r"""Text as LaTeX shows it, whatever it holds.

    >>> latex("50% of α_1 ± 2"), latex(r"\input{x}")
    ('50\\% of $\\alpha$\\_1 $\\pm$ 2', '\\textbackslash{}input\\{x\\}')
    """
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def _latex_spans(columns: Sequence[Column]) -> list[str]:
    """The line of headings that span several columns."""
    if not any(column.group for column in columns):
        return []
    spans: list[tuple[str, int]] = []
    for column in columns:
        if spans and column.group and spans[-1][0] == column.group:
            spans[-1] = (column.group, spans[-1][1] + 1)
        else:
            spans.append((column.group, 1))
    shown = [f"\\multicolumn{{{width}}}{{c}}{{{latex(name)}}}" for name, width in spans]
    return [" & ".join(shown) + r" \\"]
