"""A result file holds everything, and any damage to it is one line that names the file."""

import hashlib
import io
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from study_results import DIGITS, make_result

from anocaps.base.errors import DataError
from anocaps.judging.metrics import auroc
from anocaps.study import resultfile
from anocaps.study.resultfile import read_fingerprint, read_result, write_result

RESULT = make_result(held_out=("2", "7"), reconstructions=3)


@pytest.fixture
def path(tmp_path) -> Path:
    write_result(tmp_path / "a.npz", RESULT, "f00")
    return tmp_path / "a.npz"


def seal(content: bytes) -> bytes:
    """With a right checksum in place of the last bytes."""
    body = content[:-64]
    return body + hashlib.sha256(body).hexdigest().encode()


def forge(path: Path, **changed: object) -> None:
    """Write the file again with other arrays, None for none, and a right checksum."""
    with np.load(path) as stored:
        arrays = {name: stored[name] for name in stored.files} | changed
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{k: v for k, v in arrays.items() if v is not None})
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = bytes(64)
    path.write_bytes(seal(buffer.getvalue()))


def refused(path: Path) -> str:
    for read in (read_result, read_fingerprint):
        with pytest.raises(DataError) as caught:
            read(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_a_file_holds_everything(path):
    back = read_result(path)
    assert read_fingerprint(path) == "f00"
    assert json.dumps(back.summary()) == json.dumps(RESULT.summary())
    for name in RESULT.scores:
        np.testing.assert_array_equal(back.scores[name], RESULT.scores[name])
        scores = back.scores[name]
        assert auroc(scores[~back.anomalous], scores[back.anomalous]) == RESULT.metrics[name].auroc
    for name in ("index", "labels", "predicted", "anomalous", "reconstructions"):
        np.testing.assert_array_equal(getattr(back, name), getattr(RESULT, name))
    with pytest.raises(FileNotFoundError):
        read_result(path.with_name("none.npz"))


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("mnist/capsnet/2+7-seed0", True), ("mnist/capsnet-deep/2+7-seed0", True),
        ("mnist/capsnet/2-seed0", False), ("mnist/capsnet/2+7-seed1", False),
        ("mnist/vae/2+7-seed0", False), ("cifar10/capsnet/2+7-seed0", False), ("2+7-seed0", False),
    ],
)  # fmt: skip
def test_a_file_has_the_cell_that_its_name_says(path, name, right):
    if right:
        assert read_result(path, name).held_out == ("2", "7")
        return
    with pytest.raises(DataError, match="2\\+7-seed0 of capsnet on mnist") as caught:
        read_result(path, name)
    assert str(path) in str(caught.value)


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """Flipped bits, a part that is missing, zeroed, doubled or noise, or a cut end."""
    changed = bytearray(content)
    start, stop = np.sort(generator.integers(0, len(content), 2))
    stop = min(stop + 1, start + 500)
    kind = generator.integers(6)
    if kind == 0:
        for place in generator.integers(0, len(content), generator.integers(1, 4)):
            changed[place] ^= 1 << generator.integers(8)
    elif kind == 1:
        del changed[start:stop]
    elif kind == 2:
        changed[start:stop] = bytes(stop - start)
    elif kind == 3:
        changed[start:start] = content[start:stop]
    elif kind == 4:
        changed[start:stop] = generator.bytes(stop - start)
    else:
        del changed[start:]
    return bytes(changed)


def test_no_random_damage_is_read(path):
    content, generator = path.read_bytes(), np.random.default_rng(0)
    seen = 0
    for _ in range(300):
        damaged = mutated(content, generator)
        if damaged != content:
            path.write_bytes(damaged)
            assert "checksum" in refused(path)
            seen += 1
    assert seen > 250


def test_random_damage_under_a_right_checksum_is_no_traceback(path):
    """What can still be read has all its scores."""
    content, generator = path.read_bytes(), np.random.default_rng(1)
    messages = []
    for _ in range(300):
        path.write_bytes(seal(mutated(content, generator)))
        try:
            back = read_result(path)
        except DataError as error:
            messages.append(str(error))
        else:
            for name, values in RESULT.scores.items():
                np.testing.assert_array_equal(back.scores[name], values)
    assert len(messages) > 200
    assert all(str(path) in message and "\n" not in message for message in messages)


@pytest.mark.parametrize("content", [b"", b"PK", bytes(64), b"no zip" * 50])
def test_what_is_no_archive_is_refused(path, content):
    for each in (content, seal(content)):
        path.write_bytes(each)
        refused(path)


N = RESULT.test_images


