"""The page in a real browser: views, filters, downloads, keyboard, accessibility, scripts off, hostile names."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from fakes import reports

from convscope.__main__ import main
from convscope.report.labels import VIEWS

WIDTHS = (390, pytest.param(768, marks=pytest.mark.long), 1440)


class Tab:
    """One page of the browser with all that it said and asked for."""

    def __init__(self, browser: Any, file: Path, **options: Any) -> None:
        self.file, self.said, self.asked = file, list[str](), list[str]()
        self.context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, fragment: str = "", is_drawn: bool = False) -> Any:
        """Open the file anew; wait until all is drawn, or not."""
        self.said.clear()
        self.asked.clear()
        self.page.goto("about:blank")
        self.page.goto(f"{self.file.as_uri()}{fragment}")
        if is_drawn:
            self.drawn()
        return self.page

    def turn(self, fragment: str) -> Any:
        """Go to another address of the page that is open, as a link in it does."""
        if not self.page.url.startswith("file:"):
            return self.open(fragment)
        self.said.clear()
        if "".join(self.page.url.partition("#")[1:]) != fragment:
            change = "to => { delete document.documentElement.dataset.drawn; location.hash = to; }"
            self.page.evaluate(change, fragment)
        self.drawn()
        return self.page

    def drawn(self) -> None:
        """Wait until all pictures are drawn."""
        self.page.wait_for_selector("html[data-drawn=all]", state="attached")


@pytest.fixture(scope="module")
def tab(chromium: Any, page_file: Path) -> Iterator[Tab]:
    made = Tab(chromium, page_file)
    yield made
    made.context.close()


def column(page: Any, exhibit: str, name: str) -> list[str]:
    """Return the texts of a column of an exhibit's table."""
    heads = page.locator(f"#{exhibit} th").evaluate_all("heads => heads.map(head => head.dataset.column)")
    return page.locator(f"#{exhibit} tbody td:nth-child({heads.index(name) + 1})").all_inner_texts()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_view_is_there_and_nothing_is_said_on_the_console_or_asked_for(tab: Tab, width: int):
    tab.page.set_viewport_size({"width": width, "height": 900})
    page = tab.open(is_drawn=True)
    assert page.locator("main h2").all_inner_texts() == list(VIEWS.values())
    assert page.locator("nav a").all_inner_texts() == list(VIEWS.values())
    assert tab.said == []
    assert [url for url in tab.asked if not url.startswith("about:")] == [tab.file.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    overflowing = page.locator("figure").evaluate_all(
        "all => all.filter(each => each.querySelector('svg').getBoundingClientRect().right"
        " > each.getBoundingClientRect().right).length"
    )
    assert overflowing == 0


def test_colours_follow_the_readers_choice_of_light_and_dark(tab: Tab):
    page = tab.turn("#model=alexnet&gpu=a100")
    found = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        body, text = page.locator("body"), page.locator("#time svg .role-axis-title text").first
        paper = body.evaluate("e => getComputedStyle(e).backgroundColor")
        found[scheme] = paper, text.evaluate("e => getComputedStyle(e).fill")
    page.emulate_media(color_scheme="light")
    assert found["light"] == ("rgb(255, 255, 255)", "rgb(28, 33, 40)")
    assert found["dark"] == ("rgb(20, 23, 28)", "rgb(232, 234, 238)")
    assert tab.said == []


def test_every_picture_has_its_table_above_and_titles_on_its_axes(tab: Tab):
    page = tab.turn("")
    for exhibit in page.locator(".exhibit:has(figure)").all():
        assert exhibit.locator("tbody tr").count() > 0
        assert exhibit.locator("figure svg").count() == exhibit.locator("figure").count()
    for name, titles in (
        ("time", {"size, px", "time, ms"}),
        ("roofline", {"intensity, FLOP/byte", "attained, TFLOP/s"}),
    ):
        assert titles <= set(
            page.locator(f"#{name} figure").first.locator("svg .role-axis-title text").all_text_contents()
        )


def test_a_filter_changes_what_is_shown_and_the_address(tab: Tab):
    page = tab.open()
    assert set(column(page, "time", "model")) >= {"alexnet", "resnet50"}
    before = page.locator("#time figure").count()
    page.select_option("select[name=model]", "alexnet")
    page.wait_for_url(lambda url: url.endswith("#model=alexnet"))
    assert set(column(page, "time", "model")) == {"alexnet"}
    assert set(column(page, "layers", "model")) == {"alexnet"}
    assert 0 < page.locator("#time figure").count() < before
    page.select_option("select[name=gpu]", "a100")
    page.wait_for_url(lambda url: "gpu=a100" in url)
    assert set(column(page, "time", "gpu")) == {"a100"}
    page.click("#reset")
    page.wait_for_url(lambda url: "model" not in url)
    page.go_back()
    assert set(column(page, "time", "gpu")) == {"a100"}


def test_an_address_opens_the_view_with_its_filters(tab: Tab):
    page = tab.open("#view=scaling&algorithm=torch&size=224")
    assert set(column(page, "time", "algorithm")) == {"torch"}
    assert set(column(page, "heat-time", "size")) == {"224"}
    assert page.locator("nav a[aria-current]").inner_text() == "Scaling"
    assert abs(page.locator("#view-scaling").bounding_box()["y"]) < 200
    assert page.input_value("select[name=size]") == "224"


def test_views_of_one_size_show_the_reference_size_until_a_filter_names_another(tab: Tab):
    page = tab.turn("#model=alexnet")
    assert set(column(page, "layers", "size")) == {"320"}
    page.select_option("select[name=size]", "128")
    assert set(column(page, "layers", "size")) == {"128"}


def test_a_layers_name_shows_that_layer_alone(tab: Tab):
    page = tab.open()
    page.locator("#candidates td a", has_text="conv2").first.click()
    page.wait_for_url(lambda url: "layer=conv2" in url)
    assert set(column(page, "candidates", "layer")) == {"conv2"}
    assert "conv2" in page.locator("#candidates figcaption").first.inner_text()


@pytest.fixture
def phone(request: pytest.FixtureRequest, chromium: Any, tmp_path: Path) -> Iterator[Tab]:
    """The page of a model by so many algorithms with long names as the test asks for, as wide as a phone."""
    for number in range(request.param):
        reports.profile(tmp_path, "alexnet", f"implicit precomp gemm {number}", slower=1 + number / 10)
    page_file = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "-o", str(page_file)]) == 0
    tab = Tab(chromium, page_file, viewport={"width": 390, "height": 844})
    yield tab
    assert tab.said == []
    tab.context.close()


