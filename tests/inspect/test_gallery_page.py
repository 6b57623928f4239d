"""The gallery's page escapes every value, is written whole, and works in a browser."""

import json
import os
import re
import shutil
import subprocess
from contextlib import suppress
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery_rows import SMALL, content, make_row

from anocaps.inspect.gallery import GalleryWriter

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>$title ${x} & ü→文\n.png"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def write_evil(path: Path) -> None:
    row = {"class": EVIL, "verdict": "anomalous"}
    with GalleryWriter(path, EVIL) as writer:
        writer.add(EVIL, SMALL, SMALL, SMALL[..., 0] / 64, make_row(1, **row) | {EVIL: 1}, EVIL)
        writer.add(os.fsdecode(b"\xff.png"), None, None, None, {"error": EVIL + "\udcff"})


def test_hostile_names_are_only_text(path: Path) -> None:
    write_evil(path)
    tags = Tags()
    tags.feed(path.read_text("utf-8"))
    names = [tag for tag, _ in tags.seen]
    assert names.count("script") == 2
    assert "img" not in names
    assert not any(key.startswith("on") for _, attributes in tags.seen for key in attributes)
    rows = content(path)["rows"]
    assert rows[0][0] == EVIL.replace("\n", "\\n")
    assert rows[0][4] == EVIL
    assert rows[1][0] == r"\xff.png"


def test_nothing_is_fetched_from_elsewhere(path: Path) -> None:
    with GalleryWriter(path, "Photos") as writer:
        writer.add("a.png", SMALL, SMALL, SMALL[..., 0] / 64, make_row(1))
    page = path.read_text("utf-8")
    assert not re.search(r"(https?:)?//\w+\.|@import|url\(|fetch\(|XMLHttp|<link", page)
    assert "default-src 'none'" in page
    assert all(uri.startswith("data:image/") for uri in content(path)["images"]["0"][:3])


def test_the_same_rows_give_the_same_page_and_no_other_file(path: Path) -> None:
    write_evil(path)
    first = path.read_bytes()
    write_evil(path)
    assert path.read_bytes() == first
    assert [file.name for file in path.parent.iterdir()] == ["gallery.html"]


def test_an_interrupted_run_leaves_the_old_page(path: Path) -> None:
    write_evil(path)
    before = path.read_bytes()
    with suppress(KeyboardInterrupt), GalleryWriter(path, "Photos") as writer:
        writer.add("a.png", SMALL, None, None, make_row(1))
        raise KeyboardInterrupt
    assert path.read_bytes() == before


# ── in a browser ─────────────────────────────────────────────────────────────────────────────

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
in_browser = pytest.mark.skipif(BROWSER is None, reason="chromium is not installed")
COUNT = 10_000

ACTIONS = """
const items = () => [...document.querySelectorAll("#list > li")];
const names = () => items().slice(0, 2).map((item) => item.querySelector("h2").textContent);
const viewed = () => at("viewer-file").textContent;
const pick = (verdict) => document.querySelector("input[value='" + verdict + "']").click();
function set(id, value) {
  at(id).value = value;
  at(id).dispatchEvent(new Event("input", { bubbles: true }));
}
function press(key) {
  at("viewer").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  return viewed();
}
seen.begun = items().length;
seen.first = names();
at("more").click();
seen.more = items().length;
seen.images = items()[0].querySelectorAll("img").length;
document.querySelector(".open").click();
seen.viewed = [viewed(), press("ArrowRight"), press("ArrowRight"), press("ArrowLeft")];
at("shut").click(); seen.shut = !at("viewer").open;
set("order", "normal"); seen.normal = names();
set("order", "anomalous");
set("class", "7"); seen.seven = names();
set("class", "");
pick("not scored"); seen.bad = names();
pick("anomalous"); set("search", "/9999.P"); seen.none = items().length;
pick(""); seen.found = names();
"""


