"""Nine Triton kernels for 3-D convolutions, in tutorial order, and what they share; their names need no Triton."""

NAMES = (
    *("direct", "direct merged", "direct merged buffered", "direct tiled"),
    *("gemm ncdhw", "gemm tiled", "gemm pipelined", "gemm split-k", "gemm"),
)
FMA_ONLY = ("direct", "direct merged")  # these never use the matrix unit
PLANAR_ONLY = NAMES[:5]  # these know no channels last
