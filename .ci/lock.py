"""Write requirements/: for each extra all versions with the hashes of their files, and the SBOM.

Only the public index is asked. torch has a file of its own, torch.txt: another build of it has
other hashes, and its Linux build brings gigabytes of CUDA libraries that a CPU does not need.
"""

import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
BIN = ROOT / ".venv" / "tools" / "bin"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL")
} | {"PIP_CONFIG_FILE": os.devnull, "CUSTOM_COMPILE_COMMAND": "make lock"}


def main() -> None:
    tools = (FOLDER / "tools.in").read_text("utf-8").split()
    lock("tools", tools)
    lock("torch", ["torch"])
    extras = PROJECT["optional-dependencies"]
    lock("dev", needed("dev"))
    for extra in (*(name for name in extras if name != "dev"), "base"):
        known = (FOLDER / "dev.txt").read_bytes()
        (FOLDER / f"{extra}.txt").write_bytes(known)  # its hashes are used again
        lock(extra, needed(extra))
    write_sbom()


def needed(extra: str) -> list[str]:
    """What an extra requires, with what the extras that it names require; without torch."""
    return sorted({each for each in _required(extra) if re.split(r"\W", each)[0] != "torch"})


def _required(extra: str) -> Iterator[str]:
    yield from PROJECT["dependencies"]
    for each in PROJECT["optional-dependencies"].get(extra, ()):
        if inner := re.fullmatch(r"anocaps\[(.*)\]", each):
            for name in inner[1].split(","):
                yield from _required(name)
        else:
            yield each


def lock(name: str, requirements: list[str]) -> None:
    print(name, flush=True)
    subprocess.run(
        [
            BIN / "pip-compile", "--quiet", "--generate-hashes", "--allow-unsafe",
            "--strip-extras", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate",
            "--constraint", "constraints.txt", "--output-file", FOLDER / f"{name}.txt", "-",
        ],
        input="\n".join(requirements), text=True, cwd=ROOT, env=ENVIRONMENT, check=True,
    )  # fmt: skip


def write_sbom() -> None:
    """All that anocaps[all] installs, in CycloneDX; the lock files hold the hashes."""
    pins = re.compile(r"^[\w.-]+==[^\s;]+", re.MULTILINE)
    names = ("all", "torch")
    found = {pin for name in names for pin in pins.findall((FOLDER / f"{name}.txt").read_text())}
    words = ("requirements", "--output-reproducible", "--pyproject", "pyproject.toml", "-")
    made = subprocess.run(
        [BIN / "cyclonedx-py", *words],
        input="\n".join(sorted(found)), text=True, cwd=ROOT, check=True, stdout=subprocess.PIPE,
    )  # fmt: skip
    sbom = json.loads(made.stdout)
    tools = sbom["metadata"]["tools"]
    for component in (*sbom["components"], *(one for each in tools.values() for one in each)):
        for key in ("description", "externalReferences"):  # a line number, and the index's address
            component.pop(key, None)
    (FOLDER / "sbom.json").write_text(json.dumps(sbom, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
