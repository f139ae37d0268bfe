"""The paper as data: lookups, settings, hyper-parameters, and what the numbers say of each other."""

from __future__ import annotations

import doctest
import re
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import pytest

from fedgloss.algorithms.table import FIDELITIES, METHODS, build
from fedgloss.errors import InvalidInput
from fedgloss.local import LocalTraining
from fedgloss.reports import paper
from fedgloss.reports.paper import Cell, Published, Setting, cells, chosen, exhibit, grid, table

SETTLED = [cell for cell in cells() if cell.published and cell.published.outcome != "absent"]


# ---- lookups ----------------------------------------------------------------------------------------------------


def test_a_cell_says_what_produces_it() -> None:
    (cell,) = cells("sota_cnn/cifar10/alpha=0/fedgloss-sam")
    assert cell.setting == Setting("cifar10-cnn", 0.0, "fedgloss", "sam", 10_000)
    assert cell.setting.options == {"rho": 0.15, "local_rho": 0.15, "beta": 10, "warm_up": 2000}
    assert cell.setting.local_training == {
        "lr": 0.01,
        "epochs": 1,
        "batch_size": 64,
        "weight_decay": 4e-4,
        "momentum": 0.0,
    }
    assert (cell.quantity, cell.seeds, cell.rounds_needed) == ("accuracy", (0, 42, 200299), 10_000)
    assert cell.published == Published("83.9±0.4", "value", 83.9, 0.4, 0.1)


def test_changes_reach_the_method_or_the_local_training() -> None:
    (cell,) = cells("local-training/epochs=2/accuracy/fedsam")
    assert cell.setting.changes == (("epochs", 2),)
    assert cell.setting.local_training["epochs"] == 2
    assert cell.setting.options == {"local_rho": 0.15}
    (cell,) = cells("dual-rule/cifar10/alpha=0/accuracy/feddyn-sam-code")
    assert cell.setting.options == {"beta": 10.0, "local_rho": 0.15, "dual": "code"}
    assert cell.setting.local_training["epochs"] == 1


def test_a_change_to_the_usual_value_is_none_so_runs_are_shared() -> None:
    (swept,) = cells("serv_rho/cnn/alpha=0/accuracy/fedgloss-sam-rho=0.01")
    (usual,) = cells("sota_cnn/cifar100/alpha=0/fedgloss-sam")
    assert swept.setting == usual.setting
    assert len(paper.runs([swept, usual])) == 3


def test_tables_keep_their_layout() -> None:
    naive = table("tab:naive_comparison")
    assert naive.rows == ("naive-fedgloss-sam", "fedgloss-sam", "sam", "sam-previous")
    assert naive.at("sam", "cifar10/alpha=0/accuracy") is None
    half = naive.at("naive-fedgloss-sam", "cifar100/alpha=0.5/accuracy_half")
    assert half is not None
    assert half.published is not None
    assert (half.published.value, half.rounds_needed) == (49.4, 10_000)


def test_centralised_training_has_epochs_and_no_split() -> None:
    (cell,) = cells("naive_comparison/cifar100/centralised/sam-previous")
    assert (cell.setting.alpha, cell.setting.rounds) == (None, 1000)
    assert cell.setting.options == {"local_rho": 0.01}
    federated = paper.training()["cifar100-cnn"]
    assert federated.centralised_epochs == federated.rounds * federated.cohort * 500 / 50_000


def test_landmarks_has_its_own_clients() -> None:
    assert {cell.setting.alpha for cell in cells("sota_gld/*")} == {None}


def test_costs_need_one_round_and_data_none() -> None:
    assert set(paper.runs(exhibit("tab:algs").cells).values()) == {1}
    assert paper.runs(exhibit("fig:cifar-distributions").cells) == {}


def test_runs_are_counted_once_and_as_long_as_the_longest_need() -> None:
    half, whole = cells("naive_comparison/cifar10/alpha=0/accuracy*/fedgloss-sam")
    assert (half.rounds_needed, whole.rounds_needed) == (5000, 10_000)
    assert set(paper.runs([half]).values()) == {5000}
    assert paper.runs([whole, half]) == paper.runs([whole])


