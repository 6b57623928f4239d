"""The controls of the page in a real browser, with the judge by brightness as the model."""

from itertools import pairwise

import pytest
from brightness import DARK, NORMAL, draw, draw_twelve
from browser import DESK, POST, ServerProcess, assert_readable, until, wait_until

from anocaps.images.decode import Fit
from anocaps.judging.spread import rate_range
from anocaps.serve.photos import remember


@pytest.fixture
def shown(browser, tmp_path):
    """A page whose only model is the judge by brightness, and its project folder."""
    folder = tmp_path / "project"
    files = [draw(folder / "photos" / "cup" / f"{k}.png", NORMAL + k) for k in range(6)]
    files += [draw(folder / "photos" / "pot" / f"{k}.png", NORMAL - 9 - k) for k in range(6)]
    files += [draw(folder / "photos" / "pan" / f"{k}.png", 90 + k) for k in range(6)]
    (folder / "models").mkdir()
    remember(files, Fit(32, 32, 1, "resize"), folder / "models" / "bright.normal.npz")
    server = ServerProcess(folder, bright=True).start()
    try:
        page = server.open(browser, **DESK)
        yield page, folder
        assert_readable(page)
    finally:
        server.kill()


def visit(page, view):
    page.locator(f"nav a[data-view={view}]").click()


def choose_on_server(page, place, *names):
    page.locator(place).get_by_role("button", name="Use a folder on the server").click()
    for name in names:
        page.locator("#folders").get_by_role("button", name=name).click()
    page.get_by_role("button", name="Use this folder").click()


def test_classes_are_renamed_merged_and_left_out(shown):
    page, folder = shown
    choose_on_server(page, "#photos-drop", str(folder), "photos")
    counts = page.locator("#photos-count")
    wait_until(lambda: counts.inner_text() == "18 photos in 3 classes")
    page.get_by_label("Name of the class pan").fill("wok")
    page.keyboard.press("Tab")
    page.get_by_label("Name of the class wok").wait_for()
    page.get_by_label("Merge pot with another class").select_option("cup")
    wait_until(lambda: counts.inner_text() == "18 photos in 2 classes")
    page.locator(".card", has=page.get_by_label("Name of the class wok")).get_by_label(
        "use for training"
    ).uncheck()
    wait_until(lambda: counts.inner_text() == "12 photos in 1 class")
    assert page.locator(".problems").count() == 3  # few photos


def test_a_folder_of_the_server_is_watched(shown):
    page, folder = shown
    draw_twelve(folder / "new" / "line")
    visit(page, "review")
    page.get_by_label("keep watching the folder").check()
    choose_on_server(page, "#review-drop", str(folder), "new", "line")
    until(page, "document.querySelectorAll('.tile').length === 12")
    draw(folder / "new" / "line" / "later.png", DARK)
    until(page, "document.querySelectorAll('.tile').length === 13")
    assert page.locator(".flagged").count() == 3
    page.locator("#show").select_option("flagged")
    assert page.locator(".tile").count() == 3
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Go on").wait_for()


def test_single_photos_are_chosen_with_the_keyboard(shown, tmp_path):
    page, _ = shown
    visit(page, "review")
    page.get_by_label("keep watching the folder").check()
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Choose photos").press("Enter")
    chooser.value.set_files([draw(tmp_path / "a.png", DARK), draw(tmp_path / "b.png", NORMAL)])
    page.wait_for_selector(".message")  # they cannot be watched
    until(page, "document.querySelectorAll('.tile').length === 2")


