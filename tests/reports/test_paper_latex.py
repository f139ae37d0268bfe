"""The package's numbers against the paper's own LaTeX: every table parsed, both directions, by meaning.

A LaTeX entry finds its place through the words of its row and column headers, never by counting, so a value in the
wrong cell is noticed as well as a wrong value. FEDGLOSS_PAPER_TEX names the source; without it the tests skip.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedgloss.reports import paper

SOURCE = Path(
    os.environ.get("FEDGLOSS_PAPER_TEX") or Path(__file__).parents[2].parent / "shared" / "paper" / "fedgloss.tex"
)


@pytest.fixture(scope="module")
def tex() -> str:
    if not SOURCE.is_file():
        pytest.skip(f"the paper's LaTeX is not at {SOURCE}; set FEDGLOSS_PAPER_TEX to its path")
    return re.sub(r"(?<!\\)%.*", "", SOURCE.read_text(encoding="utf-8"))


# ---- a small reader of LaTeX tables -----------------------------------------------------------------------------

WORDS = {
    r"\cifarten": "cifar10",
    r"\cifar": "cifar100",
    r"\gld": "landmarks",
    r"\ours": "fedgloss",
    r"\naiveours": "naive-fedgloss",
    r"\xmark": "X",
    r"\cmark": "V",
    r"\pm": "±",
    r"\times": "x",
    r"\alpha": "alpha",
    r"\lambda": "lambda",
    r"\rho": "rho",
    r"\mu": "mu",
    r"\beta": "beta",
    r"\eta": "eta",
    r"\cdot": "*",
    r"\downarrow": "",
    r"\quad": " ",
    r"\,": " ",
    r"\ ": " ",
    r"\widetilde": "previous-",
}
WORDS |= {rf"\{name}": name for name in ("fedsmoo", "scaffold", "fedgamma", "fedspeed", "fedsam", "feddyn")}
WORDS |= {rf"\{name}": name for name in ("fedavg", "fedprox", "sam", "sgd")}


def argument(text: str, start: int) -> tuple[str, int]:
    """The {...} that opens at ``start``, and where it ends."""
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[start + 1 : place], place + 1
    raise AssertionError(f"unbalanced braces: {text[start : start + 60]}")


def command(text: str, name: str, arguments: int) -> tuple[list[str], str, str] | None:
    """The arguments of the first \\name, with the text before and after it."""
    match = re.search(rf"\\{name}(\[[^]]*\])?(?=\{{)", text)
    if match is None:
        return None
    found, place = [], match.end()
    for _ in range(arguments):
        one, place = argument(text, place)
        found.append(one)
    return found, text[: match.start()], text[place:]


def plain(text: str) -> str:
    """What a reader sees, in lower case: decoration gone, symbols as words."""
    for name, arguments in (("textcolor", 2), ("rotatebox", 2), ("multirow", 3), ("cite", 1)):
        while found := command(text, name, arguments):
            text = f"{found[1]}{'' if name == 'cite' else found[0][-1]}{found[2]}"
    text = re.sub(r"\\(boldmath|scriptscriptstyle|textbf|textit|texttt|textsc|underline)(?![a-z])", "", text)
    text = re.sub(
        r"\\([a-z]+|,| )",
        lambda match: WORDS[match[0]] if match[0] in WORDS else pytest.fail(f"unknown LaTeX {match[0]}"),
        text,
        flags=re.IGNORECASE,
    )
    return re.sub(r"\s+", " ", re.sub(r"[${}]", "", text)).strip()


def split(text: str, separator: str) -> list[str]:
    """Split where no brace is open."""
    pieces, depth, last = [], 0, 0
    for match in re.finditer(rf"[{{}}]|{re.escape(separator)}", text):
        if match[0] == separator:
            if depth == 0:
                pieces.append(text[last : match.start()])
                last = match.end()
        else:
            depth += 1 if match[0] == "{" else -1
    return [*pieces, text[last:]]


@dataclass
class Grid:
    """A tabular with its spans filled in: ``head`` above the first rule, ``body`` with the rule-separated block."""

    head: list[dict[int, str]]
    body: list[tuple[int, dict[int, str]]]

    def heading(self, column: int) -> str:
        return " ".join(dict.fromkeys(row[column] for row in self.head if column in row)).lower()


def grid(tex: str, label: str) -> Grid:
    end = tex.rindex(r"\end{tabular}", 0, tex.index(rf"\label{{{label}}}"))
    start = tex.rindex(r"\begin{tabular}", 0, end)
    _, start = argument(tex, start + len(r"\begin{tabular}"))
    inside = re.sub(
        r"\\cline\{[^}]*\}|\\cdashline\{[^}]*\}(\[[^]]*\])?|\\hdashline|\\(top|bottom)rule", "", tex[start:end]
    )
    head: list[dict[int, str]] = []
    body: list[tuple[int, dict[int, str]]] = []
    spans: dict[int, tuple[int, str]] = {}
    block = -1
    for line in split(inside, r"\\"):
        block += line.count(r"\midrule")
        line = line.replace(r"\midrule", "")
        if not line.strip():
            continue
        row, column = {}, 0
        for entry in split(line, "&"):
            width = 1
            if found := command(entry, "multicolumn", 3):
                width, entry = int(found[0][0]), found[0][2]
            if (found := command(entry, "multirow", 3)) and int(found[0][0]) > 1:
                spans[column] = (int(found[0][0]), plain(entry))
            text = plain(entry)
            for place in range(column, column + width):
                if text:
                    row[place] = text
            column += width
        for place, (left, text) in list(spans.items()):
            row.setdefault(place, text)
            spans[place] = (left - 1, text)
            if left == 1:
                del spans[place]
        if block < 0:
            head.append(row)
        else:
            body.append((block, row))
    return Grid(head, body)


# ---- what an entry is about -------------------------------------------------------------------------------------

Key = tuple[object, ...]
METHODS = (
    "naive-fedgloss",
    "fedgloss",
    "fedavg",
    "fedprox",
    "feddyn",
    "scaffold",
    "fedsam",
    "fedspeed",
    "fedgamma",
    "fedsmoo",
)
CLIENTS = dict(paper.FIXED_CLIENTS)


def dataset_of(words: str) -> str | None:
    if re.search(r"landmarks|gldv2", words):
        return "landmarks"
    if re.search(r"cifar-?100|\bc100\b", words):
        return "cifar100"
    return "cifar10" if re.search(r"cifar-?10|\bc10\b", words) else None


def network_of(words: str) -> str | None:
    return next((name for name in ("cnn", "resnet18", "mobilenetv2") if name in words), None)


def alpha_of(words: str) -> float | None:
    match = re.search(r"alpha=([\d.]+)", words)
    return float(match[1]) if match else None


def quantity_of(words: str, usual: str | None) -> str | None:
    if re.search(r"comm(\.|unication).*cost", words) and "rounds" not in words:
        return "communication"
    for pattern, quantity in (
        (r"local computation", "gradients"),
        (r"rounds", "rounds"),
        (r"cost", "cost"),
        (r"acc@50", "accuracy_half"),
        (r"lambda_1, ?l", "lambda_1_local"),
        (r"lambda_1, ?g", "lambda_1_global"),
        (r"lambda_1", "lambda_1"),
        (r"acc(\.|uracy|@100)", "accuracy"),
    ):
        if re.search(pattern, words):
            return quantity
    return usual


def method_of(words: str) -> str:
    return next(name for name in METHODS if re.search(rf"(?<![-\w]){name}(?!\w)", words))


def client_of(method: str, words: str) -> str:
    """From 'Client SAM', 'FedDyn (SAM)' or 'FedDyn + SAM'; without a word it is SGD."""
    if method in CLIENTS:
        return CLIENTS[method]
    rest = words.replace(method, "")
    return "sam" if re.search(r"\bsam\b", rest) else "sgd"


@dataclass(frozen=True)
class Reading:
    """What a table leaves to its caption and text: network, alphas, quantity, and FedGloSS's clients."""

    network: str | None = None
    alpha: Callable[[str, str, int], float | None] = lambda dataset, network, block: None
    quantity: str | None = None
    fedgloss_client: str | None = None


