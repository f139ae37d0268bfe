"""The report in a real browser: it opens from disk, draws, turns, toggles, saves, prints, and asks no network."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from reports.small_runs import add_analysis, make_run, make_study

from fedgloss.records import RunFolder
from fedgloss.reports.html import page as html_of
from fedgloss.reports.html import page_data
from fedgloss.reports.runs import read_runs
from fedgloss.reports.server import Server

pytestmark = pytest.mark.integration

CHARTS = {
    "metric-rounds", "metric-bytes", "loss-rounds", "loss-bytes", "norm-model", "norm-update", "norm-dual",
    "delta-eps", "spread", "surfaces", "contours", "eigenvalues", "densities", "interpolation", "locals",
    "division", "sizes", "entropy", "vectors", "seconds",
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    if program is None:
        pytest.fail("these tests drive chromium, which is not installed: scripts/integration-setup.sh")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    make_study(folder / "runs")
    return write(folder / "report.html", folder / "runs")


@pytest.fixture(scope="module")
def flat_report(report: Path) -> Path:
    """The same without surfaces, which a machine without a graphics card draws slowly."""
    runs = report.parent / "flat"
    shutil.copytree(report.parent / "runs", runs)
    for path in runs.glob("*/analysis/landscape-train.json"):
        path.unlink()
    return write(report.parent / "flat.html", runs)


def write(out: Path, *runs: Path) -> Path:
    out.write_text(html_of(page_data(*read_runs(runs))))
    return out


class Opened:
    """A page, and everything it said or asked for."""

    def __init__(self, browser: Browser, address: str, *, script: str = "", **context: Any) -> None:
        defaults: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "accept_downloads": True}
        self.context = browser.new_context(**{**defaults, **context})
        self.page: Page = self.context.new_page()
        self.page.set_default_timeout(120_000)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: message.type == "error" and self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.add_init_script(script)
        self.page.goto(address, wait_until="load")
        self.page.wait_for_selector("html[data-ready=yes]")

    def drawn(self) -> Page:
        self.page.wait_for_selector("html[data-drawn=all]")
        return self.page

    def quiet(self, itself: str) -> None:
        """No error, and nothing was asked for but the file itself and pictures made inside it."""
        assert [url for url in self.asked if not url.startswith(("data:", "blob:"))] == [itself]
        assert self.said == []


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    yield from visit(browser, report)


@pytest.fixture
def flat(browser: Browser, flat_report: Path) -> Iterator[Opened]:
    yield from visit(browser, flat_report)


def visit(browser: Browser, path: Path) -> Iterator[Opened]:
    found = Opened(browser, path.as_uri())
    yield found
    found.quiet(path.as_uri())
    found.context.close()


def until(page: Page, condition: str, argument: Any = None) -> None:
    """Ask again and again: the page's own policy forbids evaluating text inside it."""
    for _ in range(1200):
        if page.evaluate(condition, argument):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"never came: {condition}")


def legend(page: Page, label: str) -> Any:
    return page.locator(f'#controls .key[data-method="{label}"]')


def names_drawn(page: Page, chart: str) -> set[str]:
    script = "(id) => document.querySelector(`[data-chart=${id}]`).data.map((t) => t.name).filter(Boolean)"
    return set(page.evaluate(script, chart))


def test_every_chart_draws(opened: Opened) -> None:
    page = opened.drawn()
    present = page.eval_on_selector_all("[data-chart]", "nodes => nodes.map((n) => n.dataset.chart)")
    assert set(present) == CHARTS
    for chart in sorted(CHARTS):
        node = page.locator(f'[data-chart="{chart}"]')
        node.scroll_into_view_if_needed()
        inked = node.evaluate(
            "(n) => n.querySelectorAll('.trace path, .bars path, .hm image, .contourlayer path, canvas').length"
        )
        assert inked > 0, f"{chart} drew nothing"
        assert node.get_attribute("aria-label")
        box = node.bounding_box()
        assert box is not None
        assert box["width"] > 200
        assert box["height"] > 150