def test_a_pattern_picks_within_one_exhibit() -> None:
    found = cells("*/alpha=0/*/fedsmoo", "tab:comm_eff_2")
    assert [cell.id for cell in found] == [
        f"comm_eff_2/{preset}/alpha=0/{quantity}/fedsmoo"
        for preset in ("cifar10-cnn", "cifar100-cnn")
        for quantity in ("rounds", "cost")
    ]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: exhibit("tab:sota_cn"), "tab:sota_cn: unknown table or figure; did you mean 'tab:sota_cnn'?"),
        (lambda: exhibit("tab:hp"), "tab:hp: holds the paper's settings"),
        (lambda: table("fig:eigs"), "fig:eigs: is not a table"),
        (lambda: cells("sota_cnn/cifar10/alpha=0/fedavgg"), "did you mean 'sota_cnn/cifar10/alpha=0/fedavg'?"),
        (lambda: chosen("cifar10", "fedavg", "sgd"), "cifar10: unknown preset"),
        (lambda: chosen("cifar10-cnn", "fedadam", "sgd"), "fedadam: not a method of the paper"),
        (lambda: chosen("cifar10-cnn", "fedavg", "sam"), "fedavg: its clients use sgd, not sam"),
    ],
)
def test_mistakes_are_one_helpful_line(ask, message) -> None:
    with pytest.raises(InvalidInput) as caught:
        ask()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# ---- hyper-parameters -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "method", "client", "options"),
    [
        ("cifar10-cnn", "fedavg", "sgd", {}),
        ("cifar10-cnn", "scaffold", "sgd", {}),
        ("cifar10-resnet18", "fedprox", "sgd", {"mu": 0.01}),
        ("landmarks-mobilenetv2", "feddyn", "sgd", {"beta": 1000}),
        ("cifar100-cnn", "feddyn", "sam", {"beta": 100, "local_rho": 0.02}),
        ("cifar100-cnn", "fedspeed", "sam", {"local_rho": 0.01, "mix": 0.95, "beta": 1000}),
        ("landmarks-mobilenetv2", "fedsmoo", "sam", {"local_rho": 0.1, "beta": 50}),
        ("cifar100-cnn", "fedgloss", "sgd", {"rho": 0.01, "beta": 100}),
        ("cifar100-cnn", "fedgloss", "sam", {"rho": 0.01, "local_rho": 0.2, "beta": 100, "warm_up": 15000}),
        ("cifar100-cnn", "naive-fedgloss", "sam", {"rho": 0.01, "local_rho": 0.2, "beta": 100, "warm_up": 15000}),
        ("cifar10-cnn", "sam", "sam", {"local_rho": 0.15}),
        ("cifar10-cnn", "sgd", "sgd", {}),
    ],
)
def test_chosen(preset, method, client, options) -> None:
    assert chosen(preset, method, client) == options


def test_a_grid_has_the_chosen_values_in_it() -> None:
    for preset in paper.training():
        for method, client in [
            *paper.FIXED_CLIENTS.items(),
            ("feddyn", "sgd"),
            ("feddyn", "sam"),
            ("fedgloss", "sam"),
        ]:
            tried = grid(preset, method, client)
            picked = chosen(preset, method, client)
            assert tried.keys() == picked.keys()
            assert all(picked[name] in tried[name] for name in tried)
    assert grid("cifar10-cnn", "feddyn", "sgd") == {"beta": (1000, 100, 10)}


def test_every_setting_builds_its_method() -> None:
    settings = {cell.setting for cell in cells()}
    assert len(settings) > 150
    for setting in settings:
        local = LocalTraining(**setting.local_training)
        client = {"client": setting.client} if METHODS[setting.method].takes_client else {}
        for fidelity in FIDELITIES:
            build(setting.method, local, fidelity=fidelity, **client, **setting.options)


