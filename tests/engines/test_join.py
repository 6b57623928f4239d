"""A Ray cluster that listens at an address of the network and asks for a token."""

import os
import secrets
import subprocess
import sys
from contextlib import closing
from socket import AF_INET, SOCK_DGRAM, create_server, socket
from tempfile import TemporaryDirectory

import pytest
from small_model import agree, write_model, write_noise

pytest.importorskip("ray", reason="Ray is not installed: pip install 'anocaps[ray]'")
parquet = pytest.importorskip("pyarrow.parquet", reason="parts need pyarrow")

TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def address():
    host = _own_address()
    if host is None:
        pytest.skip("this computer has no address but loopback")
    with closing(create_server((host, 0))) as free:
        port = free.getsockname()[1]
    with TemporaryDirectory(prefix="ray-") as folder:  # sockets need a short path
        head = subprocess.Popen(
            [
                *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
                *(f"--node-ip-address={host}", f"--port={port}", f"--temp-dir={folder}"),
                *("--num-cpus=1", "--include-dashboard=false", "--disable-usage-stats"),
                f"--object-store-memory={80 * 2**20}",
            ],
            env=_environment(folder, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = ""
            while "Ray runtime started" not in said:
                line = head.stdout.readline()
                assert line, said
                said += line
            yield f"{host}:{port}"
        finally:
            head.terminate()
            head.communicate()


def _own_address():
    """The address that other computers see. Nothing is sent."""
    with socket(AF_INET, SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        host = probe.getsockname()[0]
        return None if host.startswith("127.") else host


def _environment(home, **more):
    """No settings of Ray but these: a token could be there from another cluster."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return kept | {"HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)} | more


def _score(model, photos, out, address, environment):
    words = ["score", model, photos, "-o", out, "--engine", "ray", "--address", address]
    return subprocess.run(
        [sys.executable, "-m", "anocaps", *map(str, words)],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_scores_of_a_cluster_that_asks_for_a_token(command, tmp_path, address):
    model = write_model(tmp_path / "model.onnx")
    photos = write_noise(tmp_path / "photos", 20)
    for settings in ({"RAY_AUTH_TOKEN": TOKEN}, {"RAY_AUTH_MODE": "token"}):  # both are needed
        environment = _environment(tmp_path, **settings)
        refused = _score(model, photos, tmp_path / "no", address, environment)
        assert refused.returncode == 2, refused.stderr
        assert "RAY_AUTH_TOKEN" in refused.stderr.splitlines()[-1]

    right = _environment(tmp_path, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN)
    done = _score(model, photos, tmp_path / "parts", address, right)
    assert done.returncode == 0, done.stderr
    assert command("score", model, photos, "-o", tmp_path / "table.parquet")[0] == 0
    agree(parquet.read_table(tmp_path / "parts"), parquet.read_table(tmp_path / "table.parquet"))
