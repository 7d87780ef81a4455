"""The tests in tests/gpu and the benchmarks name only what exists: few changes see a machine that runs them."""

from __future__ import annotations

import ast
import contextlib
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fakes import ROOT
from gpu import card

TESTS = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
FILES = [*sorted((ROOT / "benchmarks").glob("*.py")), *TESTS]
OWN = ("convscope", "profiler", "fakes", "run_")


class Unresolved(Exception):  # noqa: N818
    """A name that leads to nothing."""


def follow(value: Any, names: list[str]) -> Any:
    """Return the attribute of an attribute; a submodule that nobody imported yet is imported."""
    for name in names:
        if not hasattr(value, name) and isinstance(value, ModuleType):
            try:
                importlib.import_module(f"{value.__name__}.{name}")
            except ModuleNotFoundError:
                raise Unresolved(f"{value.__name__} has no {name}") from None
        if not hasattr(value, name):
            raise Unresolved(f"{getattr(value, '__name__', value)} has no {name}")
        value = getattr(value, name)
    return value


def find(path: str) -> Any:
    """Return what stands under a full name, "torch.cuda.Event"."""
    first, *rest = path.split(".")
    try:
        module = importlib.import_module(first)
    except ModuleNotFoundError:
        raise Unresolved(f"no module {first}") from None
    return follow(module, rest)


def imports(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield line, local name and full name of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, name.asname or name.name, f"{node.module}.{name.name}") for name in node.names)
        elif isinstance(node, ast.Import):
            for name in node.names:
                local = name.asname or name.name.split(".")[0]
                yield node.lineno, local, name.name if name.asname else local
                yield node.lineno, "", name.name


