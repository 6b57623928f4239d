"""Links to folders: followed once, but not in a circle and not to a folder above, and told of."""

import json
from pathlib import Path

import pytest
from brightness import NORMAL, draw

from anocaps.base.errors import DataError
from anocaps.images import ImageFolder
from anocaps.images.check import check_folder, sentences
from anocaps.images.folder import find_classes
from anocaps.images.walk import PassedOver, list_images
from anocaps.inspect.listing import Listing


@pytest.fixture
def photos(tmp_path) -> Path:
    """Two classes of 20 images in home/photos, with others in home beside it and in elsewhere."""
    for k in range(20):
        draw(tmp_path / "home" / "photos" / "a" / f"{k:02}.png", k)
        draw(tmp_path / "home" / "photos" / "b" / f"{k:02}.png", 100 + k)
    draw(tmp_path / "home" / "mine.png", 200)
    draw(tmp_path / "elsewhere" / "more" / "x.png", 210)
    return tmp_path / "home" / "photos"


def link(path: Path, target: Path | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target, target_is_directory=True)
    return path


def astray(photos: Path) -> list[Path]:
    """One of every kind, in the order in which they are met."""
    return [
        link(photos / "gone", photos / "nothing"),
        link(photos / "la", "lb"),
        link(photos / "lb", "la"),
        link(photos / "up", "../.."),  # a class that would hold everything
        link(photos / "whole", photos),
        link(photos / "a" / "deep" / "loop", photos / "a"),
        link(photos / "a" / "itself", "itself"),
        link(photos / "a" / "up", "../.."),
        link(photos / "b" / "out.png", "../../.."),  # a folder, whatever its name
    ]


def names(classes: dict[str, list[Path]]) -> dict[str, list[str]]:
    return {name: [file.name for file in files] for name, files in classes.items()}


# ── what is taken ────────────────────────────────────────────────────────────────────────────


def test_classes_are_what_they_are_without_links_astray(photos):
    plain = find_classes(photos).classes
    links, found = astray(photos), find_classes(photos)
    assert found.classes == plain
    assert found.passed.links == links and not found.passed.others
    assert ImageFolder(photos).class_names == ("a", "b")


def test_a_flat_folder_with_a_link_up_is_flat(photos):
    up = link(photos / "a" / "up", "..")
    found = find_classes(photos / "a")
    assert names(found.classes) == {"a": [f"{k:02}.png" for k in range(20)]}
    assert found.passed.links == [up]


def test_no_link_is_followed_where_that_is_asked_for(photos, tmp_path):
    x = tmp_path / "elsewhere" / "more" / "x.png"
    links = [
        link(photos / "c", tmp_path / "elsewhere"),
        link(photos / "a" / "more", tmp_path / "elsewhere"),
        link(photos / "a" / "x.png", x),
    ]
    found = find_classes(photos, follow_links=False)
    assert {name: len(files) for name, files in found.classes.items()} == {"a": 20, "b": 20}
    assert [Path(p) for p in check_folder(photos, follow_links=False).links] == links
    assert ImageFolder(photos, follow_links=False).passed.links == links
    passed = PassedOver()
    assert len(list(list_images([photos], passed, follow_links=False))) == 40
    assert set(passed.links) == set(links)
    assert len(Listing([photos], follow_links=False)) == 40
    assert len(find_classes(photos).classes["c"]) == 1 and len(Listing([photos])) == 42


def test_a_class_elsewhere_does_not_lead_back(photos, tmp_path):
    """From where a link has led, the folders above the first one are still not to be taken in."""
    elsewhere = tmp_path / "elsewhere"
    link(photos / "c", elsewhere)
    links = [
        link(elsewhere / target.name, target)
        for target in (photos.parent, photos)  # sorted: home, photos
    ]
    links.append(link(elsewhere / "more" / "back", elsewhere))
    found = find_classes(photos)
    assert names(found.classes)["c"] == ["x.png"]
    seen = [photos / "c" / link.relative_to(elsewhere) for link in links]
    assert sorted(found.passed.links) == sorted(seen)


@pytest.mark.parametrize("root", ["home/photos", "../here/home/photos", "home/photos/a/../"])
def test_folders_are_told_from_each_other_however_they_are_named(
    photos, tmp_path, monkeypatch, root
):
    (tmp_path / "here").mkdir()
    (tmp_path / "home").rename(tmp_path / "here" / "home")
    monkeypatch.chdir(tmp_path / "here")
    up, passed = link(Path(root) / "a" / "up", "../../../.."), PassedOver()
    link(Path(root) / "b" / "more", tmp_path / "elsewhere")
    assert len(list(list_images([Path(root)], passed))) == 41
    assert passed.links == [up]


def test_a_folder_beside_is_not_above(photos, monkeypatch):
    """Even if the command is run there, and names the other folder from there."""
    beside = photos.parent / "beside"
    draw(beside / "y.png", 220)
    link(photos / "a" / "beside", beside)
    monkeypatch.chdir(beside)
    found = find_classes(Path("../photos"))
    assert "y.png" in names(found.classes)["a"]
    assert found.passed == PassedOver()


def test_ordinary_links_are_followed_once_without_a_word(photos, tmp_path):
    link(photos / "a" / "more", tmp_path / "elsewhere")
    link(photos / "a" / "once more", tmp_path / "elsewhere")
    link(photos / "a" / "z", photos / "b")
    found = find_classes(photos)
    classes = names(found.classes)
    assert classes["a"][-1] == "x.png" and len(classes["a"]) == 21 and len(classes["b"]) == 20
    assert found.passed == PassedOver()


# ── what is said ─────────────────────────────────────────────────────────────────────────────


def test_check_says_it(photos):
    links = [str(each) for each in astray(photos)]
    found = check_folder(photos)
    line = f"Not followed: 9 links: {', '.join(links)}."
    assert found.links == links and not found.refused
    assert line in sentences(found) and "Nothing is wrong with them." not in sentences(found)


def test_nothing_but_links_astray_is_an_error_that_names_them(tmp_path):
    around = link(tmp_path / "new" / "around", tmp_path / "new")
    said = rf"\. Not followed: 1 link: {around}\.$"
    with pytest.raises(DataError, match=rf"no images and no sub-folders.*{said}"):
        find_classes(tmp_path / "new")
    with pytest.raises(DataError, match=rf"there is no image here{said}"):
        Listing([tmp_path / "new"])


def test_score_says_it_once(anocaps, tmp_path):
    draw(tmp_path / "new" / "a.png", NORMAL)
    draw(tmp_path / "not new.png", NORMAL)
    up = link(tmp_path / "new" / "up", "..")
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    code, out, errors = anocaps("score", tmp_path / "model.onnx", tmp_path / "new", "--json")
    assert code == 0 and [json.loads(row)["file"] for row in out.splitlines()] == [
        str(tmp_path / "new" / "a.png")
    ]
    assert errors == f"Not followed: 1 link: {up}.\n"


def test_train_says_it_before_it_reads(anocaps, photos, tmp_path):
    links = ", ".join(map(str, astray(photos)))
    (photos / "b" / "bad.png").write_bytes(b"")  # which ends it
    code, out, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors", "--json")
    first, last = errors.splitlines()
    assert first == f"Not followed: 9 links: {links}."
    assert (code, out) == (2, "") and "bad.png is empty" in last
