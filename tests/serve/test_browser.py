"""The page in a real browser: the whole way of somebody who does not program.

ANOCAPS_SCREENSHOTS names a folder for screenshots; the tutorial uses them.
"""

import csv
import os
import sqlite3
import zipfile
from pathlib import Path

import pytest
from brightness import DARK, NORMAL, draw
from browser import (
    DESK,
    ServerProcess,
    assert_readable,
    choose_folder,
    drop_folder,
    photos_to_drop,
    until,
    wait_until,
)

SHOTS = os.environ.get("ANOCAPS_SCREENSHOTS")
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


@pytest.fixture(scope="module")
def drops(tmp_path_factory):
    return photos_to_drop(tmp_path_factory.mktemp("drops"))


def shoot(page, name):
    if SHOTS:
        page.wait_for_timeout(400)  # images that are being loaded
        page.screenshot(path=Path(SHOTS) / f"{name}.png")


def one_row(folder, query):
    with sqlite3.connect(folder / "project.sqlite") as database:
        return database.execute(query).fetchone()


def test_the_whole_way(browser, drops, tmp_path):
    server = ServerProcess(tmp_path / "fruit").start()
    try:
        page = server.open(browser, **DESK)
        shoot(page, "serve-empty")
        assert_readable(page)
        # Photos
        drop_folder(page, "#photos-drop", drops / "train")
        page.wait_for_selector(".card")
        assert page.locator(".card").count() == 3
        until(page, "document.querySelectorAll('.thumbs img').length === 18")
        shoot(page, "serve-photos")
        assert_readable(page)
        page.get_by_label("as the network sees it").check()
        page.wait_for_selector(".thumbs img.pixels")
        # Train
        page.get_by_role("link", name="Next: train").click()
        for mode in ("quick", "full"):  # a few steps are timed
            until(page, f"/about/.test(document.getElementById('time-{mode}').textContent)")
        page.get_by_role("button", name="Train", exact=True).click()
        page.wait_for_selector("#training:not([hidden])")
        until(page, "/loss .* left/.test(document.getElementById('training-facts').textContent)")
        shoot(page, "serve-training")
        assert_readable(page)
        page.wait_for_selector(".model-card", timeout=120_000)
        assert page.locator(".card-lines li").count() == 4
        assert page.locator(".bars tr").count() >= 2
        shoot(page, "serve-trained")
        assert_readable(page)
        # Review: both folders join one list
        page.get_by_role("link", name="Next: review photos").click()
        drop_folder(page, "#review-drop", drops / "test-normal")
        page.wait_for_selector(".tile")
        drop_folder(page, "#review-drop", drops / "test-odd")
        new = sum(1 for part in ("test-normal", "test-odd") for f in (drops / part).rglob("*.*"))
        until(page, f"document.querySelectorAll('.tile').length === {new}")
        counts = page.locator("#counts")
        assert f" of {new} flagged" in counts.inner_text()
        page.evaluate("scrollTo(0, 0)")
        page.locator(".open").first.hover()
        until(page, "document.querySelector('.tile .heat').naturalWidth > 0")
        shoot(page, "serve-review")
        assert_readable(page)
        # The slider moves in steps of the calibration set; counts follow at once.
        before = counts.inner_text()
        page.locator("#alpha").focus()
        for _ in range(4):
            page.keyboard.press("ArrowRight")
        assert counts.inner_text() != before
        for _ in range(4):
            page.keyboard.press("ArrowLeft")
        assert counts.inner_text() == before
        # Mark three with the keyboard alone
        page.locator(".open").first.focus()
        page.keyboard.press("a")  # in the grid
        page.wait_for_selector("[data-mark='anomalous']")
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")
        page.wait_for_selector("#viewer[open]")
        until(page, "document.querySelector('#viewer .heat').naturalWidth > 0")
        if page.evaluate("fetch('/api/photos').then((a) => a.json()).then((all) => all.photo)"):
            wait_until(page.get_by_label("Heatmap").is_enabled)  # the heat can be seen
        shoot(page, "serve-photo")
        assert_readable(page)
        first = page.locator("#viewer-name").inner_text()
        page.keyboard.press("n")
        until(page, "document.querySelectorAll('[data-mark=normal]').length === 1")
        page.keyboard.press("u")
        until(page, "document.querySelectorAll('[data-mark=unsure]').length === 1")
        page.keyboard.press("ArrowLeft")
        page.keyboard.press("ArrowLeft")
        assert page.locator("#viewer-name").inner_text() == first
        page.keyboard.press("Escape")
        # Results
        page.get_by_role("link", name="Next: results").click()
        page.wait_for_selector(".figure-number")
        assert "1 of 2" in page.locator("#results-body").inner_text()
        shoot(page, "serve-results")
        assert_readable(page)
        saved = {}
        for name in ("Table (CSV)", "Flagged photos (zip)", "Model"):
            with page.expect_download() as download:
                page.get_by_role("link", name=name).click()
            saved[name] = tmp_path / download.value.suggested_filename
            download.value.save_as(saved[name])
        rows = list(csv.DictReader(saved["Table (CSV)"].open(encoding="utf-8")))
        assert len(rows) == new
        marks = sorted(row["mark"] for row in rows if row["mark"])
        assert marks == ["anomalous", "normal", "unsure"]
        flagged = sum(row["verdict"] == "anomalous" for row in rows)
        assert flagged == len(zipfile.ZipFile(saved["Flagged photos (zip)"]).namelist()) > 0
        assert saved["Model"].stat().st_size > 10_000
        # A phone, in the dark, without motion: the same project
        phone = server.open(browser, color_scheme="dark", reduced_motion="reduce", **PHONE)
        for view in ("photos", "train", "review", "results"):
            phone.locator(f"nav a[data-view={view}]").tap()
            phone.wait_for_selector(f"#{view}:not([hidden])")
            shoot(phone, f"serve-phone-{view}")
            assert_readable(phone)
        dark = phone.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark != page.evaluate("getComputedStyle(document.body).backgroundColor")
    finally:
        server.kill()
    # What the user said is still there.
    assert one_row(tmp_path / "fruit", "SELECT COUNT(*) FROM marks") == (3,)


def test_training_is_stopped_and_the_server_killed(browser, drops, tmp_path):
    """Neither loses what was learned."""
    folder = tmp_path / "fruit"
    server = ServerProcess(folder).start()
    try:
        page = server.open(browser, **DESK)
        choose_folder(page, "#photos-drop", drops / "train")
        page.wait_for_selector(".card")
        page.get_by_role("link", name="Next: train").click()
        page.get_by_role("button", name="Train", exact=True).click()
        (checkpoint,) = wait_for_files(folder / "training", "*/*.checkpoint")
        stop, facts = page.get_by_role("button", name="Stop"), page.locator("#training-facts")
        stop.focus()
        before = facts.inner_text()
        wait_until(lambda: facts.inner_text() != before)
        page.keyboard.press("Enter")  # the button still has the focus
        page.get_by_role("button", name="Go on").click(timeout=30_000)
        page.get_by_role("button", name="Stop").wait_for()
        server.kill()
        assert checkpoint.exists()
        assert one_row(folder, "SELECT state FROM jobs WHERE kind = 'train'") == ("running",)
        server.start()  # the page, which is still open, finds it again
        page.wait_for_selector(".model-card", timeout=120_000)
        assert not checkpoint.exists() and list((folder / "models").glob("*.safetensors"))
    finally:
        server.kill()


def wait_for_files(folder, pattern):
    wait_until(lambda: list(folder.glob(pattern)))
    return list(folder.glob(pattern))


def test_a_server_killed_in_the_middle_of_scoring(browser, tmp_path):
    photos = tmp_path / "photos"
    for k in range(24):
        draw(photos / f"{k:02}.png", DARK if k % 3 == 0 else NORMAL)
    server = ServerProcess(tmp_path / "project", bright=True, slow=0.3).start()
    try:
        page = server.open(browser, **DESK)
        page.locator("nav a[data-view=review]").click()
        choose_folder(page, "#review-drop", photos)
        page.wait_for_selector(".tile")
        server.kill()
        (done,) = one_row(tmp_path / "project", "SELECT COUNT(*) FROM rows")
        assert 0 < done < 24
        server.slow = 0
        server.start()
        until(page, "document.querySelectorAll('.tile').length === 24", 30)
        assert "8 of 24 flagged" in page.locator("#counts").inner_text()
        assert one_row(tmp_path / "project", "SELECT COUNT(*) FROM rows") == (24,)
    finally:
        server.kill()
