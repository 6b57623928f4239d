"""Serve with the judge by brightness as every model: PROJECT TOKEN_FILE [CERT KEY]."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from brightness import Brightness

from anocaps.serve import scoring
from anocaps.serve.run import serve

scoring.load_judge = lambda path, device: Brightness()
project, token, *tls = map(Path, sys.argv[1:])
(project / "models").mkdir(parents=True, exist_ok=True)
(project / "models" / "bright.onnx").touch()
cert, key = tls or (None, None)
serve(
    project, lambda line: print(line, flush=True), print, port=0, token_file=token,
    tls_cert=cert, tls_key=key, browser=False,
)  # fmt: skip
