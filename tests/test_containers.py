"""Recipes of containers: their form, and that what they copy and install is there. No machine of CI can build them."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
DOCKERFILE, DEFINITION = ROOT / "containers" / "Dockerfile", ROOT / "containers" / "convscope.def"
SECTIONS = {"arguments", "files", "post", "runscript", "test"}
EXTRA = re.compile(r"\.\[([\w,]+)\]")


def instructions() -> list[tuple[str, list[str]]]:
    """Return the instructions of the Dockerfile with their words."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    whole = re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines()
    return [(name, shlex.split(rest)) for name, _, rest in (line.partition(" ") for line in whole)]


def sections() -> dict[str, list[str]]:
    """Return the lines of each section of the definition, the head under ""."""
    found, name = dict[str, list[str]]({"": []}), ""
    for line in DEFINITION.read_text().splitlines():
        if line.startswith("%"):
            name = line[1:].strip()
            assert name not in found
            found[name] = []
        elif line.strip() and not line.startswith("#"):
            found[name].append(line.strip())
    return found


def copied_by_docker() -> set[str]:
    return {source for name, words in instructions() if name == "COPY" for source in words[:-1]}


def test_the_dockerfile_has_known_instructions_and_its_arguments_have_values():
    known = {"ARG", "FROM", "RUN", "COPY", "WORKDIR", "ENTRYPOINT"}
    assert {name for name, _ in instructions()} == known
    arguments = dict(words[0].split("=") for name, words in instructions() if name == "ARG")
    assert set(arguments) == {"PYTHON", "PINS"}
    assert (ROOT / arguments["PINS"]).is_file()
    used = re.findall(r"\$\{?(\w+)", DOCKERFILE.read_text().split("FROM")[1])
    assert set(used) == {"PYTHON", "PINS"}


def test_the_definition_has_known_sections_and_a_base():
    found = sections()
    assert {*found} == SECTIONS | {""}
    assert dict(line.split(": ") for line in found[""]) == {"Bootstrap": "docker", "From": "python:3.12-slim"}
    (pins,) = (line.removeprefix("pins=") for line in found["arguments"])
    assert (ROOT / pins).is_file()
    assert set(re.findall(r"{{ (\w+) }}", DEFINITION.read_text())) == {"pins"}


def test_both_copy_the_same_and_all_that_a_wheel_is_built_from():
    copied = {line.split()[0] for line in sections()["files"]}
    assert copied == copied_by_docker()
    for source in copied:
        assert [*ROOT.glob(source)], source
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"pyproject.toml", "setup.py", "MANIFEST.in", "convscope", "profiler.py", project["readme"]} <= copied
    assert {*ROOT.glob("run_*.py")} == {path for source in copied if "*" in source for path in ROOT.glob(source)}


def test_both_install_extras_that_there_are():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for recipe in (DOCKERFILE, DEFINITION):
        (extras,) = EXTRA.findall(recipe.read_text())
        assert {*extras.split(",")} == {*project["optional-dependencies"]} - {"dev", "docs", "mutants"}
