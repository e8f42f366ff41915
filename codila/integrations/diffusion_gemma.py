"""DiffusionGemma's self-conditioning through :func:`codila_kernels.expected_embedding`.

At every denoising step the decoder of transformers' DiffusionGemma turns the logits of the step
before, z [N, L, V], into soft embeddings, for every position of the canvas (L = 256) and over the
whole vocabulary (V = 262,144):

    softmax(z, fp32).to(dtype) @ embed_tokens.weight * embed_scale [* self_conditioning_mask]

It makes the probabilities twice, in float32 (268 MB per canvas at those sizes) and in the weights'
dtype. :func:`fuse_self_conditioning` replaces the product, and nothing else:

    from codila.integrations.diffusion_gemma import fuse_self_conditioning

    with fuse_self_conditioning(model):
        model.generate(**inputs)

How: the expression stands inline in the decoder's ``forward``, so no module can be swapped. A
forward pre-hook on the decoder hands it, in place of the logits, an object that knows three
operations: ``softmax`` and ``to`` remember, and ``torch.matmul`` with the table
(``__torch_function__``) calls the op. The decoder runs its own code throughout; scale, mask, and
the first step, which has no logits, stay its own. Nothing is kept between the hook and the
product, so an exception leaves nothing behind, and threads and models do not meet. Anything else
that a decoder tries with the object is an error: no path computes something different in silence.

Numbers: the op rounds the soft embedding to the table's dtype, as the product does. What it does
with the probabilities before is at least as accurate: float32 on the CPU, the table's dtype on the
tensor cores, where they add up from the float32 values (see :mod:`codila_kernels.reference`). In
float32 the two differ by the order of a sum; in bfloat16 by the rounding of the probabilities too,
so that a choice between two nearly equal tokens may go the other way.

Gradients flow to the table and, where they require it, to the logits, in training mode or not.
Under autocast the product has the table's dtype, where the plain one has autocast's.

``torch.compile`` traces through the hook without a graph break. A graph compiled before may not
see a hook that comes or goes: fuse before the first compiled call, and after ``remove()`` compile
anew. For ``generate`` with a static cache, which compiles by itself, that takes
``torch.compiler.reset()``.

Memory: around the op nothing of [N, L, V] is made. What the op holds is its own: tiles in the
kernels; with ``impl="torch"`` it may be the probabilities in float32.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from codila_kernels import expected_embedding

__all__ = ["fuse_self_conditioning"]

# Arguments of the decoder's forward. The cache is named by the version of transformers.
_LOGITS = "self_conditioning_logits"
_MASK = "self_conditioning_mask"
_CACHES = ("cache", "past_key_values")

# How far the fused signal may be from the decoder's own in the trial, relative, per row. Rounding
# stays under it in any dtype (bfloat16: three roundings of 0.4 % on either side, at worst);
# another formula (no scale, another temperature) does not.
_TRIAL_TOLERANCE = 0.02

Product = Callable[[Tensor, Tensor], Tensor]


def fuse_self_conditioning(model: nn.Module, impl: str = "auto") -> RemovableHandle:
    """Compute a DiffusionGemma's soft embeddings with `expected_embedding` until removed.

    The model is tried first: its decoder's code runs once as far as the self-conditioning, on two
    positions, with and without the fused product. Nothing is registered unless both agree.

    Args:
        model: a loaded transformers `DiffusionGemmaForBlockDiffusion` or `DiffusionGemmaModel`, or
            a module that holds one. Its weights must be in place, not on the meta device. A deep
            copy of a fused model is fused too.
        impl: who computes the product, as in `codila_kernels.ops`: ``"auto"``, ``"triton"`` or
            ``"torch"``.

    Returns:
        A handle. ``handle.remove()``, or leaving it as a context manager, gives the model back as
        it was: the fusion is one forward pre-hook on the decoder.

    Raises:
        TypeError: `model` holds no DiffusionGemma decoder, or more than one.
        RuntimeError: the model is fused already; this version of transformers has no
            DiffusionGemma, or computes its self-conditioning in a way that is not known here.
        ValueError, TypeError, RuntimeError: what `expected_embedding` raises for `impl` and for the
            dtype and device of the table.
    """
    decoder = _decoder_of(model)
    if any(isinstance(hook, _FuseProduct) for hook in decoder._forward_pre_hooks.values()):
        raise RuntimeError(
            "fuse_self_conditioning: the model is fused already; remove() the first handle before "
            "fusing again"
        )
    product = functools.partial(_soft_embeddings, impl=impl)
    position = _try_product(decoder, product)
    return decoder.register_forward_pre_hook(_FuseProduct(product, position), with_kwargs=True)


class _FuseProduct:
    """The pre-hook: gives the decoder `_Logits` in place of its logits, where there are any."""

    def __init__(self, product: Product, position: int) -> None:
        self.product = product
        self.position = position  # of the logits among the decoder's arguments

    def __call__(
        self, decoder: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        at = self.position
        if len(args) > at and args[at] is not None:
            args = (*args[:at], _Logits(args[at], self.product), *args[at + 1 :])
        elif kwargs.get(_LOGITS) is not None:
            kwargs = {**kwargs, _LOGITS: _Logits(kwargs[_LOGITS], self.product)}
        return args, kwargs


class _Logits:
    """Logits [N, L, V] that wait for their softmax."""

    def __init__(self, logits: Tensor, product: Product) -> None:
        self._logits = logits
        self._product = product

    def to(self, *args: Any, **kwargs: Any) -> _Logits:
        """Moved or cast, as those who place a model on several devices do with its inputs."""
        return _Logits(self._logits.to(*args, **kwargs), self._product)

    def softmax(self, dim: int, dtype: torch.dtype | None = None) -> _Probabilities:
        if dim != -1 or dtype is not torch.float32:
            raise _unknown(f"a softmax over dimension {dim} in {dtype}")
        return _Probabilities(self._logits, self._product)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        raise _unknown(f"{_name(func)} of the logits")


class _Probabilities:
    """``softmax(logits)`` that waits for the table."""

    def __init__(self, logits: Tensor, product: Product) -> None:
        self._logits = logits
        self._product = product

    def to(self, dtype: torch.dtype) -> _Probabilities:
        """Nothing: the op sums in float32 and rounds to the table's dtype, which `matmul` needs."""
        if not isinstance(dtype, torch.dtype):
            raise _unknown(f"a move of the probabilities to {dtype}")
        return self

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is torch.matmul and len(args) == 2 and not kwargs:
            probabilities, table = args
            if isinstance(probabilities, _Probabilities) and isinstance(table, Tensor):
                return probabilities._product(probabilities._logits, table)
        raise _unknown(f"{_name(func)} of the probabilities")