def test_surfaces_turn_by_mouse_and_keys_and_can_be_switched(opened: Opened) -> None:
    page = opened.drawn()
    scene = page.locator('[data-chart="surfaces"]')
    scene.scroll_into_view_if_needed()
    page.wait_for_timeout(500)
    kinds = "(n) => n.data.map((t) => t.type).sort().join()"
    assert scene.evaluate(kinds) == "scatter3d,surface"  # one solid, one net, in one scene
    before = scene.screenshot()
    box = scene.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 180, box["y"] + box["height"] / 2 + 20, steps=8)
    page.mouse.up()
    until(page, "document.querySelector('[data-chart=surfaces]').dataset.eye !== undefined")
    dragged = scene.get_attribute("data-eye")
    page.wait_for_timeout(300)
    assert scene.screenshot() != before
    scene.focus()
    page.keyboard.press("ArrowRight")
    until(page, "(eye) => document.querySelector('[data-chart=surfaces]').dataset.eye !== eye", dragged)
    pickers = page.locator(".surfaces select")
    assert pickers.count() == 9
    shown = [pickers.nth(i).input_value() for i in range(9)]
    assert sorted(set(shown)) == ["net", "off", "solid"]
    pickers.nth(shown.index("off")).select_option("net")
    until(page, "document.querySelector('[data-chart=surfaces]').data.length === 3")
    pickers.nth(shown.index("solid")).select_option("off")
    until(page, "document.querySelector('[data-chart=surfaces]').data.every((t) => t.type === 'scatter3d')")


def test_one_legend_switches_all_figures(flat: Opened) -> None:
    page = flat.drawn()
    assert "FedSAM" in names_drawn(page, "metric-rounds")
    legend(page, "FedSAM").click()
    page.wait_for_selector("html[data-drawn=all]")
    for chart in ("metric-rounds", "metric-bytes", "loss-rounds", "norm-model", "eigenvalues"):
        assert "FedSAM" not in names_drawn(page, chart)
        assert "FedAvg" in names_drawn(page, chart)
    assert legend(page, "FedSAM").get_attribute("aria-pressed") == "false"
    legend(page, "FedAvg").dblclick()
    page.wait_for_selector("html[data-drawn=all]")
    assert names_drawn(page, "metric-rounds") == {"FedAvg"}
    page.locator("#all-methods").click()
    page.wait_for_selector("html[data-drawn=all]")
    assert {"FedAvg", "FedSAM", "FedGloSS-SAM"} <= names_drawn(page, "metric-rounds")
    legend(page, "FedSAM").focus()
    page.keyboard.press("Space")
    page.wait_for_selector("html[data-drawn=all]")
    assert "FedSAM" not in names_drawn(page, "metric-rounds")


def test_measurements_are_named_by_what_they_are(flat: Opened) -> None:
    page = flat.drawn()
    assert "FedSAM, seed 1, to fedavg-seed0 (barrier 0.063)" in names_drawn(page, "interpolation")
    assert names_drawn(page, "locals") == {
        "local model, own data",
        "local model, all data",
        "global model, all data",
    }
    marks = "document.querySelector('[data-chart=locals]').data.find((t) => t.name.startsWith('global')).x.length"
    assert page.evaluate(marks) == 9  # each of the runs whose local models were measured


def test_a_phone_shows_maps_of_some_size(browser: Browser, report: Path) -> None:
    opened = Opened(browser, report.as_uri(), viewport={"width": 375, "height": 740})
    page = opened.drawn()
    page.locator("[data-chart=contours]").scroll_into_view_if_needed()
    layout = "document.querySelector('[data-chart=contours]')._fullLayout"
    sizes = page.evaluate(f"[{layout}.xaxis._length, {layout}.xaxis2._length]")
    assert min(sizes) > 120
    opened.context.close()


def test_scales_seeds_and_hover(flat: Opened) -> None:
    page = flat.drawn()
    chart = page.locator('[data-chart="metric-rounds"]')
    assert chart.evaluate("(n) => n._fullLayout.yaxis.type") == "linear"
    page.get_by_role("button", name="Logarithmic scale for “Accuracy over rounds”").click()
    assert chart.evaluate("(n) => n._fullLayout.yaxis.type") == "log"
    lines = chart.evaluate("(n) => n.data.filter((t) => t.fill === undefined && t.mode.includes('lines')).length")
    page.locator("#every-seed").click()
    page.wait_for_selector("html[data-drawn=all]")
    seeds = chart.evaluate("(n) => n.data.filter((t) => t.fill === undefined && t.mode.includes('lines')).length")
    assert seeds > lines
    loss = page.locator('[data-chart="loss-rounds"]')
    loss.scroll_into_view_if_needed()
    box = loss.bounding_box()
    assert box is not None
    point = loss.evaluate(
        "(n) => { const [x, y] = [n._fullLayout.xaxis, n._fullLayout.yaxis]; const t = n.data[0];"
        " return [x._offset + x.d2p(t.x[2]), y._offset + y.d2p(t.y[2])]; }"
    )
    page.mouse.move(box["x"] + point[0] - 3, box["y"] + point[1] - 3)
    page.mouse.move(box["x"] + point[0], box["y"] + point[1], steps=3)
    loss.locator(".hoverlayer .hovertext").first.wait_for()
    assert "round" in (loss.locator(".hoverlayer").text_content() or "")