def skewed(dataset: str, network: str, block: int) -> float | None:
    mild = network == "resnet18" or block == 1
    return (0.05 if dataset == "cifar10" else 0.5) if mild else 0.0


READINGS = {
    "tab:sota_cnn": Reading("cnn", quantity="accuracy"),
    "tab:sota_r18": Reading("resnet18", lambda dataset, network, block: skewed(dataset, network, 0)),
    "tab:sota_gld": Reading("mobilenetv2", fedgloss_client="sam"),
    "tab:comm_eff_2": Reading(),
    "tab:comm_eff_others": Reading(),
    "tab:naive_comparison": Reading("cnn", skewed, fedgloss_client="sam"),
    "tab:ablation_global_sharpness": Reading(
        None, lambda dataset, network, block: skewed(dataset, network, 0), "accuracy"
    ),
    "tab:sota_cnn_eig": Reading("cnn"),
    "tab:other-alpha": Reading("cnn"),
    "tab:hom": Reading("cnn"),
}


def printed(label: str, tex: str) -> dict[Key, str]:
    """Every value of a result table, keyed by preset, alpha, method, client, ADMM and quantity."""
    reading, table = READINGS[label], grid(tex, label)
    found: dict[Key, str] = {}

    def put(key: Key, text: str) -> None:
        assert found.setdefault(key, text) == text, f"{label}: {key} comes twice"

    for block, row in table.body:
        titles = [
            column for column in row if re.search(r"method|admm|consistency|flatness|opt\b", table.heading(column))
        ]
        titles += [column for column in row if not table.heading(column).strip()]
        words = " ".join(row[column] for column in sorted(titles)).lower()
        if "centralized" in words:
            for column, dataset in ((2, "cifar10"), (6, "cifar100")):
                assert dataset_of(table.heading(column)) == dataset
                for value, name in re.findall(r"([\d.]+) *(previous-sam|sam)", row[column]):
                    method = "sam-previous" if name == "previous-sam" else "sam"
                    put((f"{dataset}-cnn", None, method, "sam", True, "accuracy"), value)
            continue
        method = method_of(words)
        client = client_of(method, words)
        if method.endswith("fedgloss") and reading.fedgloss_client:
            client = reading.fedgloss_client
        admm = method != "fedgloss" or "admm" not in " ".join(map(table.heading, row)) or "v" in words.split()
        for column, text in row.items():
            if column in titles:
                continue
            heading = table.heading(column)
            quantity = quantity_of(heading, reading.quantity)
            assert quantity, f"{label}: no meaning in {heading!r}"
            if quantity == "communication":
                put((None, None, method, client, admm, quantity), text)
                continue
            network = reading.network or network_of(heading) or ""
            dataset = dataset_of(heading) or {"mobilenetv2": "landmarks", "cnn": "cifar10"}[network]
            alpha = alpha_of(heading)
            if alpha is None:
                alpha = reading.alpha(dataset, network, block)
            key = (f"{dataset}-{network}", alpha, method, client, admm)
            both = re.fullmatch(r"(\S+) ?\( ?(\S+) ?x\)", text)
            if label == "tab:comm_eff_others" and quantity == "rounds":
                put((*key, "speed_up"), f"{both[2]}x" if both else text)
                text = both[1] if both else text
            put((*key, quantity), re.sub(r"\s", "", text))
    return found


