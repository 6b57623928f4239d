"""Serve with the judge by brightness as every model: PROJECT TOKEN_FILE [CERT KEY].

SLOW is the number of seconds that a batch takes, PORT the port.
"""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from brightness import Brightness

from anocaps.serve import review, scoring
from anocaps.serve.run import serve


class Slow(Brightness):
    def judge(self, images, with_heat=False):
        time.sleep(float(os.environ.get("SLOW", 0)))
        return super().judge(images, with_heat)


review._PART = 4
scoring.load_judge = lambda path, device: Slow()
project, token, *tls = map(Path, sys.argv[1:])
(project / "models").mkdir(parents=True, exist_ok=True)
(project / "models" / "bright.onnx").touch()
cert, key = tls or (None, None)
serve(
    project, lambda line: print(line, flush=True), print, port=int(os.environ.get("PORT", 0)),
    token_file=token, tls_cert=cert, tls_key=key, browser=False,
)  # fmt: skip
