"""Time of each layer of your own model by several algorithms, in one library call.

python examples/library.py
"""

from __future__ import annotations

import torch
from torch import nn

from convscope import profile

model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2))
algorithms = ["torch", "implicit precomp gemm", "gemm"] if torch.cuda.is_available() else ["torch", "direct", "smm"]

overall, layers = profile(model, torch.randn(8, 3, 64, 64), algorithms)
print(overall[["algorithm", "mean", "energy_per_inference_j", "status"]].to_string(index=False))
print(layers.pivot(index="layer", columns="algorithm", values="mean_ms").round(4))