def test_dark_follows_the_system_and_the_button(browser: Browser, flat_report: Path) -> None:
    opened = Opened(browser, flat_report.as_uri(), color_scheme="dark")
    page = opened.drawn()
    shade = "getComputedStyle(document.body).backgroundColor"
    colour = "document.querySelector('[data-chart=metric-rounds]').data.find((t) => t.name === 'FedAvg').line.color"
    dark, dark_line = page.evaluate(shade), page.evaluate(colour)
    assert sum(int(v) for v in dark[4:-1].split(",")) < 120
    for _ in range(3):
        if page.locator("#theme").inner_text() == "Theme: light":
            break
        page.locator("#theme").click()
    page.wait_for_selector("html[data-drawn=all]")
    assert page.evaluate(shade) == "rgb(255, 255, 255)"
    assert page.evaluate(colour) != dark_line
    opened.quiet(flat_report.as_uri())
    opened.context.close()


def test_tables_and_figures_can_be_saved(flat: Opened, tmp_path: Path) -> None:
    page = flat.drawn()
    block = page.locator('[data-table^="results"]').first
    texts = {}
    for label in ("CSV", "Markdown", "LaTeX"):
        with page.expect_download() as waiting:
            block.get_by_role("button", name=label).click()
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
        texts[label] = (tmp_path / waiting.value.suggested_filename).read_text()
    rows = list(csv.DictReader(io.StringIO(texts["CSV"])))
    assert [row["Method"] for row in rows] == ["FedAvg", "FedDyn-SGD", "FedSAM", "FedGloSS-SAM"]
    assert float(rows[0]["Accuracy (%) mean"]) > 0
    assert "| FedAvg |" in texts["Markdown"]
    assert "\\begin{tabular}" in texts["LaTeX"]
    for label, start in (("SVG", b"<svg"), ("PNG", b"\x89PNG")):
        with page.expect_download() as waiting:
            page.get_by_role("button", name=f"Save the figure “Accuracy over rounds” as {label}").click()
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
        assert (tmp_path / waiting.value.suggested_filename).read_bytes().startswith(start)
        assert waiting.value.suggested_filename.endswith(f".{label.lower()}")


