"""Mutation testing: small changes to the modules that compute, each run against that module's tests (`make mutants`).

The changes are Cosmic Ray's (a comparison, an operator, a number, a boolean, `and` and `or`, a condition), and numbers
that double. They are made in a copy of the repository. A process that has imported PyTorch forks once for each mutant,
since importing PyTorch takes longer than most tests.
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
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators import provider
from cosmic_ray.operators.number_replacer import NumberReplacer

ROOT = Path(__file__).parents[1]
# Modules by package, and the tests that hold their behaviour besides tests/<package>/test_<module>*.py.
MODULES = {
    "cluster": "progress",
    "convolution": "roofline tolerance",
    "inference/serving": "search simulation",
    "power": "energy sampler",
    "profiling": "measurement",
    "profiling/comparison": "compare judgement",
    "storage": "environment files lock mending paths schema store table",
    "timing": "completions layer_times summary",
    "verification": "choice support verdict",
}
MORE_TESTS = {
    "cluster/progress": "cluster/test_status* cluster/test_hostile_results*",
    "convolution/roofline": "convolution/test_hardware_limit*",
    "power": "power/test_meter*",
    "profiling/comparison": "profiling/test_compare* profiling/test_judgement*",
    "storage": "storage/test_cells* storage/test_damage* storage/test_starts* storage/test_store*",
    "storage/environment": "",
    "storage/lock": "",
    "storage/paths": "storage/test_environment* profiling/test_request* cluster/test_progress*",
    "timing/layer_times": "timing/test_graphs* profiling/test_bench*",
}
COMPARISONS = "Lt_LtE Lt_GtE LtE_Lt LtE_Gt Gt_GtE Gt_LtE GtE_Gt GtE_Lt Eq_NotEq NotEq_Eq Is_IsNot IsNot_Is"
BINARY = "Add_Sub Sub_Add Mul_Div Div_Mul FloorDiv_Mul Mod_Mul Pow_Mul BitOr_BitAnd BitAnd_BitOr"
OTHERS = "ReplaceTrueWithFalse ReplaceFalseWithTrue ReplaceAndWithOr ReplaceOrWithAnd AddNot NumberReplacer"
UNTESTABLE = ("strict=", "frozen=", "kw_only=")  # assertions of the code itself, and of the type checker
PRELOADED = ("torch", "torchvision", "pandas", "scipy.stats", "hypothesis.strategies", "pytest", "tqdm")
OPTIONS = (
    "-x",
    "-q",
    "-p",
    "no:cacheprovider",
    "-W",
    "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
)
SHORTEST_LIMIT_S = 20.0


class Doubled(NumberReplacer):
    """Doubles numbers."""

    def mutation_positions(self, node: Any) -> Iterator[Any]:
        yield from list(super().mutation_positions(node))[:1]

    def mutate(self, node: Any, index: int) -> Any:
        return parso.python.tree.Number(f"{node.prefix}{2 * ast.literal_eval(node.value)}", node.start_pos)


@dataclass(frozen=True)
class Mutant:
    """One change of a module; `line` is the line as it was, `changed` as it is in the mutant."""

    module: str
    number: int
    line: str
    changed: str
    outcome: str = ""
    seconds: float = 0.0


def operators() -> list[Any]:
    """Return the operators: the boundary and the negation of a comparison, one other operation, changed constants."""
    names = [f"ReplaceComparisonOperator_{name}" for name in COMPARISONS.split()]
    names += [f"ReplaceBinaryOperator_{name}" for name in BINARY.split()]
    known = provider.OperatorProvider()
    return [*(known[name]() for name in [*names, *OTHERS.split(), "ReplaceUnaryOperator_Delete_Not"]), Doubled()]


def mutants(module: str, source: str) -> dict[Mutant, str]:
    """Return the mutants of a module with their sources, each once; those that mean the same are left out."""
    found: dict[str, Mutant] = {}
    unchanged = (None, meaning(source))
    for operator in operators():
        nodes = [node for node in ast_nodes(get_ast(source)) for _ in operator.mutation_positions(node)]
        for occurrence, node in enumerate(nodes):
            changed = None if is_left_out(node) else mutate_code(source, operator, occurrence)
            if changed is None or changed in found or meaning(changed) in unchanged:
                continue
            pairs = zip(source.splitlines(), changed.splitlines(), strict=True)
            at, (before, after) = next((at, pair) for at, pair in enumerate(pairs, 1) if pair[0] != pair[1])
            found[changed] = Mutant(module, at, before.strip(), after.strip())
    return {mutant: changed for changed, mutant in found.items()}


def is_left_out(node: Any) -> bool:
    """Tell whether a place is in a decorator, a signature's star, or an argument that only asserts something."""
    if node.parent.type in ("parameters", "dictorsetmaker"):
        return True
    while node.type != "decorator" and not (node.type == "argument" and node.get_code().strip().startswith(UNTESTABLE)):
        node = node.parent
        if node is None:
            return False
    return True


