"""Plans that run: built once for one convolution, run many times in any thread's context.

Source: NVIDIA cuDNN backend API reference, `cudnnBackendExecute`.
"""

from __future__ import annotations

from collections.abc import Mapping

from convscope.cudnn.graph.backend import Attribute, Kind, Scope, Type, call
from convscope.cudnn.graph.engines import Offers
from convscope.cudnn.graph.operations import Tensor
from convscope.cudnn.graph.plan import Plan
from convscope.cudnn.legacy import Handle


class ExecutablePlan:
    """One plan of one convolution, built; close it before its offers, or leave its `with` block.

    Any thread may run it in its own context, several at the same time.

    Args:
        offers: of the convolution on the device that will run it.

    Attributes:
        plan: the engine and its knobs.
        workspace_bytes: what a run needs.

    Raises:
        NotSupportedError: cuDNN refuses the plan for this convolution.
    """

    def __init__(self, offers: Offers, plan: Plan) -> None:
        self.plan, self._scope = plan, Scope()
        self._owned: Offers | None = None
        try:
            self._built = offers.built(self._scope, plan)
            (self.workspace_bytes,) = self._built.read(Attribute.PLAN_WORKSPACE_BYTES, Type.INT64)
        except Exception:
            self.close()
            raise

    def own(self, offers: Offers) -> None:
        """Close these offers, from which it was built, together with the plan."""
        self._owned = offers

    def run(self, handle: Handle, x: int, w: int, y: int, workspace: int) -> None:
        """Enqueue a run of a plan of a convolution alone, as `launch` does."""
        self.launch(handle, {Tensor.X: x, Tensor.W: w, Tensor.Y: y}, workspace)

    def launch(self, handle: Handle, pointers: Mapping[Tensor, int], workspace: int = 0) -> None:
        """Enqueue a run on the context's stream.

        Args:
            pointers: by tensor, the address of its memory on the device, a multiple of 16.
            workspace: the address of `workspace_bytes` bytes; 0 where none are needed.
        """
        with Scope() as scope:
            pack = scope.new(Kind.VARIANT_PACK)
            pack.set(Attribute.PACK_NUMBERS, Type.INT64, *map(int, pointers))
            pack.set(Attribute.PACK_POINTERS, Type.VOID_POINTER, *pointers.values())
            pack.set(Attribute.PACK_WORKSPACE, Type.VOID_POINTER, workspace).finalized()
            call("cudnnBackendExecute", "run", handle.argument, self._built.address, pack.address)

    def close(self) -> None:
        """Destroy the plan, and offers that it owns; twice is once."""
        self._scope.close()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> ExecutablePlan:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
