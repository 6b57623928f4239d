"""What the presets give is pinned: results of a study name a preset and its version, no numbers."""

import hashlib
import json
from dataclasses import asdict, fields

import pytest

from anocaps.base.errors import InputError
from anocaps.detectors.presets import PRESETS, Preset

PINNED = {
    # preset, version
    ("paper", 2): "6f4cc9fae0bc92b8",
    ("quick", 1): "9249533cf33a9532",
    ("deep", 1): "a9bacbf34fc40fcf",
}
# height, width, channels, classes: those of the studies, and what a user may have
SHAPES = [
    (8, 8, 1, 9), (28, 28, 1, 9), (32, 32, 2, 4), (48, 40, 3, 2), (64, 96, 3, 5), (128, 128, 3, 40),
]  # fmt: skip
IMAGES = (30, 800, 4999, 5000, 54_000, 2_000_000)


def digest(preset: Preset) -> str:
    """Of everything it gives, without its version."""

    def network(*shape: int) -> dict | str:
        try:
            config = preset.network(*shape)
        except InputError:
            return "refused"
        return {"kind": type(config).__name__} | asdict(config)

    made = {"network", "schedule", "reconstruction_weight", "version"}
    plain = [field.name for field in fields(Preset) if field.name not in made]
    given = {
        "networks": [network(*shape) for shape in SHAPES],
        "schedules": [preset.schedule(images) for images in IMAGES],
        "weights": [preset.weight_for(height * width * c) for height, width, c, _ in SHAPES],
        **{name: getattr(preset, name) for name in plain},
    }
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", PRESETS)
def test_what_a_preset_gives_is_pinned(name):
    preset = PRESETS[name]
    found = digest(preset)
    assert PINNED.get((name, preset.version)) == found, (
        f"what preset {name!r} gives has changed, and finished cells of a study would pass for "
        "cells of the new one: raise its version in src/anocaps/detectors/presets.py, and pin here "
        f"the new version with the new digest, {found}"
    )


def test_the_weight_of_the_reconstruction_is_the_preset_s_or_falls_with_the_pixels():
    assert PRESETS["paper"].weight_for(784) == PRESETS["paper"].weight_for(64) == 0.004
    assert PRESETS["quick"].weight_for(64) == 0.025
    assert PRESETS["deep"].weight_for(3 * 64 * 64) == pytest.approx(1.6 / 12288)
