"""The house as the code has it: imports that go one way, what works without PyTorch, docstrings, sizes."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from fakes import ROOT

SHARED = ("errors", "gpus", "slurm", "failures", "distributed")
# Each may import those before it, and the shared modules.
LAYERS = (
    *("storage", "timing", "power", "cli", "cudnn", "kernels"),
    *("convolution", "profiling", "verification", "atlas", "inference"),
)
STUDIES = ("profiling", "verification", "atlas", "inference", "training", "conv3d")
BELOW_STUDIES = frozenset(LAYERS[: LAYERS.index("profiling")])
# What imports less than all that stands before it; entries with a dot are single modules.
NARROWER = {
    "planning": {*BELOW_STUDIES, "profiling"},
    "pinning": {"storage", "cli", "cudnn", "convolution.algorithms", "profiling.comparison.judgement", "atlas.rows"},
    "pinning.pinned": {*LAYERS, "pinning"},
    "pinning.planned": {*LAYERS, "pinning"},
    "pinning.pin_command": {"cli", "cudnn", "convolution.algorithms", "convolution.names"},
    "pinning.trial": {*LAYERS, "pinning"},
    "equipment": {"storage", "timing", "power", "cli", "cudnn"},
    "training": BELOW_STUDIES,
    "conv3d": BELOW_STUDIES,
    "cluster": {"cli", "storage", "power", "convolution.algorithms", "convolution.names"},
    "dataset": {"storage", "cudnn.shape"},
    "dataset.ranked_plans": {"storage", "cudnn"},
    "dataset.command": {"storage", "cli"},
    "dataset.package.command": {"storage", "cli"},
    "dataset.check": {"storage", "cudnn.shape", "cli", "verification.kernel_families"},
    "dataset.collect": {*LAYERS, "dataset"},
    "prediction": {
        *("storage", "cli", "cudnn.shape", "cudnn.graph.plan", "dataset", "verification.kernel_families"),
    },
    "prediction.network": {"convolution", "cudnn.shape", "dataset", "prediction"},
    "selection": {
        *("storage", "cli", "cudnn.shape", "convolution.algorithms", "convolution.layer"),
        *("dataset", "prediction", "pinning.document"),
    },
    "selection.network": {"convolution", "selection"},
    "report": {
        *("storage", "cli", "dataset", "prediction", "profiling.comparison.compare"),
        *(f"{study}.rows" for study in STUDIES),
    },
}
WITHOUT_TORCH = (
    *(
        "storage",
        "cluster",
        "planning",
        "dataset",
        "report",
        "prediction",
        "equipment",
        "selection",
        "cli.display",
        "cli.options",
        "slurm",
    ),
    *(
        "pinning.command",
        "pinning.pin_command",
        "convolution.names",
        "profiling.comparison",
        "profiling.preflight",
        "profiling.request",
    ),
    "profiling.tracing",
    "profiling.options",
)
WITH_TORCH = ("dataset.collect.", "prediction.network", "selection.network")
TOP = [ROOT / "profiler.py", *sorted(ROOT.glob("run_*.py"))]
BLOCKED = ("torch", "torchvision", "ai3", "triton")


def module_name(path: Path) -> str:
    """Return a file's module, without `convscope.` in front: "timing.graphs", and "timing" for its __init__."""
    parts = path.relative_to(ROOT / "convscope").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "convscope").rglob("*.py"))}
PACKAGES = {name for name, path in MODULES.items() if path.name == "__init__.py" and name}


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text())


def every_import(path: Path) -> Iterator[str]:
    """Yield the full name of everything a file imports, wherever in the file: under TYPE_CHECKING, in functions."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}, line {node.lineno}: a relative import"
            yield from (f"{node.module}.{name.name}" for name in node.names)


@functools.cache
def imported(module: str) -> frozenset[str]:
    """Return the modules of the package that one of its modules imports; a package stands for its __init__."""
    found = set()
    for name in every_import(MODULES[module]):
        own = name.removeprefix("convscope.")
        if own != name:
            found.add(own if own in MODULES else own.rpartition(".")[0])
    return frozenset(found - {module})


def package(module: str) -> str:
    """Return the package of the first level that a module is in, or the module itself where it is in none."""
    return module.split(".")[0]


def circles(graph: dict[str, Iterable[str]]) -> list[list[str]]:
    """Return the groups of nodes that reach each other."""
    reach = {node: {*following} & graph.keys() for node, following in graph.items()}
    for middle in graph:
        for node in graph:
            if middle in reach[node]:
                reach[node] |= reach[middle]
    groups = {frozenset(other for other in graph if other in reach[node] and node in reach[other]) for node in graph}
    return sorted(sorted(group) for group in groups if group)


def functions(tree: ast.AST, above: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function of a file with its full name, those inside classes and functions too."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{above}{node.name}", node
        name = f"{above}{node.name}." if hasattr(node, "name") and hasattr(node, "body") else above
        yield from functions(node, name)


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return the last words of a function's decorators: "jit", "property", "setter"."""
    return {ast.unparse(each).split("(")[0].split(".")[-1] for each in node.decorator_list}


def label(path: Path) -> str:
    return str(path.relative_to(ROOT))


def assert_none(offenders: Iterable[str]) -> None:
    """Fail with one offender a line, all of them."""
    lines = list(offenders)
    assert not lines, "\n".join(["", *lines])


# ---- imports