def meaning(source: str) -> str | None:
    """Return a text that two sources share if they differ in annotations only; None if not Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        for name in {"annotation", "returns"} & set(node._fields):
            setattr(node, name, None)
    return ast.dump(tree)


def tests_of(module: str) -> list[str]:
    """Return the files with a module's tests: exact numbers first, which kill fastest, then its others, then more."""
    package, _, name = module.rpartition("/")
    more = MORE_TESTS.get(module, MORE_TESTS.get(package, "")).split()
    patterns = (f"{package}/test_{name}_*", f"{package}/test_{name}", *more)
    return list(dict.fromkeys(str(path) for one in patterns for path in sorted(Path("tests").glob(f"{one}.py"))))


def run_tests(files: Sequence[str], log: Path) -> None:
    """Run test files in this process, a new session, and end it with pytest's exit code."""
    os.setsid()
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os._exit(importlib.import_module("pytest").main([*OPTIONS, *files]))


def outcome(files: Sequence[str], limit_s: float, log: Path) -> tuple[str, float]:
    """Run test files in a fork; return survived, killed or timeout, and the seconds taken."""
    started_s = time.monotonic()
    process = multiprocessing.get_context("fork").Process(target=run_tests, args=(files, log))
    process.start()
    process.join(limit_s)
    found = "timeout" if process.exitcode is None else "killed" if process.exitcode else "survived"
    if found == "timeout" and process.pid is not None:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return found, time.monotonic() - started_s


def study(module: str, sample: int, seed: int) -> list[Mutant]:
    """Run a module's mutants, or a sample of them, against its tests; the working directory is the copy.

    Raises:
        SystemExit: the tests fail without a change.
    """
    path, files, log = Path("convscope", f"{module}.py"), tests_of(module), Path("mutants.log")
    source = path.read_text()
    found, whole_s = outcome(files, 600.0, log)
    if found != "survived":
        sys.exit(f"{module}: its tests fail without a change:\n{log.read_text()[-4000:]}")
    every = mutants(module, source)
    chosen = sorted(every, key=lambda mutant: (mutant.number, mutant.changed))
    if 0 < sample < len(chosen):
        chosen = random.Random(f"{seed} {module}").sample(chosen, sample)
    done = []
    for mutant in chosen:
        write_module(path, every[mutant])
        found, seconds = outcome(files, max(SHORTEST_LIMIT_S, 4 * whole_s), log)
        done.append(replace(mutant, outcome=found, seconds=round(seconds, 1)))
        if found == "survived":
            print(f"{module}:{mutant.number}: {mutant.line}\n    survived: {mutant.changed}", flush=True)
    write_module(path, source)
    return done


def write_module(path: Path, source: str) -> None:
    """Write a module and remove its bytecode, which Python would use for a source of the same size and second."""
    path.write_text(source)
    for stale in path.parent.glob(f"__pycache__/{path.stem}.*"):
        stale.unlink()


def copy_repository(target: Path) -> None:
    """Copy the files that git knows, or does not ignore."""
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    for name in names:
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def main() -> None:
    """Study the modules that were asked for and print a table."""
    every = [f"{package}/{name}" for package, names in MODULES.items() for name in names.split()]
    parser = argparse.ArgumentParser(description="Run small changes of modules against their tests.")
    parser.add_argument("modules", nargs="*", default=every, metavar="MODULE", help="such as power/energy; all without")
    parser.add_argument("--sample", type=int, default=0, help="mutants of a module; 0 for all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--list", type=lambda name: Path(name).resolve(), help="file for the mutants, as lines of JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mutants.") as copy:
        copy_repository(Path(copy))
        os.chdir(copy)
        sys.path[0] = copy
        for name in PRELOADED:
            importlib.import_module(name)
        print(f"{'module':24}{'mutants':>9}{'killed':>9}{'timeout':>9}{'survived':>10}{'score':>8}", flush=True)
        for module in options.modules:
            done = study(module, options.sample, options.seed)
            counts = Counter(mutant.outcome for mutant in done)
            score = 100 * (1 - counts["survived"] / len(done))
            cells = f"{len(done):9}{counts['killed']:9}{counts['timeout']:9}{counts['survived']:10}{score:7.0f}%"
            print(f"{module:24}{cells}", flush=True)
            if options.list:
                with options.list.open("a") as file:
                    file.writelines(json.dumps(asdict(mutant)) + "\n" for mutant in done)


if __name__ == "__main__":
    main()
