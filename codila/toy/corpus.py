"""The toy task as a training corpus."""

from __future__ import annotations

import itertools

from tokenizers import Tokenizer

from codila.toy.problem import pairs
from codila.toy.tokenizer import END
from codila.training.corpus import Corpus, Ragged

_BATCH = 10_000


def encode_corpus(
    tokenizer: Tokenizer,
    n: int,
    seed: int,
    split: str = "train",
    max_prompt: int = 64,
    max_body: int = 64,
    end: int | None = None,
) -> Corpus:
    """Draw ``n`` pairs and encode them; those over ``max_prompt`` or ``max_body`` are dropped.

    ``end`` closes every body; default the toy tokenizers' end token, which straight from
    ``train_tokenizer`` is the first id behind the base.
    """
    if end is None:
        end = tokenizer.token_to_id(END)
        end = tokenizer.get_vocab_size() if end is None else end
    prompts: list[Ragged] = []
    bodies: list[Ragged] = []
    drawn = pairs(split, n, seed)
    while batch := list(itertools.islice(drawn, _BATCH)):
        heads = tokenizer.encode_batch_fast([prompt for prompt, _ in batch])
        tails = tokenizer.encode_batch_fast([solution for _, solution in batch])
        kept = [
            (head.ids, [*tail.ids, end])
            for head, tail in zip(heads, tails, strict=True)
            if len(head) <= max_prompt and len(tail) < max_body
        ]
        prompts.append(Ragged.of(head for head, _ in kept))
        bodies.append(Ragged.of(tail for _, tail in kept))
    packed = Ragged.concatenate(prompts)
    return Corpus(packed, Ragged.concatenate(bodies), n - len(packed))