@pytest.mark.parametrize(
    "changed",
    [
        {"summary": None}, {"labels": None}, {"index_steps": None}, {"score.re": None},
        {"labels": np.zeros(N - 1, np.uint8)}, {"labels": np.full(N, 10, np.uint8)},
        {"labels": np.full(N, -1)}, {"predicted": np.zeros((N, 1), np.uint8)},
        {"index_steps": np.zeros(N + 1, np.uint32)}, {"index_steps": np.asarray("text")},
        {"score.re": np.zeros((4, N - 1), np.uint8)}, {"score.re": np.zeros((3, N), np.uint8)},
        {"score.re": np.zeros((4, N), np.float32)}, {"score.re": np.full((4, N), 255, np.uint8)},
        {"score.more": np.zeros((4, N), np.uint8)}, {"labels": np.array([{}] * N)},
        {"pictures": np.zeros((3, 12, 12), np.uint8)},
        {"pictures": np.zeros((0, 2, 12, 12, 1), np.uint8)},
        {"pictures": np.zeros((N, 2, 12, 12, 1), np.uint8)},
        {"pictures": np.zeros((3, 2, 12, 0, 1), np.uint8)},
        {"index_steps": np.full(N, 2**31, np.uint32)}, {"summary": np.asarray("{")},
        {"summary": np.asarray("[]")}, {"summary": np.asarray("[" * 100_000)},
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(path, changed):
    forge(path, **changed)
    refused(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("accuracy", "NaN"), ("accuracy", "1e999"), ("accuracy", '"high"'), ("seed", "0.5"),
        ("auroc_all", "{}"), ("metrics", "{}"), ("metrics", '{"pp": 1}'), ("record", "null"),
        ("auroc_all", '{"pp": -Infinity, "re": 1, "pp+re": 1, "mse": 1}'), ("held_out", '["x"]'),
        ("auroc_all", '{"pp": "x", "re": 1, "pp+re": 1, "mse": 1}'), ("held_out", '[["2"]]'),
        ("class_names", '"0123456789"'), ("test_images", "81"), ("fingerprint", "7"),
    ],
)  # fmt: skip
def test_metadata_that_does_not_fit_is_refused(path, name, text):
    summary = json.dumps(RESULT.summary() | {"fingerprint": "f00", name: "HERE"})
    forge(path, summary=np.asarray(summary.replace('"HERE"', text)))
    refused(path)


LENGTHS = RESULT.lengths
ONE_ABSENT = {"normal": LENGTHS["normal"]}
NO_CAPSULE = {"longest": [0] * 50, "others": [0] * 50, "long": [0, 0]}


@pytest.mark.parametrize(
    "changed",
    [
        {"auroc_all": dict.fromkeys(RESULT.scores, 5)}, {"accuracy": -0.1}, {"accuracy": 10**400},
        {"auroc_all": dict.fromkeys(RESULT.scores, True)}, {"limit": -1}, {"seed": 2**31},
        {"seed": -1}, {"seed": True}, {"held_out": []}, {"class_names": [*DIGITS[:9], "0"]},
        {"class_names": [*range(10)]}, {"class_names": [*DIGITS[:9], "\ud800"]},
        {"hashes": {"train": 5}}, {"settings": {"score": ["pp"]}}, {"lengths": {}},
        {"lengths": ONE_ABSENT}, {"lengths": LENGTHS | {"normal": NO_CAPSULE}},
        {"lengths": LENGTHS | {"normal": LENGTHS["normal"] | {"long": [-1, 99]}}},
        {"record": {"model_bytes": "many"}}, {"record": {"model_bytes": 1e300}},
        {"record": {"training": None}}, {"record": {"versions": []}},
        {"record": {"training_seconds": 1.0, "svm": {"nu": "0.1", "gamma": 1, "seconds": 1}}},
        {"record": {"training_seconds": 0, "svm": {"nu": 0.1, "gamma": 1, "seconds": 1}}},
        {"record": {"svm": {"nu": 0.1, "gamma": 1, "seconds": 1}}},
    ],
)  # fmt: skip
def test_impossible_values_are_refused(path, changed):
    """No report could be made of them."""
    summary = RESULT.summary() | {"fingerprint": "f00"} | changed
    forge(path, summary=np.asarray(json.dumps(summary)))
    refused(path)


def test_a_metric_that_no_float_can_hold_is_refused(path):
    summary = RESULT.summary() | {"fingerprint": "f00"}
    summary["metrics"]["pp"]["auroc"] = 10**400
    forge(path, summary=np.asarray(json.dumps(summary)))
    assert "finite" in refused(path)


def test_a_test_set_of_one_kind_is_refused(path):
    for number in (0, 2):  # a normal class, a held-out one
        forge(path, labels=np.full(N, number, np.uint8))
        assert "no normal or no anomalous" in refused(path)


def test_a_file_that_unpacks_to_too_much_is_refused(path, monkeypatch):
    monkeypatch.setattr(resultfile, "_MOST_BYTES", 1 << 20)
    forge(path, bomb=np.zeros(1 << 21, np.uint8))
    assert path.stat().st_size < 1 << 18 and "unpacks" in refused(path)
    path.write_bytes(bytes(1 << 21))
    assert "large" in refused(path)


def test_an_array_that_claims_more_than_it_holds_asks_for_no_memory(path):
    buffer = io.BytesIO(path.read_bytes())
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": (1 << 50,)}
    np.lib.format.write_array_header_1_0(header, description)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("more.npy", header.getvalue() + b"few")
    path.write_bytes(seal(buffer.getvalue()))
    assert "size" in refused(path)


def test_what_could_not_be_read_back_is_not_written(path):
    endless = make_result(held_out=("2",))
    endless.record["losses"] = [float("nan")]
    with pytest.raises(ValueError, match="JSON"):
        write_result(path.with_name("b.npz"), endless)
    with pytest.raises(ValueError, match="training has the wrong type"):
        write_result(path.with_name("b.npz"), replace(RESULT, record={"training": [1]}))
    assert not path.with_name("b.npz").exists()
