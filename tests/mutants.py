"""Mutation testing: small changes to the modules that compute, each run against that module's tests.

Run by `make mutants`. The changes are Cosmic Ray's (a comparison, an operator, a number, a boolean, `and` and `or`, a
condition), and numbers that double. They are made in a copy of the repository. A process that has imported PyTorch
forks once for each mutant, since importing PyTorch takes longer than most tests.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators import boolean_replacer as booleans
from cosmic_ray.operators import provider
from cosmic_ray.operators.number_replacer import NumberReplacer

ROOT = Path(__file__).parents[1]
# Tests of a module, besides tests/<package>/test_<module>*.py: what else holds its behaviour, and takes seconds.
STORAGE = ("storage/test_cells*.py", "storage/test_damage*.py", "storage/test_store*.py")
TESTS: dict[str, tuple[str, ...]] = {
    "convolution/roofline": ("convolution/test_hardware_limit*.py",),
    "convolution/tolerance": (),
    "inference/loadgen": (),
    "verification/support": (),
    "verification/choice": (),
    "verification/verdict": (),
    "timing/summary": (),
    "timing/layer_times": ("timing/test_graphs*.py", "profiling/test_bench*.py"),
    "power/energy": ("power/test_meter*.py",),
    "power/sampler": ("power/test_meter*.py",),
    "profiling/compare": (),
    "profiling/measurement": (),
    "cluster/progress": ("cluster/test_status*.py",),
    "storage/environment": (),
    "storage/files": STORAGE,
    "storage/lock": (),
    "storage/mending": STORAGE,
    "storage/paths": ("storage/test_environment*.py", "cluster/test_progress*.py"),
    "storage/schema": STORAGE,
    "storage/store": STORAGE,
    "storage/table": STORAGE,
}
COMPARISONS = ("Lt LtE", "Lt GtE", "LtE Lt", "LtE Gt", "Gt GtE", "Gt LtE", "GtE Gt", "GtE Lt", "Eq NotEq", "NotEq Eq")
BINARY = ("Add Sub", "Sub Add", "Mul Div", "Div Mul", "FloorDiv Mul", "Mod Mul", "Pow Mul", "BitOr BitAnd", "BitAnd BitOr")
UNTESTABLE = ("strict=", "frozen=", "kw_only=")  # assertions of the code itself, and of the type checker
PRELOADED = ("torch", "torchvision", "pandas", "scipy.stats", "hypothesis.strategies", "pytest", "tqdm")
IMPORTED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
SHORTEST_LIMIT_S = 20.0


class Doubled(NumberReplacer):
    """Doubles numbers."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        yield from list(super().mutation_positions(node))[:1]

    def mutate(self, node: Any, index: int) -> Any:
        return parso.python.tree.Number(f"{node.get_first_leaf().prefix}{2 * ast.literal_eval(node.value)}", node.start_pos)