def test_no_modules_import_each_other_in_a_circle():
    assert_none(map(" and ".join, circles({module: imported(module) for module in MODULES})))


def test_no_packages_import_each_other_in_a_circle():
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        graph.setdefault(package(module), set()).update(package(other) for other in imported(module))
    for name, following in graph.items():
        following.discard(name)
    assert_none(map(" and ".join, circles(graph)))


def test_a_circle_is_found():
    graph = {"a": ["b"], "b": ["c"], "c": ["a"], "d": ["a"], "e": ["d"]}
    assert circles(graph) == [["a", "b", "c"]]


def allowed(module: str) -> set[str]:
    """Return the packages, and single modules with a dot, that a module may import."""
    own = package(module)
    if own in SHARED:
        return {*SHARED}
    for name in (module, module.rpartition(".")[0], own):
        if name in NARROWER:
            return {*SHARED, own, *NARROWER[name]}
    return {*SHARED, *LAYERS[: LAYERS.index(own) + 1]}


def test_imports_go_one_way():
    wrong = []
    for module in MODULES:
        if module in ("", "__main__"):
            continue
        permitted = allowed(module)
        wrong += [
            f"{module} imports {other}"
            for other in sorted(imported(module))
            if package(other) not in permitted and other not in permitted
        ]
    assert_none(wrong)


def test_every_package_has_its_place_in_the_order():
    known = {*SHARED, *LAYERS, *NARROWER}
    assert {package(module) for module in MODULES} - {"", "__main__"} <= known


def test_a_study_imports_no_other_but_those_that_stand_before_it():
    both = {"profiling", "verification"}
    before = {"verification": {"profiling"}, "atlas": both, "inference": {*both, "atlas"}}
    for module in MODULES:
        if package(module) in STUDIES:
            others = {package(other) for other in imported(module)} & {*STUDIES} - {package(module)}
            assert others <= before.get(package(module), set()), module


def test_nothing_in_the_package_imports_the_commands_and_their_profiler():
    commands = {path.stem for path in TOP}
    found = {
        module: sorted({name.split(".")[0] for name in every_import(path)} & commands)
        for module, path in MODULES.items()
    }
    assert {module: names for module, names in found.items() if names} == {}


def test_only_the_kernels_import_triton():
    importing = {
        module for module, path in MODULES.items() if any(name.split(".")[0] == "triton" for name in every_import(path))
    }
    assert {package(module) for module in importing} == {"kernels"}
    assert not [path for path in TOP if any(name.split(".")[0] == "triton" for name in every_import(path))]


WITHOUT = f"""
import importlib, json, sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked())
failed = {{}}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failed[name] = str(error)
print(json.dumps(failed))
"""


def test_what_a_login_node_needs_imports_without_pytorch():
    wanted = [
        f"convscope.{module}"
        for module in MODULES
        if any(module == name or module.startswith(f"{name}.") for name in WITHOUT_TORCH)
        and not module.startswith(WITH_TORCH)
    ]
    assert len(wanted) > 10
    command = [sys.executable, "-c", WITHOUT, *wanted, "convscope.__main__"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert_none(f"{module}: {error}" for module, error in json.loads(done.stdout).items())


# ---- docstrings

MOODS = ("What", "Which", "Where", "How", "From", "Who", "Whether", "When")


def first_word(text: str) -> str:
    return (re.match(r"\w+|`", text) or [""])[0]


def test_every_modules_docstring_names_the_thing():
    texts = {path: ast.get_docstring(parsed(path)) or "" for path in [*MODULES.values(), *TOP]}
    assert_none(f"{label(path)}: {text[:60]}" for path, text in texts.items() if first_word(text) in {"", *MOODS})


def test_every_public_functions_docstring_begins_with_a_verb():
    wrong = []
    for path in [*MODULES.values(), *TOP]:
        for name, node in functions(parsed(path)):
            text = ast.get_docstring(node)
            private = any(part.startswith("_") for part in name.split("."))
            if text and not private and not decorators(node) & {"property", "cached_property"}:
                opening = first_word(text)
                wrong += [f"{label(path)}, {name}: {text[:60]}"] if opening in {*MOODS, "The", "A", "An"} else []
    assert_none(wrong)


# ---- sizes

LINES_MOST, FUNCTION_LINES_MOST, MODULES_MOST = 400, 60, 13


def test_no_module_is_long():
    every = [*MODULES.values(), *TOP, *sorted((ROOT / "tests").rglob("*.py"))]
    lengths = {label(path): path.read_text().count("\n") for path in every}
    assert_none(f"{name}: {length} lines" for name, length in lengths.items() if length > LINES_MOST)


def test_no_function_is_long():
    lengths = {
        f"{label(path)}, {name}": (node.end_lineno or 0) - node.lineno + 1
        for path in [*MODULES.values(), *TOP]
        for name, node in functions(parsed(path))
        if "jit" not in decorators(node)
    }
    assert_none(f"{name}: {length} lines" for name, length in lengths.items() if length > FUNCTION_LINES_MOST)


def test_no_package_has_many_modules():
    counts = {name or "convscope": 0 for name in ("", *PACKAGES)}
    for path in MODULES.values():
        if path.name != "__init__.py":
            counts[module_name(path.parent / "__init__.py") or "convscope"] += 1
    assert_none(f"{name}: {count} modules" for name, count in counts.items() if count > MODULES_MOST)
