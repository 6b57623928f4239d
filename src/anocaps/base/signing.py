"""A user can require the SHA-256 of a model file, or a signature that shows who made the file.

Every loader reads a model file with `read_model`, which checks the bytes that it returns. So no
other bytes are loaded, even if the file is replaced after an earlier check.

Signatures are Ed25519. The signature of `m.onnx` is in `m.onnx.sig`: 64 bytes over the whole file.
Keys are PEM files, as openssl writes them.
"""

import hashlib
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anocaps.base.errors import InputError, ModelFileError
from anocaps.base.extras import needing
from anocaps.base.files import one_run, replacing, sweep
from anocaps.base.text import shown

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_EXTRA = "anocaps[sign]"
_MOST_KEY_BYTES = 65_536


def signature_path(model: Path) -> Path:
    return model.with_name(f"{model.name}.sig")


def new_key(path: Path) -> Path:
    """Write a private key that only its owner can read. Return the path of the public key beside
    it.

    A private key that is there without its public key, after a crash, is kept and completed.
    """
    with needing(_EXTRA):
        from cryptography.hazmat.primitives import serialization as pem
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = path.with_name(f"{path.name}.pub")
    with one_run(path):
        for each in (path, public):
            sweep(each)
        if (key := _without_public(path, public)) is None:
            key = Ed25519PrivateKey.generate()
            secret = pem.PrivateFormat.PKCS8, pem.NoEncryption()
            with replacing(path, 0o600) as temporary:
                temporary.write_bytes(key.private_bytes(pem.Encoding.PEM, *secret))
        shared = pem.Encoding.PEM, pem.PublicFormat.SubjectPublicKeyInfo
        with replacing(public) as temporary:
            temporary.write_bytes(key.public_key().public_bytes(*shared))
    return public


def _without_public(path: Path, public: Path) -> "Ed25519PrivateKey | None":
    """The private key, if the public one is missing; None if both are. InputError otherwise."""
    there = [each for each in (public, path) if os.path.lexists(each)]
    if there == [path]:
        with suppress(InputError, OSError):  # it is no key, or cannot be read
            return _private(path)
    if there:
        raise InputError(f"{shown(there[0])} exists and is kept: name another file for the key")
    return None


def sign(model: Path, private_key: Path) -> Path:
    """Write the signature of a file beside it, and return its path."""
    signature = _private(private_key).sign(model.read_bytes())
    with replacing(out := signature_path(model)) as temporary:
        temporary.write_bytes(signature)
    return out


class OtherFile(ModelFileError):
    """The file does not have the SHA-256 that was demanded."""


# Path of a model file → the SHA-256 and the public key that this process requires.
_demands: dict[str, tuple[str | None, Path | None]] = {}


def demand(model: Path, sha256: str | None, public_key: Path | None = None) -> None:
    """From now on, `read_model` refuses this file if its SHA-256 or its signature is wrong."""
    _demands.update(dict.fromkeys(_names(model), (sha256, public_key)))


def read_model(model: Path) -> bytes:
    """The bytes of a model file, if they meet the demand. Otherwise raise an error."""
    content = model.read_bytes()
    met = (_demands[name] for name in _names(model) if name in _demands)
    sha256, public_key = next(met, (None, None))
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise OtherFile(
            f"{shown(model)}: its SHA-256 is {found}, not the expected one; get the right file"
        )
    if public_key is not None:
        _check_signature(model, content, public_key)
    return content


def _names(model: Path) -> tuple[str, str]:
    """The absolute path, and the path with links resolved: a link may change later."""
    return os.path.abspath(model), os.path.realpath(model)


def _check_signature(model: Path, content: bytes, public_key: Path) -> None:
    key = _public(public_key)
    from cryptography.exceptions import InvalidSignature

    signature = signature_path(model)
    try:
        with open(signature, "rb") as file:
            key.verify(file.read(65), content)
    except FileNotFoundError as error:
        raise ModelFileError(
            f"{shown(model)}: there is no signature {shown(signature)}; ask its maker for it"
        ) from error
    except InvalidSignature as error:
        raise ModelFileError(
            f"{shown(model)}: {shown(signature)} is no signature of this file by the key "
            f"{shown(public_key)}"
        ) from error


def _private(path: Path) -> "Ed25519PrivateKey":
    with needing(_EXTRA):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_content(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: the key has a password
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{shown(path)}: no private Ed25519 key without a password; 'anocaps keygen' makes one"
        )
    return key


def _public(path: Path) -> "Ed25519PublicKey":
    with needing(_EXTRA):
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_content(path))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(
            f"{shown(path)}: no public Ed25519 key; name the .pub file of 'anocaps keygen'"
        )
    return key


def _content(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_MOST_KEY_BYTES)
