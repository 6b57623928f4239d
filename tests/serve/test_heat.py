"""The heat that the page lays over a photo."""

import io

import numpy as np
from brightness import Brightness
from PIL import Image

from anocaps.serve.scoring import heat_over_photo


def test_heat_has_the_proportions_of_the_photo_and_lies_where_it_is_dark(tmp_path):
    photo = Image.new("L", (80, 40), 255)
    photo.paste(0, (60, 0, 80, 40))  # the judge reconstructs everything as white
    photo.save(tmp_path / "photo.png")
    content = heat_over_photo(Brightness(), tmp_path / "photo.png")
    with Image.open(io.BytesIO(content)) as layer:
        assert layer.width == 2 * layer.height
        opacity = np.asarray(layer)[:, :, 3]
    right = opacity[:, 3 * opacity.shape[1] // 4 :]
    assert right.mean() > 100 and opacity[:, : opacity.shape[1] // 3].max() == 0


def test_a_model_without_heat_has_no_layer(tmp_path):
    Image.new("L", (8, 8)).save(tmp_path / "photo.png")
    judge = Brightness()
    judge.heat_scale = None
    assert heat_over_photo(judge, tmp_path / "photo.png") is None
