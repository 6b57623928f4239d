"""The command line, one file per group of commands: it parses, calls and prints.

`main.main` is the entry point; nothing imports this room.
"""
