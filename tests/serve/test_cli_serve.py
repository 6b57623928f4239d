"""The command `serve`: what it refuses, warns of and prints."""

import os
import re
import socket
import subprocess
import sys

import pytest
from running_server import TOKEN

from anocaps.base.errors import InputError
from anocaps.base.extras import needing


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(0o600)
    return file


def test_another_host_needs_a_token_file(command, tmp_path):
    code, _, errors = command("serve", tmp_path / "project", "--host", "0.0.0.0", "--no-browser")
    assert code == 2 and "--token-file" in errors
    assert not (tmp_path / "project").exists()


def test_a_model_with_another_checksum_is_refused(command, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"anything")
    options = ("--model", model, "--expect-sha256", "0" * 64, "--no-browser")
    code, _, errors = command("serve", tmp_path / "project", *options)
    assert code == 2 and "SHA-256" in errors
    code, _, errors = command("serve", tmp_path / "project", *options[2:])
    assert code == 2 and "--model" in errors


def test_a_bad_model_is_refused_at_once(command, tmp_path):
    model = tmp_path / "model.onnx"
    model.write_bytes(b"anything")
    code, _, errors = command("serve", tmp_path / "project", "--model", model, "--no-browser")
    assert code == 2 and "model.onnx" in errors


def test_certificate_and_key_belong_together(command, tmp_path, token):
    code, _, errors = command("serve", tmp_path / "project", "--tls-cert", token, "--no-browser")
    assert code == 2 and "--tls-key" in errors


def test_a_certificate_that_is_none(command, tmp_path, token):
    missing = tmp_path / "key.pem"
    for key, said in ((missing, "key.pem"), (token, "certificate")):
        options = ("--tls-cert", token, "--tls-key", key, "--no-browser")
        code, out, errors = command("serve", tmp_path / "project", *options)
        assert code == 2 and said in errors and "Open" not in out
    assert not (tmp_path / "project").exists()


def test_a_port_that_is_taken(command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        code, out, errors = command("serve", tmp_path / "project", "--port", port, "--no-browser")
    assert code == 2 and "--port" in errors and "Open" not in out


def test_a_missing_package_names_the_extra():
    with pytest.raises(InputError, match="serve"), needing("anocaps[serve,runtime]"):
        raise ModuleNotFoundError("No module named 'fastapi'", name="fastapi")


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_the_address_and_the_warning(tmp_path, token, host):
    options = [] if host == "127.0.0.1" else ["--token-file", token]
    words = ["serve", tmp_path / "project", "--port", "0", "--host", host, "--no-browser", *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "anocaps", *map(str, words)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ,
    )  # fmt: skip
    address = process.stdout.readline()
    process.kill()
    _, errors = process.communicate()
    if host == "127.0.0.1":
        assert re.match(r"Open http://127\.0\.0\.1:\d+/\?token=[\w-]{40,}$", address)
        assert "TLS" not in errors
    else:
        assert TOKEN not in address and "TLS" in errors


def test_two_servers_do_not_share_a_project(command, tmp_path):
    from anocaps.serve.project import Project

    project = Project(tmp_path / "project")
    try:
        code, _, errors = command("serve", tmp_path / "project", "--no-browser")
        assert code == 2 and "another run" in errors
    finally:
        project.close()
