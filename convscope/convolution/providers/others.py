"""This project's Triton kernels, and PyTorch's own convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from convscope.convolution import backends
from convscope.convolution.providers.plan import NOTHING, Execution
from convscope.cudnn.shape import Convolution

if TYPE_CHECKING:
    from convscope.kernels.catalogue import Conv2dPlan


class TritonPlan:
    """A plan of one of this project's 2-D kernels."""

    def __init__(self, plan: Conv2dPlan) -> None:
        self._plan = plan
        # Not wrapped: that would cost time on the host in each call.
        self.run, self.renew, self.close = plan.run, plan.renew, plan.close

    @property
    def workspace_bytes(self) -> int:
        """The memory for partial sums; known after the first run."""
        return self._plan.workspace_bytes

    @property
    def execution(self) -> Execution:
        """The computation that the last run was."""
        return Execution(self._plan.algorithm, "triton", self.workspace_bytes)

    @property
    def tuned(self) -> Mapping[str, str]:
        """The block shapes that were chosen at the first run, by convolution."""
        return self._plan.tuned


class TritonProvider:
    """This project's 2-D kernels in Triton, which is imported at the first question only."""

    name = "triton"

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return why there is no kernel for a convolution, or None where there is."""
        try:
            from convscope.kernels import catalogue
        except ModuleNotFoundError as error:
            return f"{algorithm} needs Triton ({error}): it comes with PyTorch's CUDA wheels"
        return catalogue.why_no_kernel(algorithm, shape)

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> TritonPlan:
        """Make a plan, its block shapes chosen at the first run; errors as in `Provider`."""
        if reason := self.why_not(algorithm, shape):
            raise NotImplementedError(reason)
        from convscope.kernels.catalogue import Conv2dPlan

        most = backends.settings_in_force().max_workspace_bytes
        return TritonPlan(Conv2dPlan(algorithm, shape, device, max_workspace_bytes=most))

    def close(self) -> None:
        """Do nothing: only plans hold something."""


class TorchPlan:
    """A plan of PyTorch's own convolution, in 2-D or 3-D."""

    workspace_bytes, execution, tuned = None, Execution("torch", "torch"), NOTHING

    def __init__(self, shape: Convolution) -> None:
        functions = {2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
        self._convolve, self._options = functions[len(shape.size)], shape.options

    def run(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Convolve as PyTorch does, on the current stream."""
        return self._convolve(x, weight, bias, *self._options)

    def close(self) -> None:
        """Do nothing: PyTorch keeps its own plans."""


class TorchProvider:
    """PyTorch's own convolutions, on any device; PyTorch says itself what it cannot do, when it is called."""

    name = "torch"

    def why_not(self, algorithm: str, shape: Convolution) -> str | None:
        """Return None."""
        return None

    def plan(self, algorithm: str, shape: Convolution, device: torch.device) -> TorchPlan:
        """Make a plan; the algorithm is PyTorch's to choose."""
        return TorchPlan(shape)

    def close(self) -> None:
        """Do nothing: there is nothing to give back."""
