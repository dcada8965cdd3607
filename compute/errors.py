"""Errors of the tensor layer; part of the tree in hw/errors.py."""

from __future__ import annotations

from hw.errors import NotSupported, TghwError, UsageError

__all__ = ["BindingError", "CompileError", "DTypeError", "DeviceMismatch", "NotExecuted", "NotSupported", "ShapeError", "UsageError", "show_shape"]


class ShapeError(UsageError, ValueError):
    """Shapes that do not fit together, or an axis or index outside of a shape. Nothing was computed."""

    code = "shape"
    default_means = "the operation is not defined for these shapes"
    default_remedy = "reshape, expand or slice one of the operands first"


class DTypeError(UsageError, TypeError):
    """A dtype that an operation is not defined for."""

    code = "dtype"
    default_means = "the operation is not defined for this dtype"
    default_remedy = "cast the operand first"


class DeviceMismatch(UsageError):
    """Operands that live on different devices."""

    code = "device-mismatch"
    default_means = "one kernel reads memory of one device only"
    default_remedy = "move one operand with .to(device)"


class BindingError(UsageError):
    """A symbolic size without a value, with two values, or with one outside of its range."""

    code = "symbolic-size"
    default_remedy = "bind each variable once, to a value inside its range"


class NotExecuted(TghwError):
    """Data was asked of a device that compiles kernels and runs none of them."""

    code = "not-executed"
    default_means = "the device NULL compiles every kernel and runs none, so there is no result"
    default_remedy = "use DEV=CPU, or MOCKPCI+AMD, to compute the data"


class CompileError(TghwError):
    """The code generator was given, or produced, something that LLVM refuses."""

    code = "kernel-compile"
    default_means = "a mistake in the code generator of this project"
    default_remedy = "report the kernel's text, which is in the message"


def show_shape(shape: object) -> str:
    """A shape as text for messages, e.g. (2, 3)."""
    return str(tuple(shape)) if isinstance(shape, (tuple, list)) else str(shape)