def _soft_embeddings(logits: Tensor, table: Tensor, *, impl: str) -> Tensor:
    """``softmax(logits) @ table`` of logits [..., V] and table [V, D]: [..., D]."""
    soft = expected_embedding(logits.reshape(-1, logits.shape[-1]), table, impl=impl)
    return soft.reshape(*logits.shape[:-1], table.shape[-1])


# --- recognising the model ------------------------------------------------------------------


def _decoder_of(model: nn.Module) -> nn.Module:
    try:
        from transformers.models.diffusion_gemma.modeling_diffusion_gemma import (
            DiffusionGemmaDecoderModel,
        )
    except ImportError as error:
        raise RuntimeError(
            f"fuse_self_conditioning: transformers {_version()} has no DiffusionGemma; 5.17 to "
            "5.24 have it"
        ) from error
    modules = model.modules() if isinstance(model, nn.Module) else ()
    decoders = [module for module in modules if isinstance(module, DiffusionGemmaDecoderModel)]
    if len(decoders) != 1:
        raise TypeError(
            f"fuse_self_conditioning: {type(model).__name__} holds {len(decoders)} DiffusionGemma "
            "decoders, expected one; pass a DiffusionGemmaForBlockDiffusion of transformers"
        )
    return decoders[0]


def _try_product(decoder: nn.Module, product: Product) -> int:
    """Position of the logits among the decoder's arguments, once its code is seen to fit.

    The decoder's own code is called on a stand-in that has an embedding table and a
    self-conditioning that ends the call, so that it cannot touch the model or run its layers.
    """
    forward = inspect.unwrap(type(decoder).forward)
    names = list(inspect.signature(forward).parameters)
    if _LOGITS not in names or _MASK not in names:
        raise _unknown(f"no argument {_LOGITS} or {_MASK}: its forward takes {', '.join(names)}")
    table = getattr(getattr(decoder, "embed_tokens", None), "weight", None)
    if not isinstance(table, Tensor) or table.ndim != 2:
        raise _unknown("no table embed_tokens.weight of two dimensions")
    if table.is_meta:
        raise RuntimeError(
            "fuse_self_conditioning: the embedding table is on the meta device; load the weights "
            "first"
        )

    tables: list[Tensor] = []

    def counted(logits: Tensor, table: Tensor) -> Tensor:
        tables.append(table)
        return product(logits, table)

    with torch.no_grad(), torch.autocast(table.device.type, enabled=False):
        logits = _trial_logits(table)
        product(logits, table)  # what the op objects to is said in its own words
        try:
            plain = _self_conditioning_inputs(forward, decoder, logits)
            fused = _self_conditioning_inputs(forward, decoder, _Logits(logits, counted))
        except Exception as error:
            raise _unknown(f"{type(error).__name__}: {error}") from error
        if len(tables) != 1 or len(plain) != len(fused):
            raise _unknown(f"{len(tables)} products of the probabilities and a table, expected one")
        for ours, theirs in zip(fused, plain, strict=True):
            distance = (ours.float() - theirs.float()).norm(dim=-1)
            size = theirs.float().norm(dim=-1)
            if ours.dtype != theirs.dtype or not (distance <= _TRIAL_TOLERANCE * size).all():
                raise _unknown(
                    f"a trial signal off by {distance.tolist()} at a size of {size.tolist()} "
                    f"({ours.dtype}, expected {theirs.dtype})"
                )
    return names.index(_LOGITS) - 1  # self is not among the arguments of a hook


