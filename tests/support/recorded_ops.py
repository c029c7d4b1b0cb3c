"""Records and replays on the CPU what a CUDA graph would on a GPU: the operations that Python asks for, without Python.

As in a graph, tensors keep their memory, host numbers are constants, and what waits for the device cannot be recorded.
Operations do run while they are recorded, so the first replay does nothing, and an error undoes what had been changed.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, nullcontext
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hvdkit.torch.graphs import recorder
from hvdkit.torch.rates import step_rates, takes_rate_tensors

WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "unique_dim", "masked_select", "_unique2"}
# new memory, which a graph keeps
EMPTY = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}


class NotRecordableError(RuntimeError):
    pass


class _Ops(TorchDispatchMode):
    def __init__(self, recorded):
        super().__init__()
        self.recorded = recorded
        self.steps, self.before, self.waits = [], {}, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in WAITING:
            if self.recorded:
                raise NotRecordableError(f"{name} waits for the device")
            self.waits.append(f"the host waits for the device in {name}")
        written = self._written(func, args, kwargs) if self.recorded else []
        # its schema does not say that it writes the running statistics
        silently = _tensors(args[3:5]) if self.recorded and name == "native_batch_norm" else []
        for tensor in [*written, *silently]:
            self.before.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        result = func(*args, **kwargs)
        if self.recorded:
            self._note(func, name, args, kwargs, written, result)
        return result

    def _written(self, func, args, kwargs):
        found = []
        for argument, value in [
            *zip(func._schema.arguments, args, strict=False),
            *((each, kwargs[each.name]) for each in func._schema.arguments if each.name in kwargs),
        ]:
            if (argument.alias_info is not None and argument.alias_info.is_write) or func.namespace == "c10d":
                found += _tensors(value)
        return found

    def _note(self, func, name, args, kwargs, written, result):
        outputs = _tensors(result)
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
        if name in EMPTY or (is_view and not written):
            return
        if written:
            outputs = []
        self.steps.append((func, args, kwargs, outputs, func.namespace == "c10d"))

    def undo(self):
        with torch.no_grad():
            for tensor, value in self.before.values():
                tensor.copy_(value)


def _flat(value):
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in _flat(part)]
    return [value]


def _tensors(value):
    return [each for each in _flat(value) if isinstance(each, torch.Tensor)]


class OpRecorder:
    """Stands in for ``CudaRecorder``."""

    def __init__(self):
        self.recorded = self.replays = 0

    def on(self, device):
        return self

    def beside(self):
        return nullcontext()

    def lacks(self):
        return recorder.crowded(0, 1)

    def release(self):
        pass

    def record(self, work, generators):
        ops, place = _Ops(recorded=True), torch.get_rng_state()
        try:
            with ops:
                result = work()
        except BaseException:
            ops.undo()
            torch.set_rng_state(place)
            raise
        self.recorded += 1
        runs = [0]

        @torch.no_grad()
        def replay():
            self.replays += 1
            runs[0] += 1
            if runs[0] == 1:
                return
            for func, args, kwargs, outputs, is_collective in ops.steps:
                found = func(*args, **kwargs)
                if is_collective:
                    for work_handle in _flat(found):
                        if hasattr(work_handle, "wait") and not isinstance(work_handle, torch.Tensor):
                            work_handle.wait()
                if outputs:
                    for kept, new in zip(outputs, _tensors(found), strict=True):
                        kept.copy_(new)

        return result, replay

    @contextmanager
    def watching(self):
        ops, found = _Ops(recorded=False), []
        try:
            with ops:
                yield found
        finally:
            found += ops.waits


class _Counted:
    """A recorder of the GPU that counts."""

    def __init__(self):
        self.recorded = self.replays = 0

    def on(self, device):
        self._recorder = recorder.CudaRecorder(device)
        self.beside, self.watching = self._recorder.beside, self._recorder.watching
        self.release, self.lacks = self._recorder.release, self._recorder.lacks
        return self

    def record(self, work, generators):
        result, replay = self._recorder.record(work, generators)
        self.recorded += 1

        def counted():
            self.replays += 1
            replay()

        return result, counted


@contextmanager
def recording():
    """Let updates be recorded inside, on this machine's GPU or on the CPU, and yield what records and counts them.

    Optimizers step on the CPU as they do on a GPU, so that runs without a recording inside have the same numbers.
    """
    on_gpu = torch.cuda.is_available()
    counted = _Counted() if on_gpu else OpRecorder()
    with ExitStack() as stack:
        for place in ("graphs.updates", "graphs.capturing"):
            stack.enter_context(mock.patch(f"hvdkit.torch.{place}.recorder_for", counted.on))
        for place in () if on_gpu else ("building", "graphs.capturing"):
            stack.enter_context(mock.patch(f"hvdkit.torch.{place}.step_on_device", _step_on_the_cpu))
        yield counted


def _step_on_the_cpu(optimizer, model):
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = True
    if takes_rate_tensors(optimizer):
        optimizer._step_supports_amp_scaling = True
        step_rates(optimizer).put_on(torch.device("cpu"))