@pytest.mark.parametrize("phone", [14], indirect=True)
def test_a_heat_map_of_many_algorithms_has_room_for_its_figures(phone: Tab):
    page = phone.open(is_drawn=True)
    texts = page.locator("#heat-time svg .mark-text.role-mark text")
    ends = "all => all.map(each => each.getBoundingClientRect()).map(box => [box.left, box.right])"
    boxes = sorted(texts.evaluate_all(ends))
    assert len(boxes) == 14
    assert all(right <= left for (_, right), (left, _) in itertools.pairwise(boxes))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390  # the picture scrolls, the page does not
    assert page.locator("#heat-time .drawing").get_attribute("tabindex") == "0"


@pytest.mark.parametrize("phone", [8], indirect=True)
def test_names_in_a_legend_are_whole(phone: Tab):
    page = phone.open(is_drawn=True)
    for name in ("time", "power", "layer-times"):
        right = page.locator(f"#{name} .drawing").evaluate("box => box.getBoundingClientRect().right")
        labels = page.locator(f"#{name} svg .role-legend-label text")
        ends = labels.evaluate_all("all => all.map(each => each.getBoundingClientRect().right)")
        assert len(ends) == 8
        assert max(ends) <= right + 1, name


def test_axes_become_linear(tab: Tab):
    page = tab.turn("#model=alexnet&gpu=h200")
    ticks = page.locator("#time figure .role-axis-label text")
    before = ticks.all_text_contents()
    page.uncheck("#log")
    tab.drawn()
    assert "log=off" in page.url
    assert ticks.all_text_contents() != before
    assert tab.said == []


def test_a_column_sorts_its_table(tab: Tab):
    page = tab.turn("#model=alexnet")
    page.click("#time th[data-column=mean_ms] button")
    times = [float(text) for text in column(page, "time", "mean_ms")]
    assert times == sorted(times, reverse=True)
    assert page.get_attribute("#time th[data-column=mean_ms]", "aria-sort") == "descending"