def test_keyboard_alone_reaches_the_results(flat: Opened) -> None:
    page = flat.drawn()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#overview"


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_axe_finds_nothing_serious(browser: Browser, report: Path, scheme: str, width: int) -> None:
    opened = Opened(browser, report.as_uri(), color_scheme=scheme, viewport={"width": width, "height": 900})
    page = opened.drawn()
    page.locator("details.run summary").first.click()
    page.evaluate((resources.files("axe_playwright_python") / "axe.min.js").read_text())
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    serious = [
        (v["id"], v["impact"], v["nodes"][0]["html"][:120])
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert len(found["passes"]) > 10
    opened.context.close()


def test_a_narrow_screen_needs_no_sideways_scrolling(browser: Browser, flat_report: Path) -> None:
    opened = Opened(browser, flat_report.as_uri(), viewport={"width": 360, "height": 740})
    page = opened.drawn()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    opened.context.close()


def test_it_prints_with_its_figures(browser: Browser, report: Path, tmp_path: Path) -> None:
    opened = Opened(browser, report.as_uri(), color_scheme="dark")
    page = opened.drawn()
    content = page.pdf(prefer_css_page_size=True)
    assert content.startswith(b"%PDF-")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b(?!s)", content)) <= 30
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"  # and goes back to what it was
    opened.context.close()


def test_markup_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
    run = make_run(
        tmp_path / "runs" / "<b>name<img src=x onerror=alert(1)>", note=evil, classes=(evil, "one", "two")
    )
    add_analysis(run, steepness=1.0, partner="x")
    surface = json.loads((run / "analysis" / "landscape-train.json").read_text())
    surface["grids"][evil] = surface["grids"]["loss"]
    surface["directions"] = evil
    (run / "analysis" / "landscape-train.json").write_text(json.dumps(surface))
    (tmp_path / "runs" / "<i>broken").mkdir()
    (tmp_path / "runs" / "<i>broken" / "config.toml").write_text("<u>")
    path = write(tmp_path / "report.html", tmp_path / "runs")
    opened = Opened(browser, path.as_uri())
    page = opened.drawn()
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.locator("details.run summary").first.click()
    assert page.locator("main img, main b:has-text('bold'), main i, main u").count() == 0
    assert evil in page.locator("details.run").first.inner_text()
    assert "<i>broken" in page.locator("#skipped").inner_text()
    ticks = page.locator('[data-chart="division"] .ytick').all_text_contents()
    assert any(text.startswith("<img src=x") for text in ticks)
    assert "taken" not in page.title()
    assert dialogs == []
    opened.quiet(path.as_uri())
    opened.context.close()


def large_study(folder: Path, *, methods: int = 10, seeds: int = 4, rounds: int = 10_000) -> None:
    """Forty runs as they would be after ten thousand rounds: the records of short ones, gone on with."""
    random = np.random.default_rng(0)
    for index in range(methods):
        for seed in range(seeds):
            name = folder / f"m{index}-seed{seed}"
            make_run(name, "fedgloss", client="sam", beta=1.0 + index, seed=seed, rounds=2, client_accuracy=False)
            run = RunFolder(name)
            text = run.config.read_text().replace("rounds = 2\n", f"rounds = {rounds}\n")
            run.config.write_text(text.replace("eval_every = 2", "eval_every = 50"))
            line = json.loads(run.rounds.read_text().splitlines()[2])
            noise = random.lognormal(0, 0.3, (rounds, 8))
            with run.rounds.open("w") as file:
                for done in range(rounds):
                    a = noise[done].tolist()
                    line |= {
                        "round": done,
                        "loss": a[0],
                        "mean_delta_norm": a[1],
                        "delta_eps": {"consecutive": a[2]},
                    }
                    line["norms"] = dict(zip(line["norms"], a[3:], strict=True))
                    file.write(json.dumps(line) + "\n")
                    if (done + 1) % 50 == 0:
                        metrics = {"loss": a[0], "accuracy": 1 - 0.5 / (1 + done / 1000) + 0.01 * a[1]}
                        file.write(
                            json.dumps({"type": "evaluation", "rounds": done + 1, "metrics": metrics}) + "\n"
                        )
            run.timings.write_text("".join(f'{{"round":{n},"seconds":{noise[n, 0]}}}\n' for n in range(rounds)))
            summary = json.loads(run.summary.read_text())
            run.summary.write_text(json.dumps({**summary, "rounds": rounds, "planned_rounds": rounds}))
    add_analysis(folder / "m0-seed0", steepness=1.0, partner="x")


def test_forty_runs_of_ten_thousand_rounds_open_quickly(browser: Browser, tmp_path: Path) -> None:
    large_study(tmp_path / "runs")
    path = write(tmp_path / "report.html", tmp_path / "runs")
    assert path.stat().st_size < 18e6
    processes = browser.new_browser_cdp_session()

    def busy() -> dict[int, float]:
        """Processor time of each process that shows pages."""
        found = processes.send("SystemInfo.getProcessInfo")["processInfo"]
        return {one["id"]: one["cpuTime"] for one in found if one["type"] == "renderer"}

    before, started = busy(), time.perf_counter()
    later = "window.requestIdleCallback = () => 0"  # what is drawn after the page has opened does not count
    opened = Opened(browser, path.as_uri(), script=later)
    opened.page.evaluate("document.getElementById('curves').scrollIntoView()")
    until(opened.page, "document.querySelector('[data-chart=metric-rounds]').data?.length > 0")
    waited = time.perf_counter() - started
    worked = max(spent - before.get(process, 0.0) for process, spent in busy().items())
    assert opened.page.locator('[data-table^="results"] tbody tr').count() >= 10
    opened.quiet(path.as_uri())
    opened.context.close()
    assert min(waited, worked) < 4, (waited, worked)  # that other programs had their turn is not the page's fault


def test_the_live_page_takes_up_what_is_new(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    server = Server([tmp_path / "runs"], seconds=0.3)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        opened = Opened(browser, server.address)
        page = opened.page
        assert page.locator("#lead").inner_text() == "No runs yet."
        make_run(tmp_path / "runs" / "fedavg", rounds=6)
        legend(page, "FedAvg").wait_for()
        make_run(tmp_path / "runs" / "fedsam", "fedsam", rounds=6)
        legend(page, "FedSAM").wait_for()
        until(page, "document.querySelector('[data-chart=metric-rounds]')?.data?.some((t) => t.name === 'FedSAM')")
        assert page.locator("#live").inner_text().startswith("Live")
        assert {url.rpartition("/")[0] + "/" for url in opened.asked if url.startswith("http")} == {server.address}
        assert opened.said == []
        opened.context.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
