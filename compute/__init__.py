"""Tensors, a kernel compiler, and devices to run on: enough to prove that a device computes.

    from compute import Tensor
    (Tensor([1.0, 2.0]) + 1).numpy()            # on the device of the environment variable DEV, else the CPU
"""

from compute import dtypes
from compute.graph import capture
from compute.tensor import Tensor
from compute.view import Variable

__all__ = ["Tensor", "Variable", "capture", "dtypes"]
