"""Links to folders are followed once, never in a circle or to a folder above, and are named."""

import json
from pathlib import Path

import pytest
from brightness import NORMAL, draw

from anocaps.base.errors import DataError
from anocaps.images import ImageFolder
from anocaps.images.check import check_folder
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


def bad_links(photos: Path) -> list[Path]:
    """Links of every kind that is not followed, in the order of the walk."""
    return [
        link(photos / "gone", photos / "nothing"),
        link(photos / "la", "lb"),
        link(photos / "lb", "la"),
        link(photos / "up", "../.."),  # would be a class of all images
        link(photos / "whole", photos),
        link(photos / "a" / "deep" / "loop", photos / "a"),
        link(photos / "a" / "itself", "itself"),
        link(photos / "a" / "up", "../.."),
        link(photos / "b" / "out.png", "../../.."),  # a folder despite its name
    ]


def names(classes: dict[str, list[Path]]) -> dict[str, list[str]]:
    return {name: [file.name for file in files] for name, files in classes.items()}


def test_bad_links_change_no_class(photos):
    plain = find_classes(photos).classes
    links, found = bad_links(photos), find_classes(photos)
    assert found.classes == plain
    assert found.passed.links == links and not found.passed.others
    assert ImageFolder(photos).class_names == ("a", "b")


def test_a_flat_folder_with_a_link_up_stays_flat(photos):
    up = link(photos / "a" / "up", "..")
    found = find_classes(photos / "a")
    assert names(found.classes) == {"a": [f"{k:02}.png" for k in range(20)]}
    assert found.passed.links == [up]


def test_no_link_is_followed_if_links_are_switched_off(photos, tmp_path):
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
    """Behind a link, the folders above the first folder are still not followed."""
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
def test_a_link_up_is_found_however_the_folder_is_named(photos, tmp_path, monkeypatch, root):
    (tmp_path / "here").mkdir()
    (tmp_path / "home").rename(tmp_path / "here" / "home")
    monkeypatch.chdir(tmp_path / "here")
    up, passed = link(Path(root) / "a" / "up", "../../../.."), PassedOver()
    link(Path(root) / "b" / "more", tmp_path / "elsewhere")
    assert len(list(list_images([Path(root)], passed))) == 41
    assert passed.links == [up]


def test_ordinary_links_are_followed_once_without_a_message(photos, tmp_path):
    link(photos / "a" / "more", tmp_path / "elsewhere")
    link(photos / "a" / "once more", tmp_path / "elsewhere")
    link(photos / "a" / "z", photos / "b")
    found = find_classes(photos)
    classes = names(found.classes)
    assert classes["a"][-1] == "x.png" and len(classes["a"]) == 21 and len(classes["b"]) == 20
    assert found.passed == PassedOver()


def test_a_folder_of_bad_links_only_is_an_error_that_names_them(tmp_path):
    around = link(tmp_path / "new" / "around", tmp_path / "new")
    for function in (find_classes, lambda folder: Listing([folder])):
        with pytest.raises(DataError, match=str(around)):
            function(tmp_path / "new")


def test_score_names_the_links_once(anocaps, tmp_path):
    draw(tmp_path / "new" / "a.png", NORMAL)
    draw(tmp_path / "not new.png", NORMAL)
    up = link(tmp_path / "new" / "up", "..")
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    code, out, errors = anocaps("score", tmp_path / "model.onnx", tmp_path / "new", "--json")
    assert code == 0 and [json.loads(row)["file"] for row in out.splitlines()] == [
        str(tmp_path / "new" / "a.png")
    ]
    assert str(up) in errors and errors.count("\n") == 1


def test_train_names_the_links_before_it_reads(anocaps, photos, tmp_path):
    links = bad_links(photos)
    (photos / "b" / "bad.png").write_bytes(b"")  # ends the command
    code, out, errors = anocaps("train", photos, "-o", tmp_path / "m.safetensors", "--json")
    first, last = errors.splitlines()
    assert all(str(each) in first for each in links)
    assert (code, out) == (2, "") and "bad.png" in last