def dotted(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`, none for any other expression."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id, *names] if isinstance(node, ast.Name) else []


def assigned(tree: ast.Module) -> set[str]:
    """Return the local names that a file gives values to, parameters too: they may stand for anything."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}


def looped(tree: ast.Module) -> dict[str, list[str]]:
    """Return the texts that the variables of `for` loops over literals take: `for name in ("a", "b")`."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.For):
            try:
                items = list(ast.literal_eval(node.iter))
            except (ValueError, TypeError):
                continue
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            for at, target in enumerate(targets):
                values = [item[at] if isinstance(node.target, ast.Tuple) else item for item in items]
                if isinstance(target, ast.Name):
                    found.setdefault(target.id, []).extend(value for value in values if isinstance(value, str))
    return found


def patches(tree: ast.Module) -> Iterator[tuple[int, list[str], str]]:
    """Yield line, owner and attribute of everything that is patched; no owner where the attribute is a full name."""
    texts = looped(tree)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or any(word.arg in ("raising", "create") for word in node.keywords):
            continue
        called = dotted(node.func)
        if called[-1:] in (["setattr"], ["delattr"]) or called[-2:] == ["patch", "object"]:
            owner, name = [*node.args, None, None][:2]
            if isinstance(owner, ast.Constant):
                yield node.lineno, [], owner.value
            elif owner is not None and dotted(owner):
                values = [name.value] if isinstance(name, ast.Constant) else texts.get(getattr(name, "id", ""), [])
                yield from ((node.lineno, dotted(owner), value) for value in values)
        elif called[-1:] == ["patch"] and node.args and isinstance(node.args[0], ast.Constant):
            yield node.lineno, [], node.args[0].value


def check(line: int, path: str) -> Iterator[str]:
    """Yield a line of text if a full name leads to nothing."""
    try:
        find(path)
    except Unresolved as error:
        yield f"line {line}: {path}: {error}"


def wrong_imports(tree: ast.Module) -> list[str]:
    """Return the imports from this project that do not resolve."""
    own = [(line, path) for line, _, path in imports(tree) if path.startswith(OWN)]
    return [text for line, path in own for text in check(line, path)]


def wrong_patches(tree: ast.Module) -> list[str]:
    """Return the patches of attributes that do not exist."""
    known = {local: path for _, local, path in imports(tree)}
    found = []
    for line, owner, name in patches(tree):
        if not owner:
            found += check(line, name)
        elif owner[0] in known:
            found += check(line, ".".join([known[owner[0]], *owner[1:], name]))
    return found


def wrong_attributes(tree: ast.Module) -> list[str]:
    """Return the attributes of this project's modules that a file uses and that do not exist."""
    others = assigned(tree)
    known = {local: path for _, local, path in imports(tree) if path.startswith(OWN) and local not in others}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in known:
            try:
                module = find(known[node.value.id])
            except Unresolved:
                continue  # wrong_imports says so
            if isinstance(module, ModuleType):
                found.update(check(node.lineno, f"{known[node.value.id]}.{node.attr}"))
    return sorted(found)


def programs(tree: ast.Module) -> Iterator[ast.Module]:
    """Yield a file and the programs in its strings, each as its tree."""
    yield tree
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import " in node.value:
            with contextlib.suppress(SyntaxError):  # prose
                yield ast.parse(node.value)


CHECKS = {"imports": wrong_imports, "patches": wrong_patches, "attributes": wrong_attributes}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("wrong", CHECKS.values(), ids=CHECKS)
def test_what_a_file_for_a_gpu_names_exists(wrong: Any, path: Path):
    assert [found for tree in programs(ast.parse(path.read_text())) for found in wrong(tree)] == []


JUDGED = re.compile(r"energy|power_mean|ratio_to|times_floor|images_per_s|ci95|ci99")


def judges_unmarked(tree: ast.Module) -> list[str]:
    """Return the tests that judge energy, power or rates of a card without the marker `quiet`."""
    if "pytestmark = pytest.mark.quiet" in map(ast.unparse, tree.body):
        return []
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        if "pytest.mark.quiet" not in map(ast.unparse, node.decorator_list)
        if any(JUDGED.search(ast.unparse(each.test)) for each in ast.walk(node) if isinstance(each, ast.Assert))
    ]


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_a_test_that_judges_energy_or_rates_needs_the_card_alone(path: Path):
    assert judges_unmarked(ast.parse(path.read_text())) == []


def test_a_program_in_a_string_is_read():
    _, program = programs(ast.parse('RUN = """\nfrom convscope import gone\n"""'))
    assert wrong_imports(program)


@pytest.mark.parametrize(
    ("wrong", "text", "line"),
    [
        (wrong_imports, "from convscope.convolution.swap import gone", 1),
        (wrong_imports, "from convscope import gone", 1),
        (wrong_imports, "def test():\n    import convscope.gone", 2),
        (wrong_patches, "from convscope.convolution import swap\nmonkeypatch.setattr(swap, 'math_in_force', 1)", 2),
        (wrong_patches, "import torch\nwith mock.patch.object(torch.cuda, 'gone', 1): ...", 2),
        (wrong_patches, "from convscope.timing.graphs import time\npatched.delattr(time, 'gone')", 2),
        (wrong_patches, "monkeypatch.setattr('convscope.gpus.gone', 1)", 1),
        (wrong_patches, "mock.patch('convscope.gone.name', 1)", 1),
        (
            wrong_patches,
            "from convscope import gpus\nfor name, at in (('gone', 1),):\n    m.setattr(gpus, name, at)",
            3,
        ),
        (wrong_attributes, "from convscope import gpus\ndef test():\n    gpus.gone(1)", 3),
    ],
)
def test_what_does_not_exist_is_found(wrong: Any, text: str, line: int):
    (found,) = wrong(ast.parse(text))
    assert found.startswith(f"line {line}: ")


def test_what_exists_or_cannot_be_known_is_left_alone():
    text = """
        import torch
        from convscope.convolution import backends
        monkeypatch.setattr(backends, "math_in_force", 1)
        monkeypatch.setattr(backends, "gone", 1, raising=False)
        monkeypatch.setattr("torch.cuda.is_available", 1)
        monkeypatch.setattr(anything, "gone", 1)
        backends.math_in_force()
    """
    tree = ast.parse(textwrap.dedent(text))
    assert [wrong(tree) for wrong in CHECKS.values()] == [[], [], []]


def test_a_judgement_without_the_marker_is_found():
    text = """
        def test_one(): assert row["energy_j"] > 0
        @pytest.mark.quiet
        def test_two(): assert row["energy_j"] > 0
        def test_three(): assert row["status"] == "ok"
    """
    assert judges_unmarked(ast.parse(textwrap.dedent(text))) == ["test_one"]
    assert judges_unmarked(ast.parse("pytestmark = pytest.mark.quiet" + textwrap.dedent(text))) == []


def test_processes_side_by_side_take_turns_of_the_gpus(tmp_path: Path):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    chosen = [card.choice({card.WORKER: f"gw{number}"}, tmp_path) for number in range(3)]
    assert chosen == [{card.VISIBLE: "0"}, {card.VISIBLE: "1"}, {card.VISIBLE: "0"}]
    named = {card.WORKER: "gw1", card.VISIBLE: "3,GPU-5a"}
    assert card.choice(named, tmp_path) == {card.VISIBLE: "GPU-5a"}
    assert card.choice({card.VISIBLE: "1"}, tmp_path) == {}  # alone: all that is visible
    assert card.choice(named, tmp_path / "none") == {}
