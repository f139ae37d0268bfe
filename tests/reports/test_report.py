"""The page as a file: complete, closed to the network, and every foreign text in it text."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.command import fedgloss
from reports.small_runs import make_run

from fedgloss.reports.html import page, page_data
from fedgloss.reports.latex import write_courses, write_latex
from fedgloss.reports.results import provenance
from fedgloss.reports.runs import read_runs
from fedgloss.reports.study import arrange
from fedgloss.reports.tables import Cell, Column, Table

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\u2028"


class Outline(HTMLParser):
    """What a browser would make of the page: its elements, and the text of each script."""

    def __init__(self, content: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(content)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self._inside = True

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def written(path: Path) -> tuple[Outline, dict[str, Any]]:
    outline = Outline(path.read_text())
    return outline, json.loads(outline.scripts[0])


def unpacked(packed: dict[str, str]) -> Any:
    ((kind, text),) = packed.items()
    return np.frombuffer(base64.b64decode(text), dtype=f"<{kind}")


def test_the_command_writes_a_page_that_holds_everything(study: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "deep" / "page.html"
    answer = fedgloss(capsys, "report", study, "--out", out)
    assert (answer.code, answer.out.strip(), answer.err) == (0, str(out), "")
    outline, data = written(out)
    assert len(outline.scripts) == 3  # data, plotly, the page's own
    assert len(data["runs"]) == 12
    (setting,) = data["settings"]
    assert {q["id"] for q in setting["quantities"]} >= {"accuracy", "test_loss", "norm_params", "norm_dual"}
    assert len(setting["surfaces"]) == 9
    assert len(setting["eigenvalues"]) == 9
    assert setting["locals"]
    assert setting["densities"]
    assert setting["interpolations"]
    assert setting["federation"]["classes"] == ["zero", "one", "two"]
    assert setting["tables"]["results"]["csv"].startswith("group,Method,")
    curve = next(c for c in setting["curves"]["accuracy"] if c["method"] == 0)["runs"][0]
    first = read_runs([study / "fedavg-seed0"])[0][0]
    assert unpacked(curve["values"]) == pytest.approx(100 * first.evaluations["accuracy"], rel=1e-6)
    assert unpacked(curve["bytes"]).tolist() == [first.travelled(int(n)) for n in first.evaluated]


def test_the_page_may_ask_nothing_of_any_network(study: Path) -> None:
    runs, skipped = read_runs([study / "fedavg-seed0"])
    outline = Outline(page(page_data(runs, skipped)))
    (policy,) = [a["content"] for tag, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in str(policy).split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["connect-src"] == "'none'"
    for script in outline.scripts[1:]:  # only these two run, and only as they are
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in rules["script-src"]
    loading = ("src", "href", "action", "data", "srcset", "poster")
    loads = {value for _, a in outline.tags for key, value in a.items() if key in loading}
    assert all(value is not None and value.startswith("#") for value in loads)
    live = Outline(page(page_data(runs, skipped, live=2.0), live=True))
    assert any("connect-src 'self'" in str(a.get("content")) for _, a in live.tags)


def test_markup_in_names_notes_and_classes_stays_text(tmp_path: Path, capsys) -> None:
    name = "<img src=x onerror=alert(3)>"
    make_run(tmp_path / "runs" / name, rounds=3, note=EVIL, classes=(EVIL, "<b>one</b>", "two"))
    (tmp_path / "runs" / "<i>broken").mkdir()
    (tmp_path / "runs" / "<i>broken" / "config.toml").write_text("<u>")
    answer = fedgloss(capsys, "report", tmp_path / "runs", "--out", tmp_path / "page.html")
    assert answer.code == 0
    content = (tmp_path / "page.html").read_text()
    outline, data = written(tmp_path / "page.html")
    assert "<img" not in content.replace(outline.scripts[1], "")
    assert not [tag for tag, _ in outline.tags if tag in ("img", "i", "b", "u")]
    assert data["runs"][0]["note"] == EVIL
    assert data["settings"][0]["federation"]["classes"][0] == EVIL
    assert data["skipped"][0][0].endswith("<i>broken")
    script = outline.scripts[2]
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


def test_broken_and_foreign_folders_are_named_and_skipped(study: Path, tmp_path: Path, capsys) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(study / "fedavg-seed0", broken)
    (broken / "rounds.jsonl").write_text("{}\n")
    out = tmp_path / "page.html"
    answer = fedgloss(capsys, "report", broken, tmp_path / "nowhere", study / "fedsam-seed0", "--out", out)
    assert answer.code == 0
    lines = answer.err.splitlines()
    assert lines[0] == f"skipped {tmp_path / 'nowhere'}: no such folder"
    assert lines[1].startswith(f"skipped {broken}: rounds.jsonl: ")
    _, data = written(out)
    assert [path for path, _ in data["skipped"]] == [str(tmp_path / "nowhere"), str(broken)]
    assert [run["status"] for run in data["runs"]] == ["finished"]


def test_a_run_given_twice_is_counted_once_and_named(study: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(study / "fedsam-seed0", tmp_path / "copy")
    answer = fedgloss(capsys, "report", study / "fedsam-seed0", tmp_path / "copy", "--out", tmp_path / "page.html")
    assert answer.code == 0
    assert answer.err.splitlines() == [
        f"skipped {tmp_path / 'copy'}: repeats {study / 'fedsam-seed0'}: method, setting and seed are the same"
    ]
    _, data = written(tmp_path / "page.html")
    assert len(data["runs"]) == 1
    assert data["settings"][0]["curves"]["accuracy"][0]["mean"] is None  # one seed has no mean and no spread


def test_nothing_to_report_writes_nothing(tmp_path: Path, capsys) -> None:
    (tmp_path / "empty").mkdir()
    answer = fedgloss(capsys, "report", tmp_path / "empty", "--out", tmp_path / "page.html")
    assert answer.code == 2
    assert answer.err == f"error: {tmp_path / 'empty'}: is not a run, nor a folder of runs\n"
    assert not (tmp_path / "page.html").exists()


def test_a_place_that_cannot_be_written_is_one_line(study: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("")
    answer = fedgloss(capsys, "report", study / "fedavg-seed0", "--out", tmp_path / "file" / "page.html")
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert str(tmp_path / "file") in answer.err


def test_runs_that_have_no_round_yet_have_a_page(study: Path, tmp_path: Path) -> None:
    shutil.copytree(study / "fedavg-seed0", tmp_path / "run")
    for name in ("rounds.jsonl", "timings.jsonl", "summary.json"):
        (tmp_path / "run" / name).unlink()
    runs, skipped = read_runs([tmp_path / "run"])
    data = page_data(runs, skipped)
    assert data["settings"][0]["curves"] == {}
    page(data)
    page(page_data([], []))


def test_provenance_marks_what_differs(study: Path, capsys, tmp_path: Path) -> None:
    runs, skipped = read_runs([study / "fedavg-seed0", study / "fedavg-seed1", study / "fedsam-seed0"])
    data = page_data(runs, skipped)
    assert {"algorithm.name", "training.seed"} <= set(data["differing"])
    assert "local.lr" not in data["differing"]
    assert "local.lr" in data["tables"]["shared"]["csv"]
    assert data["runs"][0]["redo"].startswith("fedgloss run ")
    of_sites = replace(runs[0], config={**runs[0].config, "data": {"name": "sites"}})
    assert provenance(of_sites)["redo"].startswith("flwr run ")
    assert data["runs"][0]["protocol"]
    machines = data["tables"]["machines"]["csv"]
    assert "torch" in machines


def test_latex_tables_and_figures(study: Path, tmp_path: Path, capsys) -> None:
    out, folder = tmp_path / "page.html", tmp_path / "tex"
    answer = fedgloss(capsys, "report", study, "--out", out, "--latex", folder)
    assert answer.code == 0
    tex, pdf = sorted(folder.glob("*.tex")), sorted(folder.glob("*.pdf"))
    assert answer.out.splitlines()[0] == f"{folder}: {len(tex) + len(pdf)} tables and figures"
    assert {p.name.split("-blobs")[0] for p in pdf} >= {
        "accuracy", "accuracy-bytes", "test-loss", "norm-params", "norm-dual", "eigenvalues", "density", "surface",
        "interpolation", "division", "clients", "contours", "local", "entropy", "sizes", "vectors", "seconds",
    }  # fmt: skip
    assert {p.name.split("-blobs")[0] for p in tex} == {
        "results", "paired", "paired-curvature", "measures", "costs",
        "differences.tex", "shared.tex", "machines.tex",
    }  # fmt: skip
    assert all(p.read_bytes().startswith(b"%PDF-") for p in pdf)
    (results,) = [p for p in tex if p.name.startswith("results")]
    text = results.read_text()
    assert r"FedGloSS-SAM & " in text
    assert r"\ding{55}" in text
    assert text.count("{") == text.count("}")
    assert all(p.read_text().isascii() for p in tex)  # no character that an engine would have to be told of
    assert not [p for p in folder.iterdir() if p.suffix not in (".tex", ".pdf")]
    before = {p: p.read_bytes() for p in pdf}
    write_latex(read_runs([study])[0], folder)
    assert {p: p.read_bytes() for p in pdf} == before


def test_courses_are_pictures_for_a_page(study: Path, tmp_path: Path) -> None:
    (setting,) = arrange(read_runs([study])[0])
    drawn = write_courses(setting, tmp_path / "deep")
    assert [p.name for p in drawn] == ["accuracy-blobs-alpha-0-small.svg", "norm-params-blobs-alpha-0-small.svg"]
    before = [p.read_bytes() for p in drawn]
    assert all(b"<svg" in content for content in before)
    assert [p.read_bytes() for p in write_courses(setting, tmp_path / "deep")] == before


def test_a_setting_that_diverged_unevaluated_is_still_one_of_accuracies(study: Path) -> None:
    runs, _ = read_runs([study / "feddyn-seed0", study / "feddyn-seed1"])
    assert not any(run.evaluations for run in runs)
    (setting,) = page_data(runs, [])["settings"]
    assert setting["metric"] == "accuracy"
    assert setting["tables"]["results"]["columns"][1]["name"] == "Accuracy (%)"


def test_tables_leave_with_every_digit_and_no_formula() -> None:
    cell = Cell("12.3 ± 0.1", {"mean": 12.3456789, "sd": float("nan")})
    table = Table(
        "t", "a|b <i>", (Column("Name", numeric=False), Column("Acc", ("mean", "sd"))),
        (("g_1", ((Cell("=cmd()|x"), cell), (Cell("\\input{/etc/passwd}%"), Cell("–", {}, bold=True)))),),
        ("a note",),
    )  # fmt: skip
    rows = list(csv.reader(io.StringIO(table.to_csv())))
    assert rows == [
        ["group", "Name", "Acc mean", "Acc sd"],
        ["g_1", "'=cmd()|x", "12.3456789", ""],
        ["g_1", "\\input{/etc/passwd}%", "", ""],
    ]
    markdown = table.to_markdown()
    assert r"=cmd()\|x" in markdown
    assert r"\<i\>" in markdown
    assert "**–**" in markdown
    latex = table.to_latex()
    assert r"\textbackslash{}input\{/etc/passwd\}\%" in latex
    assert r"12.3 $\pm$ 0.1" in latex
    assert r"g\_1" in latex


def test_latex_takes_no_text_for_an_argument_or_a_missing_glyph() -> None:
    text = Table("t", "t", (Column("a"),), (("", ((Cell('["x"]'),),)),)).to_latex()
    assert "{[}''x'']" in text  # a bracket after a line's end is its optional argument, OT1 has no straight quote


def test_other_commands_do_not_load_the_drawing_libraries() -> None:
    code = (
        "import sys; from fedgloss.cli import main; sys.argv = ['fedgloss', 'list']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('loaded:', *[m for m in ('plotly', 'matplotlib', 'fedgloss.reports.html') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded:"


def test_the_title_is_escaped(tmp_path: Path) -> None:
    data = {**page_data([], []), "title": EVIL}
    assert f"<title>{html.escape(EVIL)}</title>" in page(data)
