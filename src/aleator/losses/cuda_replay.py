"""The mean loss of a batch and its gradients as one launch on a GPU.

A loss on a few thousand posteriors is some forty short kernels, and launching them takes longer than running them. So
the first calls with a batch of one shape run as usual, then the kernels of the loss and of its gradients are recorded
in a CUDA graph. Later calls with this shape copy their posteriors into the recording and replay it. The results are the
same to the last bit, because the kernels are.

A recording keeps the memory that the loss needs, so the last few shapes alone are kept. Batches so large that launching
them does not matter are not recorded. `fit` records its whole step (training/cuda_graph.py), and this module then stays
out of the way.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from aleator.foundation import Backward, Saved, with_gradient
from aleator.posteriors import PosteriorBatch, VonMisesFisher

ORDINARY = 2  # calls of one shape before it is recorded: they compile kernels and make tables
_MOST_PAIRS = 2**29  # of anchors and negatives
_KEPT = 4  # recordings
_COUNTED = 64  # shapes whose calls are counted

_Mean = Callable[[list[VonMisesFisher]], Tensor]
_recordings: OrderedDict[Hashable, "_Recording"] = OrderedDict()
_calls: OrderedDict[Hashable, int] = OrderedDict()
_lock = threading.Lock()


def recorded_mean(settings: Hashable, mean: _Mean, posteriors: Sequence[PosteriorBatch]) -> Tensor | None:
    """The mean loss of posteriors from a recording; None if it has to be computed as usual.

    Args:
        settings: All that the loss depends on besides the posteriors. Equal settings share a recording.
        mean: Posteriors, in the given order -> their mean loss. It must not read anything back to the CPU.
        posteriors: Posteriors with a batch shape each; the first are the anchors.

    Returns:
        A scalar with gradients in mu and kappa of all posteriors, or None.
    """
    single = [q for q in posteriors if isinstance(q, VonMisesFisher)]
    if len(single) < len(posteriors) or not _can_record(single):
        return None
    tensors = [x for q in single for x in (q.mu, q.kappa)]
    key = settings, tensors[0].device, *(tuple(x.shape) for x in tensors)
    with _lock:
        recording = _recordings.get(key)
        if recording is None:
            if _count(key) <= ORDINARY:
                return None
            recording = _recordings[key] = _Recording(mean, tensors)
            if len(_recordings) > _KEPT:
                _recordings.popitem(last=False)
        _recordings.move_to_end(key)

    def compute(needed: Sequence[bool]) -> tuple[Tensor, Saved, Backward]:
        # The forward pass has the gradients already, so the backward pass only multiplies.
        value, gradients = recording.replay(tensors)
        return value, tuple(gradients), lambda grad, *gradients: torch._foreach_mul(gradients, grad)

    return with_gradient(compute, *tensors)


def forget_recordings() -> None:
    """Free the memory of all recordings. The next calls run as usual, and shapes are recorded anew."""
    with _lock:
        _recordings.clear()
        _calls.clear()


def _can_record(posteriors: Sequence[VonMisesFisher]) -> bool:
    """Whether these are in float32 on a GPU, not too many, and gradients are asked for in a plain way."""
    anchor, last = posteriors[0], posteriors[-1]
    if anchor.device.type != "cuda" or len(anchor) * last.batch_shape[-1] > _MOST_PAIRS:
        return False
    if any(q.dtype != torch.float32 for q in posteriors) or not torch.is_grad_enabled() or torch.is_anomaly_enabled():
        return False
    if torch.cuda.is_current_stream_capturing() or torch._C._are_functorch_transforms_active():
        return False
    return any(q.mu.requires_grad or q.kappa.requires_grad for q in posteriors)


def _count(key: Hashable) -> int:
    """How often this key has been asked for, this time included."""
    _calls[key] = _calls.pop(key, 0) + 1
    if len(_calls) > _COUNTED:
        _calls.popitem(last=False)
    return _calls[key]


class _Recording:
    """Kernels that compute the mean loss and its gradients from tensors at fixed places."""

    def __init__(self, mean: _Mean, like: Sequence[Tensor]):
        self.inputs = [x.detach().clone(memory_format=torch.contiguous_format) for x in like]
        leaves = [x.detach().requires_grad_() for x in self.inputs]  # they share the memory

        def work() -> tuple[Tensor, tuple[Tensor, ...]]:
            pairs = zip(leaves[::2], leaves[1::2], strict=True)
            value = mean([VonMisesFisher(mu, kappa, validate_args=False) for mu, kappa in pairs])
            return value.detach(), torch.autograd.grad(value, leaves)

        device = like[0].device
        with torch.cuda.device(device):
            stream = torch.cuda.Stream(device)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                work()
            torch.cuda.current_stream().wait_stream(stream)
            self.graph = torch.cuda.CUDAGraph()
            # Other threads, such as those that load data, may go on with their own work on the device.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.value, self.gradients = work()
        self.lock, self.done = threading.Lock(), torch.cuda.Event()

    def replay(self, tensors: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The mean loss and its gradients in tensors of the recorded shapes, on the current stream."""
        with self.lock, torch.cuda.device(self.inputs[0].device):
            stream = torch.cuda.current_stream()
            stream.wait_event(self.done)  # the last replay may be on another stream
            torch._foreach_copy_(self.inputs, [x.detach() for x in tensors])
            self.graph.replay()
            result = self.value.clone(), [x.clone() for x in self.gradients]
            self.done.record(stream)
        return result
