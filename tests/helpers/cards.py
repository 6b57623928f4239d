"""A model card, made up."""


def card(**changes):
    return {
        "images": 1234,
        "classes": {"bolt": 1000, "nut": 234},
        "size": [28, 28, 1],
        "fit": None,
        "working_size": None,
        "pretrained": None,
        "skipped": 0,
        "skipped_files": [],
        "copies": 0,
        "near_copies": 0,
        "passed_over": {},
        "training_images": 1000,
        "validation_images": 111,
        "calibration_images": 123,
        "training_seconds": 61.7,
        "accuracy": {"share": 0.987, "images": 111},
        "smallest_alpha": 1 / 124,
        "preset": "deep",
        "preset_reason": "it was asked for",
        "score_function": "knn",
        "score_function_reason": "it was asked for",
        "self_check": None,
    } | changes


def check(**means):
    left_out = {"bolt": means, "nut": {name: value - 0.1 for name, value in means.items()}}
    tested = {"bolt": {"anomalous": 1000, "normal": 46}, "nut": {"anomalous": 210, "normal": 180}}
    return {
        "classes": 2,
        "left_out": left_out,
        "tested": tested,
        "auroc": dict(means),
        "synthetic": [],
        "synthetic_skipped": "No images were kept",
        "seconds": 31.4,
    }


def of_one_class(**aurocs):
    """A self-check of one class: pasted pieces of these sizes, in percent, by knn."""
    lines = [
        {
            "kind": "pasted pieces",
            "size": int(size.removeprefix("of_")) / 100,
            "contrast": 0.2,
            "images": 40,
            "auroc": {"knn": value},
        }
        for size, value in aurocs.items()
    ]
    return {"skipped": "There is one class", "synthetic": lines, "seconds": 3.2}
