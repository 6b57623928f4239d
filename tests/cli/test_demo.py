"""The demo trains its networks together or one by one, with the same results."""

import numpy as np

from anocaps.study import demo


def test_a_fleet_gives_what_each_network_gives_alone():
    _, (ours, shown) = demo._fleet([2, 7], epochs=1, seed=0)
    theirs, also_shown = demo._cell(7, epochs=1, seed=0)
    assert ours.held_out == theirs.held_out == ("7",)
    assert ours.scores.keys() == theirs.scores.keys()
    for name, values in ours.scores.items():
        np.testing.assert_allclose(values, theirs.scores[name], rtol=1e-5)
    assert shown.looks_like == also_shown.looks_like
    assert set(shown.looks_like) <= set("012345689")  # 7 is held out …
    assert "0" in shown.looks_like  # … all others are known
