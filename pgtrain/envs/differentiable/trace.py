"""Watches every torch call of a piece of code and keeps the line of each that a gradient does not survive."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_SKIP = (str(Path(torch.__file__).parent), str(Path(__file__).parent / "base.py"), __file__)
_CHECK = str(Path(__file__).parent / "check.py")
_HELPERS = tuple(str(Path(__file__).parent / name) for name in ("finite_differences.py", "visited.py"))

# what is called → what that means, what to do instead
_TO_HOST = {
    "item": ".item() takes a number out of the graph and makes a GPU wait",
    "tolist": ".tolist() takes numbers out of the graph and makes a GPU wait",
    "__float__": "float(tensor) takes a number out of the graph and makes a GPU wait",
    "__int__": "int(tensor) takes a number out of the graph and makes a GPU wait",
    "__index__": "a tensor used as an index number leaves the graph and makes a GPU wait",
    "__bool__": "a Python branch on a tensor (if, while, and, or, max, min): it can only follow one env's answer",
}
_TO_NUMPY = {
    "numpy": ".numpy() leaves torch, and with it the graph",
    "__array__": "NumPy is called with a tensor: it leaves torch, and with it the graph",
}
_CUTS = {"detach": ".detach() cuts the graph", "data": ".data cuts the graph"}
# functions that draw from torch's global generator unless they are given another
_DRAWS = (
    "rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal", "bernoulli", "poisson",
    "multinomial", "dropout", "normal_", "uniform_", "exponential_", "bernoulli_", "log_normal_", "cauchy_",
    "geometric_", "random_",
)  # fmt: skip
_DRAW_CURE = (
    "draw by self.normal or self.uniform: the env's own randomness, which a seed fixes and a checkpoint keeps"
)
_HOST_CURE = (
    "keep tensors: batched arithmetic, torch.where(condition, a, b) for a branch, clamp, minimum, maximum"
)
_NUMPY_CURE = "use torch's function of the same name (np.sin → torch.sin, np.clip → torch.clamp)"
_CUT_CURE = "drop it: the env is detached where a window begins, by `detach()`, and nowhere else"
_INPLACE_CURE = (
    "make a new tensor: torch.stack or torch.cat of the parts, torch.where for a part of the rows, x = x + y"
)

Fault = tuple[str, str, str]  # line, message, cure


class Watch(TorchFunctionMode):
    """`with Watch() as watch: …`; then `faults`, `origin` of the last value to become non-finite, and `culprit` of a
    backward pass that made a non-finite slope."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Fault] = []
        self.origin: tuple[str, str] | None = None  # line and operation
        self.culprit: tuple[str, str] | None = None
        self._nodes: dict[Any, tuple[str, str]] = {}  # node of the graph → line, operation

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        fault = self._judge(func, name, args, kwargs)
        line = calling_line()
        if fault is not None and line is not None:
            self.faults.append((line, *fault))
        out = func(*args, **kwargs)
        if line is not None and isinstance(out, Tensor) and out.grad_fn is not None:
            self._remember(out.grad_fn, line, name.strip("_"))
            if not _finite([out]) and _finite([x for x in args if isinstance(x, Tensor)]):
                self.origin = line, name.strip("_")
        return out

    def _remember(self, node: Any, line: str, operation: str) -> None:
        """The node and those behind it that no earlier call made: one call may be several operations (1 / x)."""
        queue = [node]
        while queue:
            node = queue.pop()
            if node is not None and node not in self._nodes:
                self._nodes[node] = line, operation
                queue += [behind for behind, _ in node.next_functions]

    def _judge(self, func: Any, name: str, args: Any, kwargs: Any) -> tuple[str, str] | None:
        """Message and cure, if this call is a fault."""
        if name in _TO_HOST:
            return _TO_HOST[name], _HOST_CURE
        if name in _TO_NUMPY:
            return _TO_NUMPY[name], _NUMPY_CURE
        if name == "detach" and _in_graph(args):
            return _CUTS["detach"], _CUT_CURE
        if name == "__get__" and getattr(func, "__self__", None) is Tensor.data and _in_graph(args):
            return _CUTS["data"], _CUT_CURE
        if name in _DRAWS and kwargs.get("generator") is None:
            return (
                f"{name} draws random numbers that neither the env's seed nor a checkpoint knows",
                _DRAW_CURE,
            )
        writes = (
            name in ("__setitem__", "__set__")
            or (name.endswith("_") and not name.endswith("__") and name != "requires_grad_")
            or name in ("__iadd__", "__isub__", "__imul__", "__itruediv__")
            or kwargs.get("out") is not None
        )
        if writes and _in_graph([*args, *kwargs.values()]):
            what = "x[…] = …" if name == "__setitem__" else f"{name} or its operator (+=, *=, …)"
            return f"an in-place write into a graph ({what})", _INPLACE_CURE
        return None

    def follow_backward(self) -> None:
        """Asks every operation seen to tell, in the backward pass to come, if it turns a finite slope into another."""

        def ask(node: Any, line: str, operation: str) -> None:
            def hook(grad_inputs: Any, grad_outputs: Any) -> None:
                if self.culprit is None and _finite(grad_outputs) and not _finite(grad_inputs):
                    self.culprit = line, operation

            node.register_hook(hook)

        for node, (line, operation) in self._nodes.items():
            ask(node, line, operation)


def _in_graph(values: Any) -> bool:
    return any(isinstance(x, Tensor) and x.requires_grad for x in values)


def _finite(grads: Any) -> bool:
    return all(g is None or bool(torch.isfinite(g).all()) for g in grads)


def user_line(filename: str) -> bool:
    """Is this a file of the task's, not of torch, of the base class or of the checker?"""
    return not filename.startswith((*_SKIP, _CHECK, *_HELPERS)) and not filename.startswith("<")


def raised_at(name: str, error: BaseException) -> str:
    """In one line: which method of a task raised what, and in which line of the task's own code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if user_line(f.filename)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    return f"{where}{name} raised {type(error).__name__}: {' '.join(str(error).split())}"


def calling_line() -> str | None:
    """ "file.py:12" of the innermost frame that is the task's; None if the call does not come from it."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename.startswith(_CHECK):
            return None
        if user_line(filename):
            return f"{filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