def known(label: str) -> dict[Key, str]:
    """The same from the package's data."""
    found: dict[Key, str] = {}
    for cell in paper.table(label).cells:
        setting = cell.setting
        admm = dict(setting.changes).get("admm", True)
        place = (None, None) if cell.quantity == "communication" else (setting.preset, setting.alpha)
        key = (*place, setting.method, setting.client, admm, cell.quantity)
        assert cell.published is not None
        assert key not in found, f"{cell.id} has the meaning of another cell"
        found[key] = cell.published.text
    return found


@pytest.mark.parametrize("label", READINGS)
def test_every_value_is_the_papers(label: str, tex: str) -> None:
    assert known(label) == printed(label, tex)


@pytest.mark.parametrize("label", [*READINGS, "tab:eigs_fedgloss"])
def test_no_number_is_left_over(label: str, tex: str) -> None:
    """The same numbers, each as often, without any reading of headers."""
    end = tex.rindex(r"\end{tabular}", 0, tex.index(rf"\label{{{label}}}"))
    body = tex[tex.index(r"\midrule", tex.rindex(r"\begin{tabular}", 0, end)) : end]
    layout = r"\\multirow\{\d\}|\\multicolumn\{\d\}|\\rotatebox\S*?\{90\}|\\c(dash)?line\{[-\d]+\}|\[1pt/3pt\]"
    layout += r"|\$\d\\times\$"  # the communication factor, which comes once per block
    wanted = [cell for cell in paper.table(label).cells if cell.quantity != "communication"]
    texts = [cell.published.text for cell in wanted if cell.published]
    number = r"\d+(?:\.\d+)?"
    assert Counter(re.findall(number, " ".join(texts))) == Counter(re.findall(number, re.sub(layout, "", body)))


