"""Which packages come with which extra, for the one line that a missing one is worth."""

# `pip install anocaps` brings what reads and judges images; all else is asked for by name.
_EXTRAS = {
    "torch": "train",
    "sklearn": "train",
    "safetensors": "train",
    "pooch": "train",
    "onnx": "export",
    "onnxruntime": "runtime",
    "pyarrow": "parquet",
}


def how_to_install(missing: ModuleNotFoundError) -> str | None:
    """What to do about it; None if it is none of the packages that may be missing."""
    extra = _EXTRAS.get((missing.name or "").partition(".")[0])
    if extra is None:
        return None
    return f"this needs {missing.name}, which is not installed: pip install 'anocaps[{extra}]'"
