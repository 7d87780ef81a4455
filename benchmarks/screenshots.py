#!/usr/bin/env python3
"""Screenshots of a report for docs/report.md and README, by Chromium. Asserts nothing.

python benchmarks/screenshots.py docs/example-report.html docs/images
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

EXHIBITS = {"report_heat": "heat-time", "report_choice": "choice-passes"}
WIDTH_PX, TOP_PX = 1120, 590


def main() -> None:
    """Write the first screen, and a chart of each exhibit."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("page", type=Path)
    options.add_argument("folder", type=Path)
    asked = options.parse_args()
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH_PX, "height": 2400}, device_scale_factor=2)
        page.goto(asked.page.resolve().as_uri())
        page.wait_for_selector("html[data-drawn=all]", state="attached")
        page.screenshot(
            path=asked.folder / "report_overview.png", clip={"x": 0, "y": 0, "width": WIDTH_PX, "height": TOP_PX}
        )
        for name, exhibit in EXHIBITS.items():
            page.locator(f"#{exhibit} .charts svg").first.screenshot(path=asked.folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
