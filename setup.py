"""Build of a wheel: profiler.py and run_*.py go into convscope/programs/, else they would be top-level modules.

Everything else stands in pyproject.toml. An editable install takes the files where they are.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

PROGRAMS = sorted(path.stem for path in [Path("profiler.py"), *Path().glob("run_*.py")])
IS_EDITABLE = "editable_wheel" in sys.argv


class BuildPy(build_py):
    """Build of the package, with the programs in a folder inside it."""

    def run(self) -> None:
        """Build the package."""
        super().run()
        if not self.editable_mode:
            for source, target in self._programs().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return the files that a build writes."""
        own = [] if self.editable_mode else [*self._programs().values()]
        return [*super().get_outputs(include_bytecode), *own]

    def _programs(self) -> dict[str, str]:
        folder = Path(self.build_lib, "convscope", "programs")
        return {f"{name}.py": str(folder / f"{name}.py") for name in PROGRAMS}


setup(py_modules=PROGRAMS if IS_EDITABLE else [], cmdclass={"build_py": BuildPy})
