"""Score with an exported model: with onnxruntime, NumPy and Pillow, without torch.

The graph takes uint8 images of the model's size. It gives scores, p-values, the class, and the
reconstruction or heat. Files are read as in training:

    model = OnnxModel("model.onnx")
    image = read_image(Path("cup.jpg"), model.fit)  # from anocaps.images.decode
    judgement = model.judge(image[None])
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import InputError, ModelFileError
from anocaps.base.signing import read_model
from anocaps.base.threads import wanted_threads
from anocaps.export.seal import FORMAT_VERSION, KEY, SEAL_KEY, check_seal
from anocaps.export.tensors import check_tensors
from anocaps.images.decode import Fit
from anocaps.judging.calibration import (
    check_card,
    check_finite,
    check_joined,
    check_scores,
    class_p_values,
    p_values,
    score_range,
)
from anocaps.judging.heat import check_scale
from anocaps.judging.judgement import Judgement

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_JOINED = ("pp+re", "combined")  # scores that follow from other scores and the class
_CHECKED = 8  # images; p-values of smaller batches are not checked again, which takes 90 µs
_BATCH = 32  # images; in larger batches routing exceeds the cache


class OnnxModel:
    """An exported model. It scores without torch.

    Parameters
    ----------
    path : path
        The `.onnx` file.
    device : {"auto", "cpu"}, default="auto"
        An exported model scores on the CPU.
    """

    def __init__(self, path: str | Path, device: str = "auto") -> None:
        self._path = Path(path)
        if device not in ("auto", "cpu"):
            raise InputError(
                f"device {device!r}: an exported model scores on the CPU; leave the device out, "
                "or score with the .safetensors file"
            )
        self._session = _session(self._path)
        self._checked = False  # whether p-values follow from the calibration set
        try:
            metadata = self._session.get_modelmeta().custom_metadata_map
            about = json.loads(metadata[KEY])
            self.checksum: str = metadata[SEAL_KEY.decode()]
            if type(about["format"]) is int and about["format"] > FORMAT_VERSION:
                raise ModelFileError(
                    f"{path}: a newer anocaps exported this file (format {about['format']}, not "
                    f"{FORMAT_VERSION}); upgrade anocaps"
                )
            if about["format"] != FORMAT_VERSION:
                raise ModelFileError(
                    f"{path}: an older anocaps exported this file; train and export the model again"
                )
            _check(about, self._session)
            self._fit = None if about["fit"] is None else Fit(**about["fit"])
            self.about: dict[str, Any] = about  # the JSON of the file
            self.score_function: str = about["score_function"]
            self.classes: list[str] = about["classes"]
            self.calibration_size: int = about["calibration_images"]
            self.heat_scale: float | None = about["heat_scale"]
            record = about.get("record")
            self.source: object = record.get("source") if isinstance(record, dict) else None
            self.card: dict[str, Any] | None = about.get("card") or None
            self.score_names: tuple[str, ...] = tuple(about["scores"])
            self._outputs: dict[str, str] = about["scores"]  # by score function
            self._heat_source: str = about["heat_source"]  # "reconstruction" or "heat"
            self._shape = tuple(about["images"])  # H, W, C
            image = np.resize(np.arange(256, dtype=np.uint8), (1, *self._shape))
            self._calibration = _calibration(about, self._session, image)
            for name, score in self.judge(image).scores.items():
                check_scores(score, 1, score_range(name, image.size))
        except ModelFileError:
            raise
        except Exception as error:  # bad contents make JSON and the engine fail in many ways
            why = error if isinstance(error, InputError) else type(error).__name__
            raise ModelFileError(
                f"{path}: its contents are inconsistent ({why}); export the model again"
            ) from error

    @property
    def fit(self) -> Fit:
        """How files become the images that `judge` takes."""
        if self._fit is None:
            raise InputError(
                f"this model takes images of {self._shape[2]} channels, but an image file has 1 or "
                "3: score arrays with anocaps.export.runtime in Python"
            )
        return self._fit

    def judge(self, images: NDArray[np.uint8], with_heat: bool = False) -> Judgement:
        """Score images in one pass.

        Parameters
        ----------
        images : uint8 array of shape (N, H, W, C)
            Images of the model's size.
        with_heat : bool, default=False
            Whether to add the source of heatmaps: reconstructions or raw heat.

        Returns
        -------
        judgement : Judgement
            Every score with its p-value, and the class of each image.
        """
        names = ["class", *self._outputs.values()]
        if self.calibration_size:
            names += ["p_value", "p_value_class", *(f"p_value_{n}" for n in self._outputs.values())]
        if with_heat:
            names.append(self._heat_source)
        found = dict(zip(names, self._run(images, names)))
        unknown = np.full(len(images), np.nan)
        calibrated = self._outputs if self.calibration_size else {}
        if not np.isin(found["class"], range(len(self.classes))).all():
            raise ModelFileError(f"{self._path}: class names are missing; export the model again")
        if self.calibration_size and (not self._checked or len(images) >= _CHECKED):
            self._check_p_values(found)
            self._checked = True
        return Judgement(
            scores={name: found[output] for name, output in self._outputs.items()},
            p_value=found.get("p_value", unknown),
            p_value_class=found.get("p_value_class", unknown),
            predicted=[self.classes[index] for index in found["class"]],
            p_values={name: found[f"p_value_{output}"] for name, output in calibrated.items()},
            reconstructions=found.get("reconstruction"),
            heat=found.get("heat"),
        )

    def _check_p_values(self, found: dict[str, NDArray[Any]]) -> None:
        """Raise an error if the p-values do not follow from the scores and the calibration set."""
        normal, decisive = self._calibration, self._outputs[self.score_function]
        wanted = {
            f"p_value_{output}": p_values(found[output], normal[output])
            for output in self._outputs.values()
        }
        wanted["p_value"] = wanted[f"p_value_{decisive}"]
        wanted["p_value_class"] = class_p_values(
            found[decisive], found["class"], normal[decisive], normal["class"]
        )
        if not all(np.array_equal(found[name], p, equal_nan=True) for name, p in wanted.items()):
            raise ModelFileError(
                f"{self._path}: its p-values do not follow from its calibration scores; export "
                "the model again"
            )

    def _run(self, images: NDArray[np.uint8], outputs: list[str]) -> list[NDArray[Any]]:
        images = np.asarray(images)
        if images.dtype != np.uint8 or images.shape[1:] != self._shape or len(images) == 0:
            raise InputError(
                f"images: this model takes uint8 arrays of N×{_by(self._shape)}, not "
                f"{images.dtype} of {_by(images.shape)}"
            )
        try:
            parts = [
                self._session.run(outputs, {"images": images[start : start + _BATCH]})
                for start in range(0, len(images), _BATCH)
            ]
        except Exception as error:  # onnxruntime raises many classes of errors
            raise ModelFileError(
                f"{self._path}: its graph fails ({' '.join(str(error).split())[:200]}); export "
                "the model again"
            ) from error
        found = [np.concatenate([np.atleast_1d(part) for part in output]) for output in zip(*parts)]
        if any(len(each) != len(images) for each in found):
            raise ModelFileError(
                f"{self._path}: its graph does not give one result per image; export the model "
                "again"
            )
        return found


def _session(path: Path) -> "InferenceSession":
    """Check the file's seal, then load its graph."""
    import onnxruntime

    if path.is_dir():
        raise ModelFileError(f"{path}: this is a folder; give an ONNX file")
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file; check its name")
    try:
        content = read_model(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    check_seal(content, str(path))
    try:
        check_tensors(content)
    except InputError as error:
        raise ModelFileError(f"{path}: {error}; export the model again") from error
    # print nothing: errors are raised
    onnxruntime.set_default_logger_severity(4)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = wanted_threads() or 0  # 0: all cores
    # waiting threads leave the cores to the threads that decode images
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises many classes of errors
        raise ModelFileError(
            f"{path}: this onnxruntime cannot load the file; upgrade it with: pip install "
            f"--upgrade onnxruntime ({' '.join(str(error).split())[:200]})"
        ) from error


def _check(about: dict[str, Any], session: "InferenceSession") -> None:
    """Raise an error if the file's JSON does not fit its graph."""
    shape, fit, classes, scores = (about[k] for k in ("images", "fit", "classes", "scores"))
    count, heat = about["calibration_images"], about["heat_scale"]
    takes = [(each.name, each.type, each.shape[1:]) for each in session.get_inputs()]
    gives = {each.name for each in session.get_outputs()}
    calibrated = "p_value" in gives
    needed = {"class", about["heat_source"], *scores.values()}
    if calibrated:
        each = ("class", *scores.values())
        needed |= {f"{what}_{output}" for what in ("p_value", "calibration") for output in each}
        needed |= {f"joined_{scores[name]}" for name in _JOINED if name in scores}
    makes_sense = {
        "images": takes == [("images", "tensor(uint8)", shape)],
        "fit": shape[2] not in (1, 3)
        if fit is None
        else [fit[side] for side in ("height", "width", "channels")] == shape,
        "classes": type(classes) is list and {type(name) for name in classes} == {str},
        "scores": needed <= gives and about["score_function"] in scores,
        "calibration_images": type(count) is int and count >= 0 and calibrated == (count > 0),
        "heat_source": about["heat_source"] in ("reconstruction", "heat"),
    }
    for key, holds in makes_sense.items():
        if not holds:
            raise InputError(key)
    check_finite(about)
    check_card(about.get("card"), count)
    if heat is not None:
        check_scale(heat)


def _calibration(
    about: dict[str, Any], session: "InferenceSession", image: NDArray[np.uint8]
) -> dict[str, NDArray[Any]]:
    """The calibration scores by output, and the calibration images' classes; checked."""
    scores, count = about["scores"], about["calibration_images"]
    if not count:
        return {}
    names = [f"calibration_{output}" for output in (*scores.values(), "class")]
    names += [f"joined_{scores[name]}" for name in _JOINED if name in scores]
    found = dict(zip(names, session.run(names, {"images": image})))
    for name, output in scores.items():
        values = found[f"calibration_{output}"]
        check_scores(values, count, score_range(name, image.size))
        if name in _JOINED:
            check_joined(name, values, found[f"joined_{output}"])
    classes = found["calibration_class"]
    if classes.shape != (count,) or not np.isin(classes, range(len(about["classes"]))).all():
        raise InputError("the classes of the calibration images")
    return {output: found[f"calibration_{output}"] for output in (*scores.values(), "class")}


def _by(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