def operators() -> list[Any]:
    """Return the operators: the boundary and the negation of a comparison, one other operation, changed constants."""
    known = provider.OperatorProvider()
    names = [f"ReplaceComparisonOperator_{pair.replace(' ', '_')}" for pair in (*COMPARISONS, "Is IsNot", "IsNot Is")]
    names += [f"ReplaceBinaryOperator_{pair.replace(' ', '_')}" for pair in BINARY]
    names += ["ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "ReplaceAndWithOr", "ReplaceOrWithAnd", "AddNot"]
    names += ["ReplaceUnaryOperator_Delete_Not", "NumberReplacer"]
    return [*(known[name]() for name in names), Doubled()]


@dataclass(frozen=True)
class Mutant:
    """One change of a module; `line` is the line as it was, `changed` as it is in the mutant."""

    module: str
    number: int
    line: str
    changed: str
    outcome: str = ""
    seconds: float = 0.0


def mutants(module: str, source: str) -> dict[Mutant, str]:
    """Return the mutants of a module with their sources; those that compile to other code, each once."""
    found: dict[str, Mutant] = {}
    original = meaning(source)
    for operator in operators():
        nodes = [node for node in ast_nodes(get_ast(source)) for _ in operator.mutation_positions(node)]
        for occurrence, node in enumerate(nodes):
            changed = None if is_left_out(node) else mutate_code(source, operator, occurrence)
            if changed is None or changed in found or meaning(changed) in (None, original):
                continue
            pairs = zip(source.splitlines(), changed.splitlines(), strict=True)
            at, (before, after) = next((at, pair) for at, pair in enumerate(pairs, 1) if pair[0] != pair[1])
            found[changed] = Mutant(module, at, before.strip(), after.strip())
    return {mutant: changed for changed, mutant in found.items()}


def is_left_out(node: Any) -> bool:
    """Tell whether a place is in a decorator, a signature's star, or an argument that only asserts something."""
    if node.parent is not None and node.parent.type in ("parameters", "dictorsetmaker"):
        return True
    while node is not None:
        if node.type == "decorator" or (node.type == "argument" and node.get_code().strip().startswith(UNTESTABLE)):
            return True
        node = node.parent
    return False


def meaning(source: str) -> str | None:
    """Return a text that two sources share if they differ in annotations only; None if not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def tests_of(module: str) -> list[str]:
    """Return the files with a module's tests, its own first."""
    package, _, name = module.partition("/")
    patterns = (f"{package}/test_{name}.py", f"{package}/test_{name}_*.py", *TESTS.get(module, ()))
    return list(dict.fromkeys(str(path) for glob in patterns for path in sorted(Path("tests").glob(glob))))


def run_tests(files: Sequence[str], log: Path) -> None:
    """Run test files in this process, a new session, and end it with pytest's exit code."""
    os.setsid()
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    import pytest

    os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-W", IMPORTED, *files]))


def outcome(files: Sequence[str], limit_s: float, log: Path) -> tuple[str, float]:
    """Run test files in a fork; return survived, killed or timeout, and the seconds taken."""
    started_s = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(files, log))
    process.start()
    process.join(limit_s)
    said = "timeout" if process.exitcode is None else "killed" if process.exitcode else "survived"
    if process.exitcode is None and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return said, time.monotonic() - started_s


def study(module: str, sample: int, seed: int) -> list[Mutant]:
    """Run a module's mutants, or a sample of them, against its tests; the working directory is the copy.

    Raises:
        SystemExit: the tests fail without a change.
    """
    path, files = Path("convscope", f"{module}.py"), tests_of(module)
    source, log = path.read_text(), Path("mutants.log")
    said, whole_s = outcome(files, 600.0, log)
    if said != "survived":
        sys.exit(f"{module}: its tests fail without a change:\n{log.read_text()[-4000:]}")
    every = mutants(module, source)
    chosen = sorted(every, key=lambda mutant: (mutant.number, mutant.changed))
    if 0 < sample < len(chosen):
        chosen = random.Random(f"{seed} {module}").sample(chosen, sample)
    done = []
    for mutant in chosen:
        path.write_text(every[mutant])
        for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
            stale.unlink()
        said, seconds = outcome(files, max(SHORTEST_LIMIT_S, 4 * whole_s), log)
        done.append(replace(mutant, outcome=said, seconds=round(seconds, 1)))
        if said == "survived":
            print(f"{module}:{mutant.number}: {mutant.line}\n    survived: {mutant.changed}", flush=True)
    path.write_text(source)
    return done


def main() -> None:
    """Study the modules that were asked for and print a table."""
    parser = argparse.ArgumentParser(description="Run small changes of modules against their tests.")
    parser.add_argument("modules", nargs="*", default=list(TESTS), metavar="MODULE", help="e.g. power/energy; all without")
    parser.add_argument("--sample", type=int, default=0, help="mutants a module; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--list", type=Path, help="file for the list of mutants, a JSON object a line")
    options = parser.parse_args()
    names = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    started = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="mutants.") as copy:
        for name in filter(None, names.stdout.decode().split("\0")):
            if (ROOT / name).is_file():
                Path(copy, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(copy, name))
        os.chdir(copy)
        sys.path.insert(0, copy)
        for name in PRELOADED:
            importlib.import_module(name)
        print(f"{'module':24}{'mutants':>9}{'killed':>9}{'survived':>10}{'score':>8}{'seconds':>9}", flush=True)
        for module in options.modules:
            done = study(module, options.sample, options.seed)
            left = sum(mutant.outcome == "survived" for mutant in done)
            score, seconds = 100 * (1 - left / len(done)), sum(mutant.seconds for mutant in done)
            print(f"{module:24}{len(done):9}{len(done) - left:9}{left:10}{score:7.0f}%{seconds:9.0f}", flush=True)
            if options.list:
                with (started / options.list).open("a") as file:
                    file.writelines(json.dumps(asdict(mutant)) + "\n" for mutant in done)


if __name__ == "__main__":
    main()