def test_methods_are_those_of_the_package() -> None:
    assert {name for name in paper.EITHER_CLIENT if METHODS[name].takes_client} == set(paper.EITHER_CLIENT)
    assert not [name for name in paper.FIXED_CLIENTS if METHODS[name].takes_client]
    known = {*paper.EITHER_CLIENT, *paper.FIXED_CLIENTS}
    assert {name for name in known if METHODS[name].centralised} == set(paper.CENTRALISED)


def test_published_communication_is_what_the_methods_declare() -> None:
    for cell in SETTLED:
        if cell.quantity == "communication":
            method = METHODS[cell.setting.method]
            assert cell.published is not None
            assert method.down is not None
            assert method.up is not None
            assert cell.published.value == (method.down + method.up) / 2


# ---- what the published numbers say of each other ---------------------------------------------------------------


def test_a_setting_has_one_value_or_a_note() -> None:
    """Two tables that print the same thing agree, or the cells say that they do not."""
    by_meaning: dict[tuple[Setting, str], list[Cell]] = defaultdict(list)
    for cell in SETTLED:
        if not cell.id.startswith("eigs_fedgloss/"):  # several clients of one run
            by_meaning[cell.setting, cell.quantity].append(cell)
    disagreeing = set()
    for found in by_meaning.values():
        if len({cell.published for cell in found}) > 1:
            assert all(cell.notes for cell in found), [cell.id for cell in found]
            disagreeing |= {cell.id for cell in found}
    assert disagreeing == {
        "comm_eff_2/landmarks/cost/fedsmoo",
        "comm_eff_others/landmarks/cost/fedsmoo",
        "comm_eff_2/landmarks/rounds/fedgloss-sgd",
        "comm_eff_others/landmarks/rounds/fedgloss-sgd",
        "comm_eff_2/landmarks/cost/fedgloss-sgd",
        "comm_eff_others/landmarks/cost/fedgloss-sgd",
    }


def test_divergence_is_the_same_in_all_tables_or_noted() -> None:
    by_setting: dict[Setting, list[Cell]] = defaultdict(list)
    for cell in SETTLED:
        if cell.rounds_needed > 1:
            by_setting[cell.setting].append(cell)
    split = set()
    for found in by_setting.values():
        diverged = [cell for cell in found if cell.published and cell.published.outcome == "diverged"]
        if diverged and len(diverged) < len(found):
            assert all(cell.notes for cell in found), [cell.id for cell in found]
            split |= {(cell.setting.preset, cell.setting.alpha, cell.setting.method) for cell in found}
    assert split == {("cifar100-cnn", 0.0, "scaffold"), ("cifar100-cnn", 0.0, "fedgamma")}


def rounded(value: float, places: str) -> float:
    """Half up, as the paper rounds."""
    return float(Decimal(repr(round(value, 9))).quantize(Decimal(places), ROUND_HALF_UP))


@pytest.mark.parametrize("label", ["tab:comm_eff_2", "tab:comm_eff_others"])
def test_costs_follow_from_rounds_or_carry_a_note(label) -> None:
    """cost = rounds / T x communication factor; speed-up = T / rounds."""
    factors = {cell.setting.method: cell.published.value for cell in cells("*communication/*") if cell.published}
    wrong = set()
    for cell in exhibit(label).cells:
        rounds = exhibit(label).at(cell.row, cell.column.rpartition("/")[0] + "/rounds")
        assert rounds is not None
        assert rounds.published is not None
        assert cell.published is not None
        assert cell.published.outcome == rounds.published.outcome
        if rounds.published.value is None or cell.quantity == "rounds":
            continue
        share = rounds.published.value / cell.setting.rounds
        expected = share * factors[cell.setting.method] if cell.quantity == "cost" else 1 / share
        if rounded(expected, "0.1") != cell.published.value:
            assert cell.notes, cell.id
            wrong.add(cell.id)
    assert wrong <= {
        "comm_eff_2/landmarks/cost/fedsmoo",
        "comm_eff_others/cifar10-cnn/alpha=0.05/speed_up/feddyn-sgd",
    }
    assert len(wrong) == 1