def open_page(path: Path, script: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """The page as a browser builds it, and what a script in it returns."""
    answer = 'at("more").after(Object.assign(document.createElement("pre"), { textContent: '
    script = f"{{ const seen = {{}}; {script} {answer} JSON.stringify(seen) }})); }}"
    page = path.read_text("utf-8").replace("</body>", f"<script>{script}</script></body>")
    path.write_text(page, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", path.as_uri()]
    dumped = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout.decode()
    return dumped, json.loads(unescape(dumped.rpartition("<pre>")[2].partition("</pre>")[0]))


@in_browser
def test_ten_thousand_rows_in_a_browser(path: Path, tmp_path: Path) -> None:
    with GalleryWriter(path, "Digits", alpha=0.05, score_function="knn") as writer:
        for place in np.random.default_rng(0).permutation(COUNT):  # the score, too
            verdict = "anomalous" if place < 500 else "normal"
            row = make_row(place, verdict=verdict) | {"class": str(place % 10)}
            image = np.random.default_rng(place).integers(0, 99, (8, 8, 1), dtype=np.uint8)
            image += np.uint8(place % 150)  # no two are near-copies
            writer.add(f"new/{place:04}.png", image, image, np.ones((8, 8)), row)
        writer.add("new/bad.jpg", None, None, None, {"error": "new/bad.jpg is empty"})
    assert path.stat().st_size < 5_000_000
    _, seen = open_page(path, ACTIONS, tmp_path)

    def named(*numbers: int) -> list[str]:
        return [f"new/{number:04}.png" for number in numbers]

    assert 0 < seen["begun"] < seen["more"] < 300  # items are created as they are needed
    assert seen["first"] == named(0, 1) and seen["images"] == 3
    assert seen["viewed"] == named(0, 1, 2, 1) and seen["shut"]
    assert seen["normal"] == named(9999, 9998)
    assert seen["seven"] == named(7, 17)
    assert seen["bad"] == ["new/bad.jpg"]
    assert seen["none"] == 0 and seen["found"] == named(9999)


@in_browser
def test_hostile_names_in_a_browser(path: Path, tmp_path: Path) -> None:
    write_evil(path)
    script = "seen.names = [...document.querySelectorAll('h2')].map((one) => one.textContent);"
    dumped, seen = open_page(path, script, tmp_path)
    assert seen["names"] == [EVIL.replace("\n", "\\n"), r"\xff.png"]
    tags = Tags()
    tags.feed(dumped)
    assert [tag for tag, _ in tags.seen].count("script") == 3  # with the one of this test
    assert not any("onerror" in attributes for _, attributes in tags.seen)
    images = [attributes["src"] for tag, attributes in tags.seen if tag == "img"]
    assert len(images) == 3
    assert all(str(source).startswith("data:image/") for source in images)


COPIES = """
const items = () => [...document.querySelectorAll("#list > li")];
const heat = () => getComputedStyle(document.querySelector(".heat")).opacity;
const range = document.querySelector(".opacity");
seen.begun = items().length;
document.querySelector(".copies").click();
seen.unfolded = items().map((item) => item.querySelector("h2").textContent);
seen.links = items().map((item) => item.querySelector("h2 a").getAttribute("href"));
range.value = 30;
range.dispatchEvent(new Event("input", { bubbles: true }));
seen.heat = [heat(), range.value, items().length];
document.querySelector("input[value=list]").click();
seen.list = [at("list").className, items().length];
const [photo, layer] = document.querySelectorAll(".stack img");
const boxes = [photo, layer].map((each) => each.getBoundingClientRect());
seen.over = boxes.map(({ x, y, width, height }) => [x, y, width, height].map(Math.round));
seen.shape = boxes[0].width / boxes[0].height;
seen.details = document.querySelector(".facts").open;
"""


@in_browser
def test_near_copies_unfold_and_heat_lies_over_the_photo(path: Path, tmp_path: Path) -> None:
    scenes = np.random.default_rng(0).integers(0, 256, (2, 100, 250, 3), dtype=np.uint8)
    with GalleryWriter(path, "Photos") as writer:
        for place in range(5):  # three of the first scene, two of the second
            heat = np.ones((20, 50))
            writer.add(f"{place}.png", scenes[place % 2], None, heat, make_row(place))
    _, seen = open_page(path, COPIES, tmp_path)
    assert seen["begun"] == 2
    assert seen["unfolded"] == ["0.png", "2.png", "4.png", "1.png"]
    assert all(link.endswith(name) for link, name in zip(seen["links"], seen["unfolded"]))
    assert seen["heat"] == ["0.3", "30", 4]  # the list stays
    assert seen["list"] == ["list", 2] and seen["over"][0] == seen["over"][1]
    assert abs(seen["shape"] - 2.5) < 0.05 and seen["details"] is False
