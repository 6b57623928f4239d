"""S3 as moto's server imitates it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def imitated_s3(config: Path) -> Iterator[Any]:
    """An s3fs file system. Processes whose AWS_CONFIG_FILE is `config` reach the same."""
    s3fs = pytest.importorskip("s3fs", reason="s3 needs s3fs")
    moto = pytest.importorskip("moto.server", reason="the imitated S3 needs moto and flask")
    server = moto.ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    config.write_text(
        "[default]\naws_access_key_id = test\naws_secret_access_key = test\n"
        f"region = us-east-1\nendpoint_url = http://{host}:{port}\n"
    )
    try:
        yield s3fs.S3FileSystem(skip_instance_cache=True)
    finally:
        s3fs.S3FileSystem.clear_instance_cache()
        server.stop()
