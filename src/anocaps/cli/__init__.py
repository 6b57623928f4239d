"""The command line: it parses, calls and prints. `commands/` has one file per command or group.

`main.main` is the entry point; nothing imports this room.
"""