def test_the_caption_follows_the_heat_that_can_be_seen(shown):
    page, folder = shown
    wanted = {"folder": str(draw_twelve(folder / "new" / "line"))}
    page.evaluate(POST, ["/api/models/bright/score-folder", wanted])
    visit(page, "review")
    until(page, "document.querySelectorAll('.tile').length === 12")
    captions = []
    for place, seen in ((page.locator(".open").first, True), (page.locator(".open").last, False)):
        place.click()
        caption = page.locator("#viewer figcaption").first
        wait_until(lambda shown=caption: shown.inner_text() != "photo")
        captions.append(caption.inner_text())
        assert page.get_by_label("Heatmap").is_enabled() == seen
        page.keyboard.press("Escape")
    assert captions[0] != captions[1]


def test_labels_of_the_chart_are_inside_it_on_a_phone(shown):
    page, folder = shown
    wanted = {"folder": str(draw_twelve(folder / "new" / "line"))}
    page.evaluate(POST, ["/api/models/bright/score-folder", wanted])
    page.set_viewport_size({"width": 390, "height": 844})
    visit(page, "review")
    until(page, "document.querySelectorAll('.tile').length === 12")
    visit(page, "results")
    left = page.locator(".chart").bounding_box()["x"]
    labels = [each.bounding_box() for each in page.locator(".chart .tick").all()]
    assert len(labels) == 3 and min(each["x"] for each in labels) >= left
    tops = sorted((each["y"], each["y"] + each["height"]) for each in labels)
    assert all(low[1] <= high[0] + 4 for low, high in pairwise(tops))


def test_random_checks_and_what_training_takes_of_them(shown):
    page, folder = shown
    page.evaluate(POST, ["/api/photos", {}])
    wanted = {"folder": str(draw_twelve(folder / "new" / "line"))}
    page.evaluate(POST, ["/api/models/bright/score-folder", wanted])
    visit(page, "review")
    until(page, "document.querySelectorAll('.tile').length === 12")
    # One photo
    page.locator(".open").first.click()
    assert not page.locator("#viewer details").evaluate("(one) => one.open")  # scores are folded
    until(page, "document.querySelector('#viewer .near img').naturalWidth > 0")
    wait_until(page.get_by_label("Heatmap").is_enabled)
    page.get_by_label("Heatmap").focus()
    page.keyboard.press("Home")
    assert page.locator("#viewer .heat").evaluate("(one) => one.style.opacity") == "0"
    page.keyboard.press("Escape")
    # What is missed
    visit(page, "results")
    page.get_by_role("button", name="Check 50 random unflagged photos").click()
    page.wait_for_selector("#viewer[open]")
    for left in range(10, 0, -1):
        until(page, f"document.querySelectorAll('#grid [data-mark=\"\"]').length === {left + 2}")
        page.keyboard.press("n")
    until(page, "document.querySelectorAll('#grid [data-mark=normal]').length === 10")
    page.keyboard.press("Escape")
    page.get_by_text("of 10 random unflagged photos are anomalous, so 0 to 3 of").wait_for()
    # A check of all: what is marked already counts
    page.get_by_role("button", name="Check 50 random photos of all").click()
    page.wait_for_selector("#viewer[open]")
    for mark, key in (("anomalous", "a"), ("unsure", "u")):
        while page.locator("#viewer [aria-pressed=true]").count():
            page.keyboard.press("ArrowRight")
        page.keyboard.press(key)
        until(page, f"document.querySelectorAll('#grid [data-mark={mark}]').length === 1")
    page.keyboard.press("Escape")
    page.locator("[data-undecided='1']").wait_for()
    # An unsure photo keeps the check open
    page.get_by_role("button", name="Check 50 random photos of all").click()
    page.wait_for_selector("#viewer[open]")
    page.keyboard.press("a")
    until(page, "document.querySelectorAll('#grid [data-mark=anomalous]').length === 2")
    page.keyboard.press("Escape")
    page.locator("[data-undecided='0']").wait_for()
    page.get_by_text("2 of 2, so 34 to 100").wait_for()
    page.emulate_media(media="print")
    assert page.locator(".printed li").count() == 2 and page.locator(".report").is_visible()
    assert not page.locator("header").is_visible()
    assert not page.get_by_role("heading", name="Take away").is_visible()
    page.emulate_media(media="screen")
    # Train again
    visit(page, "train")
    alarms = page.get_by_label("also learn from 10 photos that you marked normal")
    page.get_by_label("Calibrate on the normal photos of the random check of 12 photos").check()
    alarms.uncheck()
    page.evaluate(POST, ["/api/photos", {}])  # events come in
    with page.expect_response("**/api/photos"):
        pass
    page.wait_for_timeout(300)
    assert not alarms.is_checked()
    alarms.check()
    page.route("**/api/train", lambda route: route.fulfill(status=202, json={"job": 99}))
    with page.expect_request("**/api/train") as asked:
        page.get_by_role("button", name="Train", exact=True).click()
    assert asked.value.post_data_json == {"mode": "quick", "false_alarms": True, "audit": 2}


