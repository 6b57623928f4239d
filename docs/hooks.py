"""Build hook of the documentation: list the public names, and the commands with their options."""

import re
from typing import Any

from typer.main import get_command

import anocaps
from anocaps.cli.app import app


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    if page.file.src_uri == "api.md":
        names = "\n\n".join(f"::: anocaps.{name}" for name in anocaps.__all__)
        return markdown.replace("<!-- names -->", names)
    if page.file.src_uri == "commands.md":
        commands = "\n\n".join(_sections("anocaps", get_command(app)))
        return markdown.replace("<!-- commands -->", commands)
    return markdown


def _sections(name: str, command: Any) -> list[str]:
    """One section per command, groups resolved."""
    children = getattr(command, "commands", None)
    if children is not None:
        return [part for each in children for part in _sections(f"{name} {each}", children[each])]
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(p.name.upper() for p in arguments), "[OPTIONS]"])
    head = [f"## `{name}`", _cell(command.help), f"```text\n{usage}\n```"]
    rows = [_row(p) for p in command.params if not getattr(p, "hidden", False)]
    table = ["| argument or option | what it does | default |", "|---|---|---|", *rows]
    return [*head, "\n".join(table), *_examples(command.epilog or "")]


def _examples(epilog: str) -> list[str]:
    text = re.sub(r"^Examples?: ", "", epilog)
    lines = "\n".join(line for line in text.splitlines() if line)
    return [f"```text\n{lines}\n```"] if lines else []


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        names = parameter.name.upper()
    else:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = "required" if parameter.required else _default(parameter)
    return f"| `{names}` | {_cell(parameter.help)} | {default} |"


def _default(parameter: Any) -> str:
    """As `--help` words it, where it does."""
    if isinstance(said := getattr(parameter, "show_default", None), str):
        return said
    value = parameter.default
    return "" if value is None or value is False or value == () else f"`{value}`"


def _cell(text: str | None) -> str:
    """One line without the terminal's markup."""
    plain = re.sub(r"\[/?(?:dim|bold|red|green|cyan|yellow)\]", "", text or "")
    return " ".join(plain.replace("\\[", "[").replace("|", "\\|").split())
