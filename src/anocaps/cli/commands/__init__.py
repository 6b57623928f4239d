"""One file per command or group of commands; `cli.app` collects them.

Not found by name: `demo` (in evaluate.py) and `keygen` (in sign.py).
"""