def test_a_server_that_cannot_train_says_what_to_install(shown):
    page, _ = shown
    without = {"can_train": False}
    page.route("**/api/state", lambda route: route.fulfill(json=route.fetch().json() | without))
    page.evaluate(POST, ["/api/photos", {}])
    page.reload()
    visit(page, "train")
    page.get_by_text("anocaps[all]").wait_for()
    assert not page.locator("#train-button").is_visible()


def test_names_are_shown_as_text(browser, tmp_path):
    """A class or file that is named like markup stays text."""
    hostile = "<img src=x onerror=document.title='bad'>"
    folder = tmp_path / "project"
    for k in range(6):
        draw(folder / "photos" / hostile / f"{hostile}{k}.png", NORMAL + k)
    server = ServerProcess(folder, bright=True).start()
    try:
        page = server.open(browser, **DESK)
        page.evaluate(POST, ["/api/photos", {}])
        page.wait_for_selector(".card")
        assert page.locator(".card .name").input_value() == hostile
        wanted = {"folder": str(folder / "photos")}
        page.evaluate(POST, ["/api/models/bright/score-folder", wanted])
        page.locator("nav a[data-view=review]").click()
        page.wait_for_selector(".tile")
        page.locator(".open").first.click()
        assert hostile in page.locator("#viewer-name").inner_text()
        assert "bad" not in page.title()
    finally:
        server.kill()


def test_the_page_computes_as_the_command_line(browser, tmp_path):
    """Ranges of false-alarm rates, and which p-values are flagged at each step of the slider."""
    server = ServerProcess(tmp_path / "project", bright=True).start()
    try:
        page = server.open(browser, **DESK)
        ask = "([name, given]) => import('/static/statistics.js').then((m) => m[name](...given))"
        for k, n in ((1, 19), (5, 99), (40, 799)):
            low, high = page.evaluate(ask, ["rateRange", [k, n]])
            assert (low, high) == pytest.approx(rate_range(k / (n + 1), n), abs=1e-6)
            steps = page.evaluate(ask, ["steps", [n]])
            assert steps == sorted(set(steps)) and steps[0] == 1 and len(steps) <= 100
            p_values = [rank / (n + 1) for rank in range(1, n + 2)]
            ranks = [page.evaluate(ask, ["rank", [p, n]]) for p in p_values[:20]]
            assert ranks == list(range(1, 21))
            assert [p <= k / (n + 1) for p in p_values[:20]] == [rank <= k for rank in ranks]
        assert page.evaluate(ask, ["wilson", [0, 50]]) == pytest.approx([0, 0.0713], abs=1e-3)
    finally:
        server.kill()


def test_the_documentation_of_the_api(browser, tmp_path):
    server = ServerProcess(tmp_path / "project", bright=True).start()
    try:
        page = server.open(browser, **DESK)
        page.goto(f"{server.address}docs")
        page.get_by_text("POST /api/score").first.wait_for()
        assert page.locator("details").count() > 20
        assert_readable(page)
    finally:
        server.kill()
