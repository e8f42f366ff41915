"""Keys and values of the DLM, kept from step to step.

Attention looks both ways, so every commit changes every position a little, and cached keys are an
approximation (exact for a model of one layer, whose keys depend on their own token alone). A
*refresh* runs the whole sequence and writes all keys. The steps between run a window of it:

* ``prefix``: from the window's start to the end; what is kept lies left of it;
* ``dual``: from the window's start to the end of the scope; what is kept lies on both sides.

The window starts at the leftmost position whose token is newer than its keys, or at the frontier
where that is further left, and one position before it for a DLM whose rows predict their right
neighbour (the halo): one that started at the frontier would leave what was just committed with the
keys of a mask. A refresh is due every `refresh_interval` steps, and where the frontier has moved
`window_blocks` blocks on. Rows of a batch share the window that covers all of theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from codila.canvas import Candidates, Canvas

if TYPE_CHECKING:
    from codila.config import GenerationConfig


class CanvasKeys:
    """Keys and values ``[N, heads, L, size]`` per layer, in the place of a transformers cache.

    Without a `window` an update stores what it is given and hands it on as it is, so that a whole
    pass has the bits of one without a cache. With one it writes those columns, and all come back.
    """

    is_compileable = False

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, Tensor]] = []
        self.window: slice | None = None

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        if self.window is None:
            if layer_idx == len(self.layers):
                self.layers.append((torch.empty_like(key), torch.empty_like(value)))
            for kept, new in zip(self.layers[layer_idx], (key, value), strict=True):
                kept.copy_(new)
            return key, value
        for kept, new in zip(self.layers[layer_idx], (key, value), strict=True):
            kept[:, :, self.window] = new
        return self.layers[layer_idx]

    def select(self, rows: Tensor) -> None:
        self.layers = [(key[rows], value[rows]) for key, value in self.layers]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        return int(query_length), 0


class CachedBody:
    """`DiffusionLM.body` with keys kept between the steps of one generation.

    ``beyond`` positions behind the last candidate are needed too: the AR model's right window.
    """

    def __init__(self, model: Any, config: GenerationConfig, beyond: int = 0) -> None:
        self.model, self.kind, self.beyond = model, config.dlm_cache, beyond
        self.every, self.blocks = (
            config.refresh_interval,
            config.window_blocks or config.scope_blocks,
        )
        self.keys = CanvasKeys()
        self.written: Tensor | None = None  # ids whose keys are stored
        self.age = 0
        self.frontier: Tensor | None = None  # of every row, in blocks, at the last refresh

    def __call__(self, canvas: Canvas, candidates: Candidates) -> tuple[Tensor, int]:
        """Hidden states of columns ``[a, e)``, which hold all that the candidates need, and a."""
        ids, frontier = canvas.seen_ids, _frontier(canvas)
        if self._is_due(ids, frontier):
            self.keys, self.age, self.frontier = CanvasKeys(), 1, frontier
            self.written = ids.clone()
            return self.model.body(ids, canvas.attention_mask, cache=self.keys), 0
        assert self.written is not None
        self.age += 1
        start, stop = self._window(canvas, candidates, ids)
        self.keys.window = slice(start, stop)
        out = self.model.body(
            ids[:, start:stop],
            canvas.attention_mask,
            cache=self.keys,
            window=slice(start, stop),
            length=ids.shape[1],
        )
        self.written[:, start:stop] = ids[:, start:stop]
        return out, start

    def select(self, rows: Tensor) -> None:
        """Keep some rows of the batch."""
        self.keys.select(rows)
        if self.written is not None and self.frontier is not None:
            self.written, self.frontier = self.written[rows], self.frontier[rows]

    def _is_due(self, ids: Tensor, frontier: Tensor) -> bool:
        if self.written is None or self.written.shape != ids.shape:
            return True
        if self.every is not None and self.age >= self.every:
            return True
        assert self.frontier is not None
        return bool(self.blocks) and bool((frontier - self.frontier >= self.blocks).any())

    def _window(self, canvas: Canvas, candidates: Candidates, ids: Tensor) -> tuple[int, int]:
        at = torch.arange(ids.shape[1], device=ids.device)
        assert self.written is not None
        newer = ids.ne(self.written)
        masked = candidates.masked.flatten(1)
        position = candidates.position.flatten(1) + canvas.prompt_length
        far = ids.shape[1]
        starts = torch.stack(
            [torch.where(newer, at, far).amin(), torch.where(masked, position, far).amin()]
        )
        ends = torch.stack(
            [torch.where(newer, at, -1).amax(), torch.where(masked, position, -1).amax()]
        )
        if self.beyond:  # counted from the end of a block, known or not
            ends = ends + self.beyond + candidates.masked.shape[-1] - 1
        start, end = torch.stack([starts.amin() - self.model.shift, ends.amax() + 1]).tolist()
        return max(start, 0), ids.shape[1] if self.kind == "prefix" else min(end, ids.shape[1])


def _frontier(canvas: Canvas) -> Tensor:
    """Index ``[N]`` of the leftmost block that holds a mask."""
    at = torch.arange(canvas.step_of.shape[1], device=canvas.ids.device)
    first = torch.where(canvas.masked, at, at.shape[0]).amin(-1, keepdim=True)
    return (canvas.starts <= first).sum(-1) - 1
