"""Claim: an exported model of preset `photo` scores a 256×640 image in at most 1.3 times the time
of its stem alone, both in onnxruntime on the CPU. The printed rows prove it or not.

Both graphs score the same image in turns; a ratio is the median over turns. The model is fitted to
images of noise: what it has learned does not change its time.

    python benchmarks/photo_speed.py
"""

import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import common
import numpy as np
import onnxruntime
from onnx import ModelProto, TensorProto, helper

from anocaps.detectors import CapsNetDetector
from anocaps.export import graph as graphs
from anocaps.export.photo_graph import stem_maps
from anocaps.export.writer import export
from anocaps.networks.pretrained import CHANNELS
from anocaps.training.device import circumstances, pick_device

MOST = 1.3  # of the stem's time
HEIGHT, WIDTH = 256, 640


def main() -> None:
    parser = common.parser(__doc__, "photo-speed.json")
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()
    images = np.random.default_rng(0).integers(0, 256, (24, HEIGHT, WIDTH, 1), dtype=np.uint8)
    detector = CapsNetDetector("photo", size=HEIGHT, calibration=0.2, device="cpu").fit(images)
    assert detector.photo_ is not None
    with TemporaryDirectory(prefix="photo-speed-") as place:
        whole = Path(place) / "model.onnx"
        size = export(detector, whole).bytes
        sessions = {"stem": session(stem(detector).SerializeToString()), "model": session(whole)}
        outputs = {"stem": ["maps"], "model": ["combined", "p_value"]}
        taken: dict[str, list[float]] = {name: [] for name in sessions}
        for turn in range(options.repeats + 3):
            for name, each in sessions.items():
                started = time.perf_counter()
                each.run(outputs[name], {"images": images[:1]})
                if turn >= 3:  # the first runs allocate memory
                    taken[name].append(time.perf_counter() - started)
    ratio = statistics.median(m / s for m, s in zip(taken["model"], taken["stem"]))
    result: dict[str, Any] = {
        "image": [HEIGHT, WIDTH],
        "patches": len(detector.photo_.memory.kept),
        "megabytes": round(size / 1e6, 1),
        "milliseconds": {k: round(1e3 * statistics.median(v), 1) for k, v in taken.items()},
        "ratio": round(ratio, 3),
        "most": MOST,
        "repeats": options.repeats,
    }
    print(result)
    common.write(options.out, result | circumstances(pick_device("cpu")))
    if ratio > MOST:
        raise SystemExit(f"{ratio:.2f} times the stem's time, more than {MOST}")


def session(model: Any) -> onnxruntime.InferenceSession:
    content = model.read_bytes() if isinstance(model, Path) else model
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def stem(detector: CapsNetDetector) -> ModelProto:
    """The graph up to the stem's maps."""
    assert detector.photo_ is not None
    graph, config = graphs.Graph(), detector.photo_.network.config
    pixels = graphs.window(graph, "images", detector.preprocessing_)
    maps = stem_maps(graph, pixels, detector.photo_.network.stem, 1, config.size)
    places = (CHANNELS, config.size[0] // 16, config.size[1] // 16)
    graph.give("maps", maps, TensorProto.FLOAT, places)
    shape = ["N", *config.before, 1]
    images = helper.make_tensor_value_info("images", TensorProto.UINT8, shape)
    return helper.make_model(
        helper.make_graph(graph.nodes, "stem", [images], graph.outputs, graph.constants),
        opset_imports=[helper.make_opsetid("", 13)],
        ir_version=7,
    )


if __name__ == "__main__":
    main()