def test_targets_are_fedavgs_accuracy_in_the_same_setting() -> None:
    every = {cell.id: cell for cell in cells()}
    for cell in cells("comm_eff_*"):
        target = every[cell.reference or ""]
        assert (target.setting.method, target.quantity) == ("fedavg", "accuracy")
        assert (target.setting.preset, target.setting.alpha) == (cell.setting.preset, cell.setting.alpha)
    for cell in cells("local-training/*/accuracy_lost/*"):
        target = every[cell.reference or ""]
        assert (target.setting.method, target.setting.changes) == (cell.setting.method, ())


def test_the_texts_arithmetic_is_noted_where_the_table_says_otherwise() -> None:
    def value(id: str) -> float:
        (cell,) = cells(id)
        assert cell.published is not None
        assert cell.published.value is not None
        return cell.published.value

    leads = [
        round(value(f"sota_cnn/{place}/fedgloss-sam") - value(f"sota_cnn/{place}/fedsmoo"), 1)
        for place in ("cifar10/alpha=0", "cifar10/alpha=0.05", "cifar100/alpha=0", "cifar100/alpha=0.5")
    ]
    assert leads == [2.6, 1.6, 2.8, 1.7]
    assert "2.6, 1.6, 2.8 and 1.7" in " ".join(cells("sota_cnn/cifar10/alpha=0/fedgloss-sam")[0].notes)
    gaps = [
        round(
            value("naive_comparison/cifar100/centralised/sam")
            - value(f"naive_comparison/cifar100/{alpha}/accuracy/naive-fedgloss-sam"),
            1,
        )
        for alpha in ("alpha=0", "alpha=0.5")
    ]
    assert gaps == [7.6, 4.7]
    noted = cells("naive_comparison/cifar100/*/accuracy/naive-fedgloss-sam")
    assert all("7.6 and 4.7" in " ".join(cell.notes) for cell in noted)


def test_open_questions_hold_beta_fixed() -> None:
    for preset in ("cifar10-cnn", "cifar100-cnn"):
        settings = [cell.setting for cell in cells("dual-rule/*") if cell.setting.preset == preset]
        assert {setting.options["beta"] for setting in settings} == {chosen(preset, "fedgloss", "sam")["beta"]}
        pairs = {(setting.method, setting.client, setting.options["dual"]) for setting in settings}
        assert len(pairs) == 8
    for cell in cells("feddyn-beta/*"):
        assert cell.setting.options["beta"] == chosen(cell.setting.preset, "fedgloss", "sgd")["beta"]
        assert cell.setting.options["beta"] != chosen(cell.setting.preset, "feddyn", "sgd")["beta"]


def test_sweeps_are_those_of_the_search() -> None:
    def swept(pattern: str, name: str) -> set[object]:
        return {cell.setting.options[name] for cell in cells(pattern)}

    assert swept("serv_rho/cnn/*", "rho") == set(grid("cifar100-cnn", "fedgloss", "sam")["rho"])
    assert swept("serv_rho/resnet18/*", "rho") == set(grid("cifar100-resnet18", "fedgloss", "sam")["rho"])
    for data in ("cifar10", "cifar100"):
        assert swept(f"warm-up/{data}/*", "warm_up") == {0, *grid(f"{data}-cnn", "fedgloss", "sam")["warm_up"]}
        warmed = swept(f"fedsmoo-warm-up/{data}/*/fedsmoo-warm-up", "warm_up")
        assert warmed == {chosen(f"{data}-cnn", "fedgloss", "sam")["warm_up"]}


# ---- the reader is strict ---------------------------------------------------------------------------------------

GOOD = """
[[exhibits]]
label = "tab:x"
about = "x"
[[exhibits.parts]]
columns = [{ name = "a", preset = "cifar10-cnn", alpha = 0.0, quantities = ["accuracy", "lambda_1"] }]
rows = [{ row = "fedavg", values = "1.0±0.1 2" }, { row = "feddyn-sam" }]
[[exhibits.notes]]
cells = "x/a/*/fedavg"
text = "y"
"""


