"""Holes of unknown length: a token that expands into two masks, and one that deletes its place.

DreamOn's rules (DreamLM/DreamOn), for any schedule: after a step, each *expand* token that it
committed becomes two masks, and each *delete* token (DreamOn's is the end token) is cut out with
its position. A row may grow by a budget; once that is spent, expand is banned for it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codila.canvas import Canvas


def resize(canvas: Canvas, room: Tensor, step: int, *, expand: int, delete: int) -> Tensor:
    """Carry out what was committed at ``step``; returns the room ``[N]`` that each row has left.

    Where a step commits more expand tokens than there is room for, the leftmost become one mask.
    Rows stay aligned at the start of the canvas; the shorter ones are padded on the right with end
    tokens that the DLM does not see. The block grid is laid anew, edits or none: it must not depend
    on the other rows.
    """
    edits = torch.isin(canvas.tokens, canvas.tokens.new_tensor([expand, delete]))
    if not bool((edits & (canvas.step_of == step)).any()):
        canvas.lay_grid()
        return room
    seen = canvas.attention_mask
    start, stop = canvas.prompt_length, canvas.prompt_length + canvas.length
    keep = None if seen is None else seen[:, start:stop].tolist()
    tokens, steps, left = canvas.tokens.tolist(), canvas.step_of.tolist(), room.tolist()
    rows: list[list[tuple[int, int, bool]]] = []
    for r in range(len(tokens)):
        row: list[tuple[int, int, bool]] = []
        for c in reversed(range(canvas.length)):  # the room is spent from the right
            token, when = tokens[r][c], steps[r][c]
            known = True if keep is None else keep[r][c]
            if when != step or token not in (expand, delete):
                row.append((token, when, known))
            elif token == expand:
                twice = left[r] > 0
                left[r] -= twice
                row += [(canvas.mask_token_id, -1, True)] * (1 + twice)
        row.reverse()
        while row and not row[-1][2]:  # padding of an earlier step
            row.pop()
        rows.append(row)
    canvas.length = max(len(row) for row in rows)
    padding = (canvas.eos_token_ids[0], -1, False)
    rows = [row + [padding] * (canvas.length - len(row)) for row in rows]
    made = torch.tensor(rows, dtype=torch.int64, device=canvas.ids.device)  # [N, length, 3]
    canvas.ids = torch.cat([canvas.ids[:, :start], made[..., 0]], dim=1)
    canvas.step_of = made[..., 1].to(canvas.step_of.dtype)
    front = canvas.ids.new_ones((len(rows), start)) if seen is None else seen[:, :start]
    whole = torch.cat([front.bool(), made[..., 2].bool()], dim=1)
    canvas.attention_mask = None if bool(whole.all()) else whole
    canvas.lay_grid()
    return room.new_tensor(left)
