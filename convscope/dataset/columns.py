"""Columns of a file of samples: unit, meaning, and the values that are allowed.

The documents of a published data set are made of it; a test compares it with the catalogue of all tables,
docs/columns.csv. Types, and whether a cell may be empty, are those of `SampleRow`.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass

from convscope.cudnn.shape import ELEMENT_BYTES
from convscope.dataset.samples import SampleRow

STATUSES = ("ok", "unsupported", "wrong", "less precise", "far too slow", "lost the GPU")
MATHS = ("fp32", "tf32")
LAYOUTS = ("nchw", "nhwc")
RANKED_FOR = ("card", "description")
PAIR = "[0-9]+x[0-9]+"
PLAN = "[0-9]+(:k[0-9]+=-?[0-9]+(,k[0-9]+=-?[0-9]+)*)?"


@dataclass(frozen=True)
class Column:
    """One column: its unit ("" where it has none), its meaning, and the values that it may have where these are few."""

    name: str
    unit: str
    text: str
    values: tuple[str, ...] = ()
    pattern: str | None = None

    @functools.cached_property
    def kind(self) -> str:
        """The type of its cells: "str", "int" or "float"."""
        return _KINDS[self.name].removesuffix(" | None")

    @property
    def is_optional(self) -> bool:
        """True where a cell may be empty."""
        return _KINDS[self.name].endswith(" | None")

    @functools.cached_property
    def minimum(self) -> int | None:
        """The least value of a number."""
        return None if self.kind == "str" else 1 if self.unit in ("count", "pixels") else 0

    @property
    def description(self) -> str:
        """The meaning, with the values that are allowed."""
        return self.text + (f": {', '.join(f'`{each}`' for each in self.values)}" if self.values else "")


_KINDS = {field.name: str(field.type) for field in dataclasses.fields(SampleRow)}

COLUMNS = (
    Column("gpu_name", "", "the card, as its driver names it; of measurements on a CPU, the processor"),
    Column("algorithm", "",
           "requested algorithm, or what chose it: `torch` (PyTorch's default), `torch benchmark` (its search)"),
    Column("batch_size", "count", "images in a call"),
    Column("in_channels", "count", "channels of the input, of all groups"),
    Column("out_channels", "count", "channels of the output: filters"),
    Column("in_height_px", "pixels", "height of the input without padding; empty where the source does not say it"),
    Column("in_width_px", "pixels", "width of the input without padding; empty where the source does not say it"),
    Column("kernel_size", "", "size of the filters, height x width: `3x3`", pattern=PAIR),
    Column("stride", "", "stride, height x width", pattern=PAIR),
    Column("padding", "", "padding at each side, height x width", pattern=PAIR),
    Column("dilation", "", "dilation, height x width", pattern=PAIR),
    Column("groups", "count", "groups of channels"),
    Column("dtype", "", "data type of input, filters and output", tuple(ELEMENT_BYTES)),
    Column("math", "", "arithmetic that float32 may use; 16-bit types say `tf32`", MATHS),
    Column("layout", "", "order of the tensors in memory", LAYOUTS),
    Column("run", "", "the measuring run: host, UUID of the card and start; published data leave the host out"),
    Column("mean_ms", "ms", "time of one call; empty where it was not measured"),
    Column("mean_ci95_ms", "ms", "half the 95 % interval of the mean, over the placements"),
    Column("placements", "count", "places in memory that the mean is over"),
    Column("timing_method", "", "how the time was taken"),
    Column("energy_j", "J", "energy of one call, replayed alone"),
    Column("energy_uncertainty_j", "J", "two standard deviations of the energy"),
    Column("workspace_bytes", "bytes", "scratch memory that the algorithm needs besides its tensors"),
    Column("relative_error", "1", "error of the output against float64, relative"),
    Column("ran_algorithm", "",
           "algorithm that ran, as its kernels show; of a choice the plan with the same kernels"),
    Column("ran_provider", "", "library that computed it"),
    Column("kernels", "", "kernels that ran: a JSON object of their counts by name, or names with `;` between"),
    Column("ranked_plans", "",
           "plans that compute what is asked for, in the order of cuDNN's heuristic A, `38:k2=8,k13=1;0`: asked, not "
           "measured; empty where unknown",
           pattern=f"{PLAN}(;{PLAN})*"),
    Column("ranked_for", "",
           "`card`: an H200 or an H100 was there when the plans were asked for, so that those are among them that "
           "cuDNN offers only then; `description`, or empty: none was",
           RANKED_FOR),
    Column("cudnn", "", "version of cuDNN"),
    Column("driver", "", "version of the driver"),
    Column("torch", "", "version of PyTorch"),
    Column("model", "", "model that the shape is from"),
    Column("family", "", "kind of network that the model is"),
    Column("input_size", "pixels", "side of the model's square image"),
    Column("layer", "", "name of the layer in the model"),
    Column("status", "", "`ok` has a time, an energy or both; any other says why there is none", STATUSES),
    Column("reason", "", "why the status is not `ok`"),
)  # fmt: skip
BY_NAME = {column.name: column for column in COLUMNS}