@pytest.mark.parametrize("label", READINGS)
def test_a_changed_value_is_noticed(label: str, tex: str) -> None:
    """Alter the paper's last number of each table: the comparison must fail there and nowhere else."""
    end = tex.rindex(r"\end{tabular}", 0, tex.index(rf"\label{{{label}}}"))
    last = list(re.finditer(r"\d+(\.\d+)?", tex[:end]))[-1]
    altered = tex[: last.start()] + "7" + tex[last.start() :]
    right, wrong = known(label), printed(label, altered)
    assert [key for key in right if right[key] != wrong[key]] == [list(wrong)[-1]]


# ---- the tables of another shape --------------------------------------------------------------------------------


def test_eigenvalues_of_local_models(tex: str) -> None:
    table = grid(tex, "tab:eigs_fedgloss")
    found: dict[Key, str] = {}
    counts = {"cifar10": 0, "cifar100": 0}
    for _, row in table.body:
        dataset = row[0]
        counts[dataset] += 1
        for column in set(row) - {0, 1}:
            heading = table.heading(column)
            method = method_of(heading)
            client = "sam" if method == "fedgloss" else client_of(method, heading)
            quantity = quantity_of(heading, None)
            found[dataset, counts[dataset], row[1], method, client, quantity] = row[column]
    ours: dict[Key, str] = {}
    for cell in paper.table("tab:eigs_fedgloss").cells:
        assert cell.published is not None
        assert cell.setting.alpha == 0
        assert cell.setting.preset.endswith("-cnn")
        where = (cell.setting.dataset, cell.details["client"], cell.details["class"])
        ours[*where, cell.setting.method, cell.setting.client, cell.quantity] = cell.published.text
    assert ours == found
    assert len(found) == 120


def test_costs_of_the_methods(tex: str) -> None:
    table = grid(tex, "tab:algs")
    found, marks = {}, {}
    for _, row in table.body:
        columns = {table.heading(column).strip(): text.lower() for column, text in row.items()}
        method = method_of(columns["method"])
        clients = ("sgd", "sam") if method == "fedgloss" else ("sam",)
        costs = columns["local computation cost"].split(" or ")
        assert len(costs) == len(clients)
        for client, cost in zip(clients, costs, strict=True):
            found[method, client] = (columns["communication cost"], cost)
            optimizer = columns["clientopt"].removesuffix(" optimizer")
            marks[method, client] = (columns["serveropt"], optimizer, columns["global flatness"] == "v")
    exhibit = paper.table("tab:algs")
    ours, our_marks = {}, {}
    for row_name in exhibit.rows:
        row_cells = [exhibit.at(row_name, column) for column in ("communication", "computation")]
        texts = tuple(cell.published.text for cell in row_cells if cell and cell.published)
        assert row_cells[0]
        key = (row_cells[0].setting.method, row_cells[0].setting.client)
        said = exhibit.properties[row_name]
        ours[key] = texts
        our_marks[key] = (said["server_optimizer"], said["client_optimizer"], said["global_flatness"])
    assert ours == found
    assert our_marks == marks


def test_marks_of_the_ablation_and_of_the_homogeneous_table(tex: str) -> None:
    ablation = grid(tex, "tab:ablation_global_sharpness")
    exhibit = paper.table("tab:ablation_global_sharpness")
    for _, row in ablation.body:
        method = method_of(row[1])
        name = method if method in CLIENTS else f"{method}-{row[0].lower()}"
        assert tuple(exhibit.properties[name].values()) == (row[2] == "V", row[3] == "V")
    homogeneous = paper.table("tab:hom").properties
    found = [row[2] == "V" for _, row in grid(tex, "tab:hom").body]
    assert [said["admm"] for said in homogeneous.values()] == found


def numbers(text: str) -> Iterator[float]:
    """Plain numbers and products with powers of ten, such as ``4 * 10^-4``."""
    for factor, power, number in re.findall(r"(?:([\d.]+) \* )?10\^(-?\d+)|([\d.,]+)", text):
        yield float(number.replace(",", "")) if number else float(f"{factor or 1}e{power}")


def test_data_set_statistics(tex: str) -> None:
    found = {}
    for _, row in grid(tex, "tab:ds-stats").body:
        name, *rest = (row[column] for column in sorted(row))
        found[name] = tuple(int(value) for text in rest for value in numbers(text))
    assert {name: (row.clients, row.train, row.test) for name, row in paper.datasets().items()} == found


