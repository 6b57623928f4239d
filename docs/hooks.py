"""Build hook of the documentation: list the public names, and the commands with their options.

The build fails if a public name or one of its parameters has no documentation.
"""

import inspect
import pkgutil
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from griffe import Docstring, DocstringSectionKind, Parser
from mkdocs.exceptions import PluginError
from typer.main import get_command

import anocaps
from anocaps.cli.app import app

NAMES = (
    *(f"anocaps.{name}" for name in anocaps.__all__),
    "anocaps.data.load_dataset",
    "anocaps.export.runtime.OnnxModel",
)
# Classes with the methods of CapsNetDetector, which are not listed again.
DETECTORS = (
    "anocaps.detectors.Detector",
    "anocaps.detectors.baselines.plain.PlainDetector",
    "anocaps.detectors.CNNOCSVMDetector",
    "anocaps.detectors.VAEDetector",
    "anocaps.detectors.DBNDetector",
)
_WITHOUT_METHODS = "\n    options:\n      members: false\n      inherited_members: false"


def on_config(config: Any) -> Any:
    if missing := undocumented():
        raise PluginError("\n".join(missing))
    return config


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    if page.file.src_uri == "api.md":
        names = [f"::: {name}" for name in NAMES]
        names += [f"::: {name}{_WITHOUT_METHODS}" for name in DETECTORS]
        return markdown.replace("<!-- names -->", "\n\n".join(names))
    if page.file.src_uri == "commands.md":
        commands = "\n\n".join(_sections("anocaps", get_command(app)))
        return markdown.replace("<!-- commands -->", commands)
    return markdown


def on_post_build(config: Any) -> None:
    """Copy the raw scores that the study's page links to, and let it link to the copies."""
    page = Path(config.site_dir, "paper", "index.html")
    text = page.read_text("utf-8")
    for link in set(re.findall(r'href="(\.\./\.\./results/[^"]*)"', text)):
        copy = page.parent / "raw" / Path(link).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(Path(config.docs_dir, "paper", link), copy)
        text = text.replace(f'href="{link}"', f'href="raw/{copy.name}"')
    page.write_text(text, "utf-8")


# ── public names ─────────────────────────────────────────────────────────────────────────────


def undocumented() -> list[str]:
    """A sentence on each public name, or parameter of one, without documentation."""
    found = []
    for name in NAMES + DETECTORS:
        for part, called, texts in _parts(name, pkgutil.resolve_name(name)):
            if not texts:
                found.append(f"{part} has no docstring")
                continue
            missing = (
                set(inspect.signature(called).parameters) - {"self", "cls"} - _explained(texts)
            )
            found += [f"{part} does not document {each}" for each in sorted(missing)]
    return found


def _parts(name: str, found: Any) -> Iterator[tuple[str, Callable[..., Any], list[str]]]:
    """Name, callable and docstrings of a function, of a class and its methods, or of a module."""
    if inspect.ismodule(found):
        for member, value in inspect.getmembers(found, inspect.isfunction):
            if value.__module__ == found.__name__ and not member.startswith("_"):
                yield from _parts(f"{name}.{member}", value)
    elif inspect.isclass(found):
        yield name, found.__init__, _of_class(found)
        for member, value in inspect.getmembers(found, inspect.isroutine):
            if not member.startswith("_") and value.__module__.startswith("anocaps"):
                yield from _parts(f"{name}.{member}", value)
    else:
        yield name, found, [text] if (text := inspect.getdoc(found)) else []


def _of_class(found: type) -> list[str]:
    """Its docstring; with `**settings`, those of its base classes too."""
    texts = [
        each.__doc__ for each in found.__mro__ if each.__doc__ and "anocaps" in each.__module__
    ]
    return (
        texts if found.__doc__ and "**settings" in found.__doc__ else texts[: bool(found.__doc__)]
    )


def _explained(texts: list[str]) -> set[str]:
    """The parameters that numpydoc docstrings document."""
    kinds = (
        DocstringSectionKind.parameters,
        DocstringSectionKind.other_parameters,
        DocstringSectionKind.attributes,  # of a dataclass
    )
    return {
        name.strip("* ")
        for text in texts
        for section in Docstring(inspect.cleandoc(text)).parse(Parser.numpy, warnings=False)
        if section.kind in kinds
        for entry in section.value
        for name in entry.name.split(",")
    }


# ── commands ─────────────────────────────────────────────────────────────────────────────────


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
