"""Names on disk: stages, folders of results, names as they stand in paths."""

from __future__ import annotations

import functools
import os
import re
import secrets
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

STAGES = ("1_sanity", "2_quick", "3_full")
SCRIPTS = dict(zip(STAGES, ("1_sanity_check.sh", "2_quick_sweep.sh", "3_full_run.sh"), strict=True))
KEEPING = "before-"  # begins the name of a folder in a run's, where --overwrite keeps what was there
KEPT = ".before-"  # in the name of a folder beside a run's, where older versions kept it


_ARGUMENTS = re.compile(r",[A-Za-z_]\w*=.*", re.ASCII | re.DOTALL)
_OF_FILE = re.compile(r"\.(py:[^,]+|pt2|csv)$")
_IN_PATHS = re.compile(r"[^\w.+-]+|^\.", re.ASCII)


@functools.lru_cache(1 << 14)  # a status or a matrix asks for the same names again and again
def slug(name: str) -> str:
    """Return a name as it stands in paths: whatever is no ASCII letter, digit, or one of ".+-_", becomes an underscore.

    So does a dot at the beginning, which would hide a folder. `torchvision:` falls away, and so do the folders of a
    model's file; those of its arguments stay. `slurm/stage.sh` has the same function.
    """
    bare = name.removeprefix("torchvision:")
    base = _ARGUMENTS.sub("", bare)
    if file := _OF_FILE.search(base):
        bare = bare[base.rfind("/", 0, file.start()) + 1 :]
    return _IN_PATHS.sub("_", bare)


DTYPES = {"float32": "", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}  # as they stand in folders' names
LAYOUTS = {"nchw": "", "nhwc": "nhwc"}


def suffix(batch_size: int = 1, dtype: str = "float32", layout: str = "nchw", input_shape: str | None = None) -> str:
    """Return the end of a folder's name for what is not batch 1, float32, NCHW, square: "_b8_fp16_nhwc_480x640"."""
    batch = "" if batch_size == 1 else f"b{batch_size}"
    words = batch, DTYPES.get(dtype, dtype), LAYOUTS.get(layout, layout), input_shape or ""
    return "".join(f"_{word}" for word in words if word)


def precision(dtype: str, layout: str) -> str:
    """Return data type and layout as people read them behind other settings: ", float16, nhwc", "" for the usual."""
    named = (dtype, layout)
    return "".join(f", {name}" for name, usual in zip(named, ("float32", "nchw"), strict=True) if name != usual)


def now_utc() -> str:
    """Return the time as the files say it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def new_beside(path: Path) -> Path:
    """Return a name beside a file for its next content, `.<name>.<16 digits>.new`; nobody else has it or guesses it.

    It is opened with mode "x", which follows no link.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")


SIZES_BY_STAGE = dict(zip(STAGES, (1, 10, 100), strict=True))
PROFILE_VERSION = 3  # of the files of `run_profile.py`, for readers that import no table


MODEL_DIGEST = "model_digest"  # of code and weights; "" is an unknown one
PROFILE_FREE = ("stage", "gpu", "input_sizes", "device")  # settings in which the starts of one folder may differ
RETRIED = ("failed", "oom", "wrong")  # statuses of rows that `run_profile.py --retry` measures again


def spread(count: int, low: int, high: int) -> tuple[int, ...]:
    """Return `count` sizes in pixels from low to high, evenly: low + int(i (high - low) / (count - 1))."""
    return (low,) if count == 1 else tuple(low + int(i * (high - low) / (count - 1)) for i in range(count))


@dataclass(frozen=True)
class Combination:
    """One model with one algorithm on one GPU, by the names that people write, and the settings that name its folder.

    Attributes:
        settings: further fields of its line in a matrix, "warmup=5", as they stand there.
    """

    model: str
    algorithm: str
    gpu: str
    batch_size: int = 1
    dtype: str = "float32"
    layout: str = "nchw"
    input_shape: str | None = None
    settings: tuple[str, ...] = ()

    @property
    def folder_name(self) -> str:
        """`<model>_<algorithm>_<gpu>` and `suffix`, the folder under `results/<stage>/`."""
        names = "_".join(slug(name) for name in (self.model, self.algorithm, self.gpu))
        return names + suffix(self.batch_size, self.dtype, self.layout, self.input_shape)

    def __str__(self) -> str:
        batch = f", batch {self.batch_size}" if self.batch_size != 1 else ""
        shape = f", {self.input_shape}" if self.input_shape else ""
        names = f"{self.model}, {self.algorithm}, {self.gpu}"
        return names + batch + precision(self.dtype, self.layout) + shape


_PACKAGE = Path(__file__).parents[1]


def programs(package: Path = _PACKAGE) -> Path:
    """Return the folder of `profiler.py` and `run_*.py`: in a wheel `programs/` inside the package, else beside it."""
    inside = package / "programs"
    return inside if (inside / "profiler.py").is_file() else package.parent


def root(package: Path = _PACKAGE) -> Path:
    """Return the checkout that a package lies in; of one from a wheel the working directory, "." if that is gone."""
    if programs(package) == package.parent:
        return package.parent
    try:
        return Path.cwd()
    except OSError:
        return Path()


PROGRAMS = programs()
ROOT = root()  # `results/` lies in it
IS_CHECKOUT = _PACKAGE.parent == PROGRAMS


def cache_folder() -> Path:
    """Return this project's folder in the user's cache, `$XDG_CACHE_HOME/convscope` or `~/.cache/convscope`.

    Of a user without a home a path that is not there: nothing is kept then.
    """
    try:
        home = Path.home()
    except RuntimeError:  # neither HOME nor an entry in passwd
        home = Path("/nonexistent")
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "convscope"


def results(root: Path = ROOT) -> Path:
    """Return the folder of all results: `CONVSCOPE_RESULTS`, from the root where it is relative, or `results`."""
    return root / (os.environ.get("CONVSCOPE_RESULTS") or "results")


RESULTS = results()
