"""The acceptance test: its figures, against the judge by brightness."""

import pytest
from brightness import DARK, Brightness, draw

from anocaps.base.errors import DataError, InputError
from anocaps.inspect.acceptance import accept, check_disjoint, measure_files
from anocaps.inspect.acceptance_report import conclusions, sentences
from anocaps.inspect.listing import Listing


def measured(judge, *folders):
    return measure_files(judge, Listing(folders))


@pytest.fixture
def normal(tmp_path):
    """20 images of normal brightness in two folders. Two are darker: p-values 0.01 and 0.03."""
    for k in range(20):
        value = {3: 90, 7: 101}.get(k, 160 + k)
        draw(tmp_path / "normal" / ("a" if k < 10 else "b") / f"{k:02}.png", value)
    return tmp_path / "normal"


@pytest.fixture
def anomalous(tmp_path):
    """Five dark images, and five that look normal."""
    for k in range(5):
        draw(tmp_path / "anomalous" / "dark" / f"{k}.png", DARK + k)
        draw(tmp_path / "anomalous" / "bright" / f"{k}.png", 190 + k)
    return tmp_path / "anomalous"


def test_shares_at_each_alpha(normal, anomalous):
    judge = Brightness()
    found = accept(judge, measured(judge, normal), measured(judge, anomalous))
    assert (found.normal, found.anomalous, found.failed) == (20, 10, [])
    assert [(at.alpha, at.found.flagged, at.false_alarms.flagged) for at in found.at] == [
        (0.01, 5, 1), (0.05, 5, 2), (0.1, 5, 2),
    ]  # fmt: skip
    share = found.at[1].found
    assert share.share == 0.5 and 0.2 < share.low < 0.5 < share.high < 0.8
    # 5 dark anomalies are below all 20 normal images, 5 bright ones above all
    assert found.auroc == 0.5 and found.auroc_low < 0.5 < found.auroc_high


def test_pretrained_features_are_labelled(normal):
    judge = Brightness()
    plain = accept(judge, measured(judge, normal), None)
    judge.card = {"pretrained": "ImageNet"}
    found = accept(judge, measured(judge, normal), None)
    assert found.as_json()["pretrained"] == "ImageNet" and plain.as_json()["pretrained"] is None
    assert sum("pretrained on ImageNet" in line for line in sentences(found)) == 1
    assert not any("pretrained" in line for line in sentences(plain))


def test_each_sub_folder_has_its_own_figures(normal, anomalous):
    judge = Brightness()
    found = accept(judge, measured(judge, normal), measured(judge, anomalous))
    by_name = {each.folder: each for each in found.folders}
    assert list(by_name) == [  # the worst of each kind first
        str(anomalous / "bright"), str(anomalous / "dark"), str(normal / "a"), str(normal / "b"),
    ]  # fmt: skip
    dark, a = by_name[str(anomalous / "dark")], by_name[str(normal / "a")]
    assert (dark.images, dark.anomalous, dark.auroc, dark.flagged.share) == (5, True, 1, 1)
    assert (a.images, a.anomalous, a.auroc, a.flagged.share) == (10, False, 0.5, 0.2)


def test_images_without_a_sub_folder_belong_to_the_named_folder(normal):
    judge = Brightness()
    found = accept(judge, measured(judge, normal / "a"), None)
    assert [each.folder for each in found.folders] == [str(normal / "a")]
    assert found.auroc is None and found.at[0].found is None


def test_a_small_calibration_set_allows_no_small_alpha(normal, anomalous):
    judge = Brightness()
    kinds = measured(judge, normal), measured(judge, anomalous)
    judge.calibration_size = 30
    found = accept(judge, *kinds)
    assert found.at[0].needs == 99 and found.at[0].found is found.at[0].false_alarms is None
    assert found.at[1].false_alarms is not None


def test_without_a_calibration_set_there_are_scores_only(normal, anomalous):
    judge = Brightness(calibrated=False)
    found = accept(judge, measured(judge, normal), measured(judge, anomalous))
    assert found.auroc == 0.5
    assert not any(at.found or at.false_alarms for at in found.at)
    assert not any(each.flagged for each in found.folders)


def test_far_more_false_alarms_than_promised_are_noticed(tmp_path, normal):
    judge = Brightness()
    assert not any(at.too_many for at in accept(judge, measured(judge, normal), None).at)
    for k in range(20):
        draw(tmp_path / "today" / f"{k}.png", 90 + k // 4)  # another light
    found = accept(judge, measured(judge, tmp_path / "today"), None)
    assert all(at.too_many for at in found.at) and conclusions(found)


def test_bad_files_are_counted_and_a_folder_of_them_is_an_error(tmp_path, normal, anomalous):
    (anomalous / "dark" / "0.png").write_bytes(b"")
    judge = Brightness()
    good, bad = measured(judge, normal), measured(judge, anomalous)
    found = accept(judge, good, bad)
    assert found.anomalous == 9 and len(found.failed) == 1 and "0.png" in found.failed[0]
    assert {each.folder: each.failed for each in found.folders}[str(anomalous / "dark")] == 1
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x.png").write_bytes(b"")
    with pytest.raises(DataError, match=r"anomalous.*x\.png"):
        accept(judge, good, measured(judge, tmp_path / "empty"))


def test_an_image_of_both_kinds_is_refused(tmp_path, normal):
    link = tmp_path / "links" / "x.png"
    link.parent.mkdir()
    link.symlink_to(normal / "a" / "00.png")
    check_disjoint(Listing([normal / "a"]), Listing([normal / "b"]))
    for other in (normal, link.parent):
        with pytest.raises(InputError, match=r"00\.png|x\.png"):
            check_disjoint(Listing([normal / "a"]), Listing([other]))
