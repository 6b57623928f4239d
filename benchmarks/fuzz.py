"""Claim: no input makes a reader of anocaps fail in any other way than with one line that refuses
it: images, datasets, model files, checkpoints, studies and HTTP requests. Over 100,000 damaged
inputs, made by seeded mutations that know the formats and make checksums right again, end in no
crash, no stack trace and no long wait. The printed lines prove it or not.

Each kind of input has a process of its own, with one thread. An input that ends in a fault is kept
in build/fuzz. With `--guided`, atheris keeps inputs that reach new code and mutates them further.
Most of these are refused early, so a guided run adds to the plain one and does not replace it.

    python benchmarks/fuzz.py                                       (make fuzz)
    python benchmarks/fuzz.py --guided --out results/fuzz-guided.json
    python benchmarks/fuzz.py --only onnx --inputs 500 --out onnx.json
"""

import argparse
import faulthandler
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "fuzz"), str(ROOT / "tests" / "helpers")]
FAULTS = ROOT / "build" / "fuzz"

INPUTS = {
    "images": 30_000, "idx": 10_000, "norb": 7_000, "cifar": 6_000, "model file": 8_000,
    "onnx": 6_000, "checkpoint": 8_000, "result file": 10_000, "packed results": 6_000,
    "study status": 5_000, "http": 14_000,
}  # fmt: skip
SLOW = {"images": 3.0}  # seconds of CPU time, else 10: an input that takes longer is a fault
WAIT = 60.0  # seconds, after which a reader is interrupted
DEPTHS = (1, 1, 1, 2, 4)  # mutations, one after the other


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fuzz.json")
    parser.add_argument("--inputs", type=int, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--guided", action="store_true")
    parser.add_argument("--only", choices=INPUTS, action="append")
    parser.add_argument("--one", choices=INPUTS, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    if options.one is not None:
        count = options.inputs or INPUTS[options.one]
        (guided if options.guided else fuzzed)(options.one, count, options.seed)
        return
    faults = 0
    for name in options.only or INPUTS:
        words = [sys.executable, *sys.argv, "--one", name]
        one_thread = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=one_thread)
        lines = done.stdout.splitlines()
        if done.returncode or not lines:
            found: dict[str, Any] = {"faults": {f"the process ended with {done.returncode}": 1}}
        else:
            found = json.loads(lines[-1])
        print(name, json.dumps(found), flush=True)
        faults += sum(found["faults"].values())
        _write(options, name, found)
    sys.exit(1 if faults else 0)


def fuzzed(name: str, count: int, seed: int) -> None:
    """Read `count` damaged inputs; the last line of the output says what became of them."""
    from targets import TARGETS

    with TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        target = TARGETS[name](Path(folder))
        tally = Tally(name, target)
        for number in range(count):
            random = Random(f"{seed} {name} {number}")
            content = random.choice(target.seeds)
            for _ in range(random.choice(DEPTHS)):
                content = target.mutated(random, content)
            tally.read(content)
        tally.tell()
        target.close()


def guided(name: str, count: int, seed: int) -> None:
    """The same, but inputs that reach new code are kept and mutated further."""
    import atheris

    with atheris.instrument_imports(include=["anocaps"]):
        from targets import TARGETS

        folder = TemporaryDirectory()
        target = TARGETS[name](Path(folder.name))
    corpus = Path(folder.name) / "corpus"
    corpus.mkdir()
    for number, content in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(content)
    tally = Tally(name, target)

    def read(content: bytes) -> None:
        tally.read(content)
        if tally.inputs == count:
            tally.tell()
            os._exit(0)  # libFuzzer would go on, or end without a word

    def mutate(content: bytes, longest: int, number: int) -> bytes:
        random = Random(number)
        if random.random() < 0.2:
            return atheris.Mutate(content, longest)
        return target.mutated(random, content)[:longest]

    most = 2 * max(map(len, target.seeds))
    words = [f"-seed={seed + 1}", f"-max_len={most}", "-verbosity=0", f"-runs={10 * count}"]
    atheris.Setup([sys.argv[0], *words, str(corpus)], read, custom_mutator=mutate)
    atheris.Fuzz()


class TooSlow(BaseException):
    """No reader takes this for the error of a damaged file, as it does with a TimeoutError."""


class Tally:
    """Inputs that were accepted, refused and ended in a fault."""

    def __init__(self, name: str, target: Any) -> None:
        faulthandler.enable()
        warnings.simplefilter("ignore")
        logging.disable()
        signal.signal(signal.SIGALRM, _too_slow)
        self.name, self.target = name, target
        self.inputs = self.accepted = 0
        self.slowest = 0.0
        self.faults: Counter[str] = Counter()
        self.started = time.perf_counter()

    def read(self, content: bytes) -> None:
        self.inputs += 1
        began, used = time.perf_counter(), time.process_time()
        signal.setitimer(signal.ITIMER_REAL, WAIT)
        try:
            accepted = self.target.accepted(content)
            if time.process_time() - used > SLOW.get(self.name, 10.0):
                raise TooSlow("an input takes too much time")
            self.accepted += accepted
        except (Exception, TooSlow) as error:  # it should have been refused in one line
            last = traceback.extract_tb(error.__traceback__)[-1]
            self._keep(
                content, f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"
            )
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.slowest = max(self.slowest, time.perf_counter() - began)

    def _keep(self, content: bytes, what: str) -> None:
        if not self.faults[what]:
            (FAULTS / self.name).mkdir(parents=True, exist_ok=True)
            name = "".join(c if c.isalnum() else "-" for c in what)
            (FAULTS / self.name / name).write_bytes(content)
            traceback.print_exc()
        self.faults[what] += 1

    def tell(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            json.dumps({
                "inputs": self.inputs,
                "accepted": self.accepted,
                "refused": self.inputs - self.accepted - sum(self.faults.values()),
                "faults": dict(self.faults),
                "seconds": round(time.perf_counter() - self.started, 1),
                "slowest_seconds": round(self.slowest, 3),
                "peak_memory_mb": round(peak / 1024),
            }),
            flush=True,
        )  # fmt: skip


def _too_slow(*_: object) -> None:
    raise TooSlow("an input takes too long")


def _write(options: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    """Add a target to the results, which are begun anew with another seed."""
    from anocaps.base.provenance import provenance

    here = provenance("CPU", 1)
    asked = {"seed": options.seed, "guided": options.guided}
    before = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {}
    known = before.get("targets", {}) if asked.items() <= before.items() else {}
    known[name] = found | {"commit": here.pop("commit")}
    targets = {each: known[each] for each in INPUTS if each in known}
    inputs = sum(row.get("inputs", 0) for row in targets.values())
    result = asked | {"inputs": inputs, "targets": targets} | here
    options.out.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
