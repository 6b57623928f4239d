"""A real browser, a server in a process of its own, and photos to drop."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from image_files import write_digits
from running_server import TOKEN

from anocaps.data import load_dataset

SERVE_BRIGHT = Path(__file__).parents[1] / "serve" / "serve_bright.py"
DESK = {"viewport": {"width": 1100, "height": 780}}

# What a screen reader would read out as nothing.
NAMELESS = """() => [...document.querySelectorAll("button, a[href], input, select, img, dialog")]
  .filter((one) => one.checkVisibility())
  .filter((one) => one.tagName === "IMG" ? !one.hasAttribute("alt")
    : !(one.textContent.trim() || one.ariaLabel || one.hasAttribute("aria-labelledby")
        || (one.labels && one.labels.length)))
  .map((one) => one.outerHTML)"""


POST = """([path, body]) => fetch(path, {
  method: "POST", body: JSON.stringify(body), headers: {"content-type": "application/json"}})"""


@contextmanager
def chromium():
    """Debian's chromium, driven by Playwright; skips where one of them is missing."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("chromium is not installed")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


class ServerProcess:
    """`anocaps serve` in a process that can be killed and started again on the same port."""

    def __init__(self, folder, bright=False, slow=0.0):
        self.folder, self.bright, self.slow, self.port = folder, bright, slow, 0
        self.token = folder.parent / "token"
        self.token.write_text(TOKEN)
        self.token.chmod(0o600)

    def start(self):
        command = ["-m", "anocaps", "serve", self.folder, "--port", self.port, "--no-browser"]
        command += ["--token-file", self.token]
        if self.bright:
            command = [SERVE_BRIGHT, self.folder, self.token]
        self.process = subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=subprocess.PIPE, text=True,
            env=os.environ | {"SLOW": str(self.slow), "PORT": str(self.port)},
        )  # fmt: skip
        self.port = int(re.search(r":(\d+)/", self.process.stdout.readline())[1])
        return self

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    @property
    def address(self):
        return f"http://127.0.0.1:{self.port}/"

    def open(self, browser, **options):
        """A page; the errors of its scripts are in `page.errors`."""
        page = browser.new_context(**options).new_page()
        page.errors = []
        page.on("pageerror", lambda error: page.errors.append(str(error)))
        page.goto(f"{self.address}?token={TOKEN}")
        page.wait_for_selector(".drop", state="attached")
        return page


def assert_readable(page):
    """No script failed, every control has a name, and nothing is wider than the screen."""
    assert page.errors == []
    assert page.evaluate(NAMELESS) == []
    width = page.viewport_size["width"]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def drop_folder(page, place, folder):
    """Drag a folder over a place of the page and let it go, as from a file manager."""
    page.locator(place).scroll_into_view_if_needed()
    box = page.locator(place).bounding_box()
    files = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + 10, "data": files}
    protocol = page.context.new_cdp_session(page)
    for kind in ("dragEnter", "dragOver", "drop"):
        protocol.send("Input.dispatchDragEvent", {"type": kind, **where})
    protocol.detach()


def choose_folder(page, place, folder):
    """What a user does who clicks instead of dropping."""
    with page.expect_file_chooser() as chooser:
        page.locator(place).get_by_role("button", name="Choose a folder").click()
    chooser.value.set_files(folder)


def photos_to_drop(folder, count=30):
    """Folders train, test-normal and test-odd: fruits where they are, else digits."""
    root = Path(os.environ.get("ANOCAPS_DATA", "/nowhere")) / "fruits"
    if not root.is_dir():
        digits = load_dataset("digits")
        write_digits(folder / "train", digits, (0, 1, 2), count, enlarge=4)
        write_digits(folder / "test-odd", digits, (7,), 8, enlarge=4)
        for number in (0, 1):  # of the others, which training has not seen
            later = write_digits(folder / "later", digits, (number,), count + 8, enlarge=4)
            for file in sorted((later / f"digit {number}").iterdir())[count:]:
                target = folder / "test-normal" / f"digit {number}" / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                file.rename(target)
        shutil.rmtree(folder / "later")
        return folder
    wanted = {"train": (("lemon", "orange", "plum"), count), "test-normal": (("lemon", "plum"), 8)}
    for part, (classes, most) in (wanted | {"test-odd": (("kiwi", "walnut"), 6)}).items():
        for name in classes:
            (folder / part / name).mkdir(parents=True)
            for file in sorted((root / part / name).iterdir())[:most]:
                shutil.copy(file, folder / part / name)
    return folder


def wait_until(holds, seconds=60.0):
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.05)


def until(page, expression, seconds=60.0):
    """Wait until an expression is true in the page, which forbids Playwright's own way to do so."""
    wait_until(lambda: page.evaluate(expression) or page.wait_for_timeout(30), seconds)