def test_the_format() -> None:
    found = paper._read_exhibits({"x.toml": GOOD})["tab:x"]
    assert [cell.id for cell in found.cells] == [
        "x/a/accuracy/fedavg",
        "x/a/lambda_1/fedavg",
        "x/a/accuracy/feddyn-sam",
        "x/a/lambda_1/feddyn-sam",
    ]
    assert [cell.published and cell.published.value for cell in found.cells] == [1.0, 2.0, None, None]
    assert [cell.notes for cell in found.cells] == [("y",), ("y",), (), ()]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('about = "x"', 'about = "x"\nabuot = "x"', "x.toml: exhibits.0.abuot"),
        ('label = "tab:x"', 'label = "x"', "x.toml: exhibits.0.label"),
        ("alpha = 0.0", 'alpha = "0"', "x.toml: exhibits.0.parts.0.columns.0.alpha"),
        ('"1.0±0.1 2"', '"1.0±0.1"', "fedavg: has 1 values for 2 columns"),
        ('"1.0±0.1 2"', '"1.0+0.1 2"', "not a printed value"),
        ("lambda_1", "lamda_1", "unknown quantity 'lamda_1'"),
        ("cifar10-cnn", "cifar10", "unknown preset 'cifar10'"),
        ("feddyn-sam", "feddyn", "feddyn: unknown row"),
        ("feddyn-sam", "fedavg", "x/a/accuracy/fedavg: comes twice"),
        ("x/a/*/fedavg", "x/a/*/fedprox", "concerns no cell"),
        ('row = "feddyn-sam"', 'row = "feddyn-sam", changes = { gamma = 1 }', "unknown change gamma"),
        ("alpha = 0.0", 'alpha = 0.0, reference = "x/b"', "refers to 'x/b', which does not exist"),
        ("[[exhibits.notes]]", GOOD + "[[exhibits.notes]]", "tab:x: comes twice"),
    ],
)
def test_a_slip_in_the_data_is_refused(old, new, message) -> None:
    assert old in GOOD
    with pytest.raises(InvalidInput) as caught:
        paper._read_exhibits({"x.toml": GOOD.replace(old, new)})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("chosen = 0.15", "chosen = 0.16", "fedsam rho: the value chosen for cifar10-cnn was never tried"),
        ('name = "mu"', 'name = "mew"', "fedprox mu: no hyper-parameter is called 'mew'"),
        ("lr = 0.01", 'lr = "0.01"', "presets.cifar10-cnn.lr"),
        ("cohort = 5", "cohort = 5\ncohorts = 5", "presets.cifar10-cnn.cohorts"),
        (
            "landmarks-mobilenetv2 = { tried = [0.05], chosen = 0.05 }\n",
            "",
            "fedsam rho: needs one entry per preset",
        ),
    ],
)
def test_a_slip_in_the_settings_is_refused(old, new, message) -> None:
    text = paper._text("paper_settings.toml")
    assert old in text
    with pytest.raises(InvalidInput) as caught:
        paper._read_settings(text.replace(old, new, 1), "settings.toml")
    assert message in str(caught.value)


# ---- the documentation ------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "paper.md"
NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "landmarks": "Landmarks"}


def test_the_page_lists_everything_with_what_it_needs() -> None:
    text = PAGE.read_text()
    rows = re.findall(r"^\| `\w+:.*$", text, re.MULTILINE)
    expected = []
    for found in paper.exhibits():
        needed = paper.runs(found.cells)
        data = ", ".join(NAMES[name] for name in NAMES if name in {cell.setting.dataset for cell in found.cells})
        rounds = sum(needed.values())
        expected.append(f"| `{found.label}` | {found.about} | {data} | {len(needed):,} | {rounds:,} |")
    assert rows == expected
    every = paper.runs(cells())
    assert f"everything together is {len(every):,} runs and {sum(every.values()):,} rounds" in text


def test_the_pages_examples_are_true() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False) == (0, 4)