def _trial_logits(table: Tensor) -> Tensor:
    """[2, 1, V]: three ids of either row hold 11/12 of the probability, the others share 1/12."""
    vocab = table.shape[0]
    logits = torch.zeros(2, 1, vocab, dtype=table.dtype, device=table.device)
    for row in range(2):
        for rank in range(3):
            token = (vocab * (2 * rank + row + 1)) // 7 % vocab
            logits[row, 0, token] = math.log(vocab) + 2 - rank
    return logits


def _self_conditioning_inputs(
    forward: Callable[..., Any], decoder: nn.Module, logits: Any
) -> list[Tensor]:
    """What `forward` hands to the self-conditioning, the second row being masked."""
    from transformers import DynamicCache

    device: Any = decoder.embed_tokens.weight.device  # type: ignore[union-attr]
    arguments: dict[str, Any] = {
        "decoder_input_ids": torch.zeros(2, 1, dtype=torch.int64, device=device),
        _LOGITS: logits,
        _MASK: torch.tensor([True, False], device=device),
    }
    cache = next((name for name in _CACHES if name in inspect.signature(forward).parameters), None)
    if cache is not None:
        arguments[cache] = DynamicCache()
    stand_in = SimpleNamespace(embed_tokens=decoder.embed_tokens, self_conditioning=_arrive)
    try:
        forward(stand_in, **arguments)
    except _Arrived as arrived:
        return arrived.inputs
    raise RuntimeError("its forward never calls self_conditioning")


class _Arrived(Exception):
    """Ends a trial; carries what the self-conditioning was called with."""

    def __init__(self, inputs: list[Tensor]) -> None:
        super().__init__()
        self.inputs = inputs


def _arrive(*args: Tensor, **kwargs: Tensor) -> Tensor:
    raise _Arrived([*args, *kwargs.values()])


def _unknown(found: str) -> RuntimeError:
    return RuntimeError(
        f"fuse_self_conditioning: the decoder of transformers {_version()} computes its "
        f"self-conditioning in a way that is not known here ({found}); use the model unfused, "
        "or transformers 5.17 to 5.24"
    )


def _version() -> str:
    import transformers

    return str(transformers.__version__)


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__name__", repr(func))
