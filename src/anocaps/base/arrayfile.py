"""One file per model: safetensors for the arrays, and JSON in its header for everything else.

Reading never runs code: arrays are plain bytes and the header is data. A checksum over both
detects altered files. Training checkpoints use the same format.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anocaps.base.errors import ModelFileError
from anocaps.base.files import replacing
from anocaps.base.signing import read_model

FORMAT_VERSION = 2
_KEY = "anocaps"

Arrays = dict[str, NDArray[Any]]


def write(path: str | Path, kind: str, arrays: Mapping[str, NDArray[Any]], header: Any) -> None:
    """Write arrays and a JSON-serialisable header. On an error the old file stays."""
    from safetensors import SafetensorError
    from safetensors.numpy import save

    header = json.loads(json.dumps(header, default=_plain))
    body = {"format": FORMAT_VERSION, "kind": kind, "header": header}
    body["checksum"] = _checksum(body, arrays)
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        # not save_file: it makes a temporary file of its own, which a killed process leaves behind
        content = save(contiguous, metadata={_KEY: json.dumps(body)})
        with replacing(Path(path)) as temporary:
            temporary.write_bytes(content)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise ModelFileError(f"{path}: cannot be written ({why})") from error


def read(path: str | Path, kind: str) -> tuple[Arrays, dict[str, Any]]:
    """Return the arrays and the header with its `checksum`. Any other file raises an error."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = Path(path)
    if path.is_dir():
        raise ModelFileError(f"{path}: this is a folder; name a {kind} file")
    if not path.is_file():
        raise ModelFileError(f"{path}: there is no such file; check its name")
    try:
        content = read_model(path)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        arrays = load(content)  # raises an error if the header is damaged
        length = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + length]).get("__metadata__", {})
        if _KEY not in metadata:
            raise ModelFileError(
                f"{path}: anocaps did not write this safetensors file; name another"
            )
        body = json.loads(metadata[_KEY])
        version = body["format"]
        if not isinstance(version, int) or version > FORMAT_VERSION:
            raise ModelFileError(
                f"{path}: written by a newer anocaps (format {version}, this one reads up to "
                f"{FORMAT_VERSION}); upgrade anocaps"
            )
        if version < FORMAT_VERSION:
            raise ModelFileError(f"{path}: written by an older anocaps; train the model again")
        if body["kind"] != kind:
            raise ModelFileError(f"{path}: a {body['kind']} file; name a {kind} file")
        checksum = body.pop("checksum")
        header = dict(body["header"])
    except ModelFileError:
        raise
    # Bad JSON raises ValueError; deeply nested JSON raises RecursionError.
    except (
        SafetensorError,
        ValueError,
        RecursionError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        raise ModelFileError(
            f"{path}: not a model file of anocaps, or a truncated one; save it again"
        ) from error
    if checksum != _checksum(body, arrays):
        raise ModelFileError(
            f"{path}: the file was altered, since its checksum does not match; restore it"
        )
    return arrays, header | {"checksum": checksum}


def _plain(value: Any) -> Any:
    """Convert a NumPy scalar to a Python number."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be stored in a model file")


def _checksum(body: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        described = f"{name}:{array.dtype.str}:{array.shape}".encode()
        digest.update(struct.pack("<q", len(described)) + described)
        digest.update(array.data)
    return digest.hexdigest()
