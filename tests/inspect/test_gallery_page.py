"""The gallery's page lets nothing in or out, is whole or not written, and works in a browser."""

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

from anocaps.data import Dataset
from anocaps.inspect.gallery import GalleryWriter

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>$title ${x} & ü→文\n.png"


# ── safe and whole ───────────────────────────────────────────────────────────────────────────


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
    assert all(uri.startswith("data:image/png") for uri in content(path)["images"]["0"])


def test_same_rows_same_page_and_nothing_else(path: Path, tmp_path: Path) -> None:
    for target in (path, tmp_path / "other.html"):
        write_evil(target)
    assert path.read_bytes() == (tmp_path / "other.html").read_bytes()
    assert [file.name for file in path.parent.iterdir()] == ["gallery.html"]


def test_an_interrupted_run_leaves_the_old_page(path: Path) -> None:
    write_evil(path)
    before = path.read_bytes()
    with suppress(KeyboardInterrupt), GalleryWriter(path, "Photos") as writer:
        writer.add("a.png", SMALL, None, None, make_row(1))
        raise KeyboardInterrupt
    assert path.read_bytes() == before


def test_a_page_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        GalleryWriter(tmp_path, "Photos")


# ── in a browser ─────────────────────────────────────────────────────────────────────────────

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
in_browser = pytest.mark.skipif(BROWSER is None, reason="there is no chromium to open the page in")
COUNT = 10_000

ACTIONS = """
const items = () => [...document.querySelectorAll("#list > li")];
const names = () => items().slice(0, 3).map((item) => item.querySelector("h2").textContent);
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
seen.count = at("count").textContent;
at("more").click();
seen.more = items().length;
seen.text = items()[0].textContent;
seen.alts = [...items()[0].querySelectorAll("img")].map((image) => image.alt);
seen.verdicts = [...document.querySelectorAll("#verdicts label")].map((one) => one.textContent);
seen.classes = [...at("class").options].map((option) => option.textContent);
document.querySelector(".open").click();
seen.viewed = [viewed(), press("ArrowRight"), press("ArrowRight"), press("ArrowLeft")];
at("shut").click(); seen.shut = !at("viewer").open;
set("order", "normal"); seen.normal = names();
set("order", "file"); seen.file = names();
set("order", "anomalous");
set("class", "7"); seen.seven = names();
set("class", "");
pick("not scored"); seen.bad = names();
seen.plain = items()[0].querySelectorAll("img").length;
pick("anomalous"); seen.anomalous = at("count").textContent;
set("search", "/9999.P"); seen.none = items().length;
pick(""); seen.found = names();
"""


def open_page(path: Path, script: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """What a browser has made of the page, and what a script in it has seen."""
    answer = 'at("more").after(Object.assign(document.createElement("pre"), { textContent: '
    script = f"{{ const seen = {{}}; {script} {answer} JSON.stringify(seen) }})); }}"
    page = path.read_text("utf-8").replace("</body>", f"<script>{script}</script></body>")
    path.write_text(page, encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--user-data-dir={folder / 'browser'}", path.as_uri()]
    dumped = subprocess.run(command, check=True, capture_output=True, timeout=300).stdout.decode()
    return dumped, json.loads(unescape(dumped.rpartition("<pre>")[2].partition("</pre>")[0]))


@in_browser
def test_ten_thousand_rows_in_a_browser(path: Path, tmp_path: Path, digits: Dataset) -> None:
    images, labels = digits.test.images[..., None], digits.test.labels
    places = np.random.default_rng(0).permutation(COUNT)
    with GalleryWriter(path, "Digits", alpha=0.05, score_function="knn") as writer:
        for place in places:  # its score, too
            image = images[place % len(images)]
            kind = str(labels[place % len(images)])
            verdict = "anomalous" if place < 500 else "normal"
            row = make_row(place, verdict=verdict, p_value=(place + 1) / COUNT) | {"class": kind}
            writer.add(f"new/{place:04}.png", image, image, np.ones((8, 8)), row)
        writer.add("new/bad.jpg", None, None, None, {"error": "new/bad.jpg is empty"})
    assert path.stat().st_size < 5_000_000
    _, seen = open_page(path, ACTIONS, tmp_path)

    def named(*numbers: int) -> list[str]:
        return [f"new/{number:04}.png" for number in numbers]

    assert seen["first"] == named(0, 1, 2)
    assert seen["count"] == "10,001 listed"
    assert 0 < seen["begun"] < seen["more"] < 300  # made as they are needed
    assert "anomalous" in seen["text"] and "p-value 0.0001" in seen["text"]
    assert "score (knn) 0" in seen["text"]
    assert seen["alts"] == ["original", f"reconstructed as {labels[0]}", "where they differ"]
    assert seen["verdicts"] == ["all 10,001", "anomalous 500", "normal 9,500", "not scored 1"]
    sevens = np.flatnonzero(labels[np.arange(COUNT) % len(images)] == 7)
    assert f"7 ({len(sevens):,})" in seen["classes"]
    assert len(seen["classes"]) == 11
    assert seen["viewed"] == named(0, 1, 2, 1)
    assert seen["shut"]
    assert seen["normal"] == named(9999, 9998, 9997)
    assert seen["file"] == named(0, 1, 2)
    assert seen["seven"] == named(*sevens[:3])
    assert seen["bad"] == ["new/bad.jpg"]
    assert seen["plain"] == 0
    assert seen["anomalous"] == "500 of 10,001 listed"
    assert seen["none"] == 0
    assert seen["found"] == named(9999)


@in_browser
def test_hostile_names_in_a_browser(path: Path, tmp_path: Path) -> None:
    write_evil(path)
    script = "seen.names = [...document.querySelectorAll('h2')].map((one) => one.textContent);"
    dumped, seen = open_page(path, script, tmp_path)
    assert seen["names"] == [EVIL.replace("\n", "\\n"), r"\xff.png"]
    tags = Tags()
    tags.feed(dumped)
    assert [tag for tag, _ in tags.seen].count("script") == 3  # with the one above
    assert not any("onerror" in attributes for _, attributes in tags.seen)
    images = [attributes["src"] for tag, attributes in tags.seen if tag == "img"]
    assert len(images) == 3
    assert all(str(source).startswith("data:image/") for source in images)
