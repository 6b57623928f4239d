"""`anocaps.score_files`: the rows of the command, in Python."""

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from brightness import Brightness, draw, draw_twelve

import anocaps
from anocaps.base.errors import InputError
from anocaps.inspect.scoring import score_batches


def test_its_rows_are_those_of_the_command(tmp_path):
    folder = draw_twelve(tmp_path / "new")
    (folder / "bad.png").write_bytes(b"no image")
    found = anocaps.score_files(Brightness(), folder, alpha=0.05)
    batches = score_batches(Brightness(), sorted(folder.iterdir()), 0.05)
    for scored, want in zip(found, (each for batch in batches for each in batch), strict=True):
        row = want.row
        assert scored.file == want.file and scored.predicted == row["class"]
        for name in ("score", "p_value", "verdict", "error", "p_value_class"):
            assert getattr(scored, name) == row[name]
        assert scored.scores == {"mean": row["score"], "largest": row["largest"]}
    assert [row.verdict for row in found].count("anomalous") == 2
    with pytest.raises(FrozenInstanceError):
        found[0].score = 1.0


def test_without_alpha_the_calibration_set_sets_the_least(tmp_path):
    class Few(Brightness):
        def __init__(self):
            super().__init__()
            self.calibration_size = 9

    file = draw(tmp_path / "a.png", 20)
    (row,) = anocaps.score_files(Few(), [file, str(file)])
    assert row.verdict == "anomalous"
    with pytest.raises(InputError, match="alpha"):
        anocaps.score_files(Few(), file, alpha=0.05)


def test_a_detector_its_file_and_its_export_give_the_same_rows(tmp_path, digits):
    from anocaps.export.writer import export

    few = digits.train.labels < 2
    detector = anocaps.CapsNetDetector("quick", epochs=2, device="cpu")
    detector.fit(digits.train.images[few], digits.train.labels[few])
    detector.save(tmp_path / "m.safetensors")
    export(detector, tmp_path / "m.onnx")
    folder = draw_twelve(tmp_path / "new")
    want = anocaps.score_files(detector, folder)
    for model in (str(tmp_path / "m.safetensors"), tmp_path / "m.onnx"):
        found = anocaps.score_files(model, [folder], device="cpu")
        assert [row.verdict for row in found] == [row.verdict for row in want]
        np.testing.assert_allclose(
            [list(row.scores.values()) for row in found],
            [list(row.scores.values()) for row in want],
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip
