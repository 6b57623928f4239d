"""The most similar normal photo: from training to the gallery."""

import numpy as np
import pytest
from gallery_rows import content
from image_files import save

from anocaps import load
from anocaps.base.extras import pretrained_available

pytestmark = pytest.mark.skipif(
    not pretrained_available(), reason="the extra photo is not installed"
)


@pytest.fixture
def photos(tmp_path):
    """30 photos of noise, each in colours of its own."""
    rng = np.random.default_rng(0)
    for k in range(30):
        cells = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        save(tmp_path / "photos" / "cups" / f"{k:02}.png", cells.repeat(8, 0).repeat(8, 1))
    return tmp_path / "photos"


def test_a_training_photo_is_the_most_similar_one_to_itself(command, photos, tmp_path):
    model = tmp_path / "models" / "m.safetensors"
    model.parent.mkdir()
    words = ("--size", 64, "--device", "cpu", "--no-self-check")
    code, _, errors = command("train", photos, "-o", model, *words)
    assert code == 0, errors
    record = load(model).record_
    assert record["source"]["path"] == "../photos"
    names = record["kept_files"]
    assert len(names) == record["training_images"] and "cups/" in names[0]

    page = tmp_path / "page.html"
    code, _, errors = command("score", model, photos, "--gallery", page, "--device", "cpu")
    assert code == 0, errors
    found = content(page)
    seen = {row[0].split("photos/")[1]: row[10] for row in found["rows"]}
    assert len(seen) == 30 and all(seen[name] == name for name in names)
    assert set(found["normal"]) == set(seen.values())

    photos.rename(tmp_path / "elsewhere")  # only the names are left
    command("score", model, tmp_path / "elsewhere", "--gallery", page, "--device", "cpu")
    assert content(page)["normal"] == {} and content(page)["rows"][0][10] in names