def test_a_table_is_saved_as_csv_with_all_rows_of_the_filter(tab: Tab):
    page = tab.turn("#model=alexnet&gpu=h200")
    with page.expect_download() as download:
        page.click("#time .csv")
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert download.value.suggested_filename == "time.csv"
    assert len(rows) == 9
    assert {row["model"] for row in rows} == {"alexnet"}
    assert [row["mean_ms"] for row in rows if row["algorithm"] == "gemm"] == ["1", "2", "3"]


@pytest.mark.parametrize(("kind", "begins"), [("SVG", b"<svg"), ("PNG", b"\x89PNG")])
def test_a_chart_is_saved(tab: Tab, kind: str, begins: bytes):
    page = tab.turn("#model=alexnet&gpu=h200")
    with page.expect_download() as download:
        page.locator("#time figure button", has_text=kind).first.click()
    assert Path(download.value.path()).read_bytes().startswith(begins)
    assert re.fullmatch(rf"time_alexnet_h200[\w.-]+\.{kind.lower()}", download.value.suggested_filename)


def test_axe_finds_no_serious_fault_in_light_or_dark(chromium: Any, page_file: Path):
    tab = Tab(chromium, page_file, bypass_csp=True)
    page = tab.open("#model=alexnet&gpu=h200", is_drawn=True)
    page.evaluate(AXE_FILE_PATH.read_text())
    faults = []
    for scheme, rules in (("light", {}), ("dark", {"runOnly": ["color-contrast"]})):
        page.emulate_media(color_scheme=scheme)
        # A picture is an image with a name: what it is made of is not read.
        found = page.evaluate(
            "rules => axe.run({exclude: ['.drawing svg']}, {resultTypes: ['violations'], ...rules})", rules
        )
        grave = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
        faults += [(scheme, each["id"], each["nodes"][0]["html"]) for each in grave]
        assert len(found["passes"]) > 0
    tab.context.close()
    assert faults == []


def test_the_keyboard_reaches_everything(tab: Tab):
    page = tab.open("#model=alexnet&gpu=a100", is_drawn=True)
    wanted = page.evaluate(
        "[...document.querySelectorAll('a, button, select, input, summary, .scroll')]"
        ".filter(each => each.offsetParent !== null).length"
    )
    page.evaluate("window.reached = new Set(); addEventListener('focusin', e => window.reached.add(e.target))")
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
    assert page.evaluate("window.reached.size") >= wanted
    page.focus("nav a >> nth=1")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "view=scaling" in url)


def test_without_scripts_the_tables_are_there(chromium: Any, page_file: Path):
    tab = Tab(chromium, page_file, java_script_enabled=False)
    page = tab.open()
    assert page.locator("main h2").all_inner_texts() == list(VIEWS.values())
    assert page.locator("#time tbody tr").count() > 10
    assert page.locator("#candidates tbody tr").count() > 3
    assert page.locator(".no-script").is_visible()
    assert not page.locator(".filters").is_visible()
    tab.context.close()


def test_on_paper_controls_are_gone_and_pictures_stay(tab: Tab):
    page = tab.turn("#model=alexnet&gpu=h200")
    page.emulate_media(media="print")
    shown = [page.locator(name).first.is_visible() for name in (".filters", "nav", ".csv", "#time table", "#time svg")]
    page.emulate_media(media="screen")
    assert shown == [False, False, False, True, True]


def test_hostile_names_are_shown_and_do_nothing(chromium: Any, hostile_file: Path):
    tab = Tab(chromium, hostile_file)
    page = tab.open(is_drawn=True)
    assert tab.said == []
    assert page.title() == "What convolutions cost"
    assert page.locator("img, iframe, object").count() == 0
    (name,) = {text for text in column(page, "matrix", "model") if "script" in text}
    assert name == reports.HOSTILE.replace("\u2028", "\\u2028").replace("\x1b", "\\x1b")
    page.select_option("select[name=model]", name)
    tab.drawn()
    assert tab.said == []
    assert set(column(page, "matrix", "model")) == {name}
    with page.expect_download() as download:
        page.click("#layers .csv")
    saved = Path(download.value.path()).read_text()
    tab.context.close()
    assert "\"'=HYPERLINK(" in saved  # no formula for a spreadsheet
    assert ",' +cmd," in saved
    assert "\n=" not in saved
    assert ",=" not in saved
    assert [url for url in tab.asked if not url.startswith(("file:", "about:", "blob:"))] == []
