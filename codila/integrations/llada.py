"""LLaDA's ``generate``: its arguments and semantics, for our LLaDA or any module with logits.

Semi-autoregressive blocks of ``block_length``; in each, ``steps`` shared out evenly, the positions
of highest confidence are revealed. Tokens are the arg-max of Gumbel-perturbed logits, confidence is
the probability of the token under the unperturbed ones, in float64.

For CoDiLA use :func:`codila.generate` or :func:`codila.attach`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

END_OF_TURN = 126348  # <|eot_id|>; with the end token what `confidence_eos_eot_inf` holds back


@torch.no_grad()
def generate(
    model: Any,
    prompt: Tensor,
    attention_mask: Tensor | None = None,
    steps: int = 128,
    gen_length: int = 128,
    block_length: int = 128,
    temperature: float = 0.0,
    cfg_scale: float = 0.0,
    remasking: str = "low_confidence",
    mask_id: int = 126336,
    logits_eos_inf: bool = False,
    confidence_eos_eot_inf: bool = False,
    eos_ids: tuple[int, int] = (126081, END_OF_TURN),
) -> Tensor:
    """Decode as LLaDA's published ``generate`` does.

    Args:
        model: ``model(ids, attention_mask=...)`` returns an object with ``logits`` ``[N, L, V]``,
            row p predicting position p.
        prompt: ``[N, P]`` int64, left-padded where ``attention_mask`` is 0.
        attention_mask: ``[N, P]``.
        steps: in all; shared out over the blocks and, in each, over its tokens (the first steps
            take one more where it does not divide).
        gen_length, block_length: tokens to write, and tokens of a block.
        temperature: of the Gumbel noise (from torch's generator, float64); 0 is arg-max.
        cfg_scale: classifier-free guidance against the prompt replaced by masks; 0 is off.
        remasking: "low_confidence", or "random" confidence.
        mask_id: the mask token.
        logits_eos_inf: the end token (the first of ``eos_ids``) is never drawn.
        confidence_eos_eot_inf: end tokens are revealed last. Published, this changes the wrong
            tensor and has no effect; here it does what it says.
        eos_ids: the end token and the end-of-turn token.

    Returns:
        ``[N, P + gen_length]`` int64.

    Raises:
        ValueError: lengths or steps that do not divide, an unknown ``remasking``.
    """
    if gen_length < 1 or block_length < 1 or gen_length % block_length:
        raise ValueError(f"gen_length={gen_length} is no multiple of block_length={block_length}")
    blocks = gen_length // block_length
    if steps < 1 or steps % blocks:
        raise ValueError(f"steps={steps} is no multiple of the {blocks} blocks")
    if remasking not in ("low_confidence", "random"):
        raise ValueError(f"remasking={remasking!r}: expected 'low_confidence' or 'random'")
    rows, start = prompt.shape
    x = torch.nn.functional.pad(prompt, (0, gen_length), value=mask_id)
    keep = None
    if attention_mask is not None:
        keep = torch.nn.functional.pad(attention_mask, (0, gen_length), value=1)
    known = x != mask_id  # what guidance hides
    per_block = steps // blocks
    for block in range(blocks):
        end = start + (block + 1) * block_length
        left = (x[:, end - block_length : end] == mask_id).sum(-1)
        for step in range(per_block):
            masked = x == mask_id
            logits = _guided_logits(model, x, keep, known, cfg_scale, mask_id)
            if logits_eos_inf:
                logits[..., eos_ids[0]] = -torch.inf
            drawn = _perturbed(logits, temperature).argmax(-1)
            if remasking == "low_confidence":
                p = logits.double().softmax(-1)
                confidence = p.gather(-1, drawn[..., None]).squeeze(-1)
            else:
                confidence = torch.rand(drawn.shape, device=x.device, dtype=torch.float32).double()
            if confidence_eos_eot_inf:  # below every other, above what may not be revealed
                is_end = torch.isin(drawn, drawn.new_tensor(eos_ids))
                confidence = torch.where(is_end, confidence - 2, confidence)
            confidence[:, end:] = -torch.inf
            confidence = confidence.masked_fill(~masked, -torch.inf)
            count = left // per_block + (step < left % per_block)
            for r in range(rows):
                chosen = confidence[r].topk(int(count[r])).indices
                x[r, chosen] = drawn[r, chosen]
    return x


def _guided_logits(
    model: Any, x: Tensor, keep: Tensor | None, known: Tensor, cfg_scale: float, mask_id: int
) -> Tensor:
    if cfg_scale <= 0:
        return model(x, attention_mask=keep).logits
    both = torch.cat([x, x.masked_fill(known, mask_id)])
    mask = None if keep is None else keep.repeat(2, 1)
    guided, free = model(both, attention_mask=mask).logits.chunk(2)
    return free + (cfg_scale + 1) * (guided - free)


def _perturbed(logits: Tensor, temperature: float) -> Tensor:
    """Gumbel-max in its multiplicative form, float64: low precision costs diversity there."""
    if temperature == 0:
        return logits
    z = logits.double()
    noise = torch.rand_like(z)
    return z.exp() / (-noise.log()) ** temperature
