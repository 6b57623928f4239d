"""Every public name has documentation, with every parameter: what `make docs` cannot check."""

import inspect
from collections.abc import Callable, Iterator

import pytest
from griffe import Docstring, DocstringSectionKind, Parser

import anocaps


def parts_of(name: str, found: object) -> Iterator[tuple[str, Callable, str | None]]:
    """Name, callable and docstring of a public function, or of a class and its public methods."""
    if not inspect.isclass(found):
        yield name, found, inspect.getdoc(found)
        return
    yield name, found.__init__, inspect.getdoc(found)
    for member, value in inspect.getmembers(found, inspect.isroutine):
        if not member.startswith("_") and value.__module__.startswith("anocaps"):
            yield f"{name}.{member}", value, inspect.getdoc(value)


def public() -> Iterator[tuple[str, object]]:
    """Every public name; of a module, its own public functions."""
    for name in anocaps.__all__:
        found = getattr(anocaps, name)
        if not inspect.ismodule(found):
            yield name, found
            continue
        for member, value in inspect.getmembers(found, inspect.isfunction):
            if value.__module__ == found.__name__ and not member.startswith("_"):
                yield f"{name}.{member}", value


PARTS = [pytest.param(*part, id=part[0]) for each in public() for part in parts_of(*each)]


def parameters(docstring: str) -> set[str]:
    """The names that a numpydoc docstring documents."""
    sections = Docstring(docstring).parse(Parser.numpy, warnings=False)
    kinds = (
        DocstringSectionKind.parameters,
        DocstringSectionKind.other_parameters,
        DocstringSectionKind.attributes,  # of a dataclass
    )
    return {
        name.strip("* ")
        for section in sections
        if section.kind in kinds
        for entry in section.value
        for name in entry.name.split(",")
    }


@pytest.mark.parametrize(("name", "called", "docstring"), PARTS)
def test_a_public_name_is_documented(name, called, docstring):
    assert docstring, f"{name} has no docstring"
    wanted = set(inspect.signature(called).parameters) - {"self", "cls"}
    missing = wanted - parameters(docstring)
    assert not missing, f"{name} does not document {', '.join(sorted(missing))}"