def test_training_settings(tex: str) -> None:
    table = grid(tex, "tab:base-hp")
    columns = ("rounds", "clients per round", "e", "eta", "wd", "beta_l", "b")
    found = {}
    for _, row in table.body:
        network = network_of(row[1].lower())
        by_heading = {
            table.heading(column).replace("client optimization", "").strip(): row[column] for column in row
        }
        found[f"{row[0]}-{network}"] = tuple(next(numbers(by_heading[column])) for column in columns)
    ours = {
        preset: (t.rounds, t.cohort, t.epochs, t.lr, t.weight_decay, t.momentum, t.batch_size)
        for preset, t in paper.training().items()
        if t.printed
    }
    assert ours == found


def test_search_grids(tex: str) -> None:
    """The grids and the chosen values, which the paper sets in bold."""
    marked = re.sub(r"\\textbf\{([\d.]+)\}", r"\1!", tex)
    table = grid(marked, "tab:hp")
    found: dict[Key, tuple[tuple[float, ...], float]] = {}
    for _, row in table.body:
        method, symbol = method_of(row[0].lower()), row[1].split()[0]
        for column in set(row) - {0, 1}:
            heading = table.heading(column)
            dataset = dataset_of(heading)
            values = row[column].strip("[]").split(",")
            (best,) = [float(value.strip(" !")) for value in values if "!" in value]
            preset = f"{dataset}-{network_of(heading) or 'mobilenetv2'}"
            found[method, symbol, preset] = (tuple(float(value.strip(" !")) for value in values), best)
    ours = {
        (search.method, search.symbol, preset): (values.tried, values.chosen)
        for search in paper.searches()
        for preset, values in search.values.items()
    }
    assert ours == found
    sam_only = {(search.method, search.symbol) for search in paper.searches() if search.sam_only}
    assert ("feddyn", "rho") in sam_only
    assert r"(\sam-based only)" in tex


# ---- the text, and that nothing is left out ---------------------------------------------------------------------

CLAIMS = {
    "naive-cost/cifar10/alpha=0/naive-fedgloss-sam": r"\$([\d.]+)B\$ on \\textsc\{C10\} \$\\alpha=0\$",
    "naive-cost/cifar10/alpha=0.05/naive-fedgloss-sam": r"\$([\d.]+)B\$ for \$\\alpha=0.05\$",
    "naive-cost/cifar100/alpha=0/naive-fedgloss-sam": r"\$([\d.]+)B\$ on \\textsc\{C100\} \$\\alpha=0\$",
    "naive-cost/cifar100/alpha=0.5/naive-fedgloss-sam": r"\$([\d.]+)B\$ for \$\\alpha=0.5\$",
    "local-training/lr=0.001/accuracy_lost/fedavg": r"\\fedavg and \\fedsam losing ([\d.]+)\\\%",
    "local-training/lr=0.001/accuracy_lost/fedsam": r"\\fedavg and \\fedsam losing [\d.]+\\\% and ([\d.]+)\\\%",
    "local-training/lr=0.001/accuracy_lost/fedgloss-sam": r"\\ours loses only ([\d.]+)\\\%",
}


def test_values_that_stand_in_the_text(tex: str) -> None:
    with_values = {
        cell.id: cell for e in paper.exhibits() if e.kind == "text" for cell in e.cells if cell.published
    }
    assert set(with_values) == set(CLAIMS)
    for id, pattern in CLAIMS.items():
        (value,) = re.findall(pattern, tex)
        published = with_values[id].published
        assert published is not None
        assert published.value == float(value), id


def test_every_table_and_figure_is_known(tex: str) -> None:
    """All labels but that of the sketch of the method; sub-figures belong to their figure."""
    labels = set(re.findall(r"\\label\{(tab:[^}]+|fig:[^}:]+)\}", tex)) - {"fig:method"}
    known_labels = {e.label for e in (*paper.tables(), *paper.figures())} | set(paper.SETTINGS_TABLES)
    assert known_labels == labels
    assert {"tab:eigs_fedgloss", "tab:algs", *READINGS} == {e.label for e in paper.tables()}


def test_figures_have_the_papers_pictures(tex: str) -> None:
    """Where a figure has one picture per part of its data, their number is the paper's."""
    grouped = {"fig:eigs", "fig:serv_rho", "fig:cifar-distributions"}  # several settings share a picture
    for figure in paper.figures():
        before = tex[: tex.index(rf"\label{{{figure.label}}}")]
        pictures = before[before.rindex(r"\begin{figure") :].count(r"\subfloat")
        if pictures and figure.label not in grouped:
            assert len(figure.columns) == pictures, figure.label
