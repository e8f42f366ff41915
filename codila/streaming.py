"""Watch a generation: the canvas redrawn in place after every step, and the figures at its end."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

if TYPE_CHECKING:
    from torch import Tensor

    from codila.models.loading import Pair

STYLES = {"prompt": "dim", "known": "bold", "draft": "dim italic", "unknown": "dim", "end": "dim"}


@dataclasses.dataclass(frozen=True)
class Decoded:
    """One prompt and what was written behind it.

    Where the prompt has masks, ``prompt`` is what stands before the first of them, and ``text`` the
    rest. ``tokens`` counts what was written up to and with the end token; ``seconds`` is the time
    of the decoding loop.
    """

    prompt: str
    text: str
    tokens: int
    num_function_evaluations: int
    tokens_per_forward: float
    seconds: float

    @property
    def figures(self) -> str:
        """Tokens, steps, their ratio and the time, on one line."""
        return (
            f"{self.tokens} tokens, {self.num_function_evaluations} steps (NFE), "
            f"{self.tokens_per_forward:.2f} tokens per forward, {self.seconds:.2f} s"
        )


def decode(
    pair: Pair, prompt: str, *, console: Console | None = None, seed: int = 0, **options: Any
) -> Decoded:
    """Continue ``prompt`` with ``pair``; show every step on ``console`` if there is one.

    ``options`` are fields of :class:`codila.GenerationConfig`.

    Raises:
        ValueError: an empty prompt, or whatever :func:`codila.generate` refuses.
    """
    if not prompt:
        raise ValueError("the prompt is empty: give the model something to continue")
    ids = pair.tokenizer(prompt, return_tensors="pt").input_ids.to(pair.dlm.device)
    live = None if console is None else LiveStreamer(pair.tokenizer, console)
    started = time.perf_counter()
    try:
        out = pair.generate(ids, seed=seed, diffusion_streamer=live, **options)
        tokens = out.sequences[0].tolist()
    finally:
        if live is not None:
            live.close()
    seconds = time.perf_counter() - started
    canvas = len(tokens) - out.step_of.shape[1]
    front, written = tokens[:canvas], tokens[canvas:]
    if canvas < ids.shape[1]:
        prompt = pair.tokenizer.decode(front, skip_special_tokens=True)
    ends = [i for i, token in enumerate(written) if token in pair.dlm.eos_token_ids]
    end = ends[0] if ends else len(written)
    forwards = int(out.num_function_evaluations[0])
    return Decoded(
        prompt=prompt,
        text=pair.tokenizer.decode(written[:end], skip_special_tokens=True),
        tokens=round(float(out.tokens_per_forward[0]) * forwards),
        num_function_evaluations=forwards,
        tokens_per_forward=float(out.tokens_per_forward[0]),
        seconds=seconds,
    )


class LiveStreamer:
    """Draws the canvas in place on a terminal; a ``diffusion_streamer`` of :func:`codila.generate`.

    The prompt is dim, known tokens are bold, drafts are dim and italic, and a light block stands
    for a position of which nothing is known yet. Behind a known end token nothing is drawn.
    """

    def __init__(self, tokenizer: Any, console: Console) -> None:
        self.tokenizer, self.console = tokenizer, console
        self._prompt: Text | None = None
        self._live = Live(console=console, auto_refresh=False, transient=True)

    def put(self, tokens: Tensor) -> None:
        """First the prompt ``[1, P]``, at the end what was written ``[n]``."""
        if self._prompt is None:
            self._prompt = Text().append(self._decode(tokens[0].tolist()), STYLES["prompt"])
            self._live.start()
            return
        self.close()
        known = [False] * tokens.shape[0]
        self.console.print(self.render(tokens.tolist(), known), soft_wrap=True)

    def put_draft(self, tokens: Tensor, *, masked: Tensor) -> None:
        """The canvas ``[n]`` with drafts at the ``masked`` positions ``[n]``."""
        self._live.update(self.render(tokens.tolist(), masked.tolist()), refresh=True)

    def end(self) -> None:
        """Nothing is left to draw."""
        self.close()

    def close(self) -> None:
        """Leave the live display and take it off the screen; safe to call twice."""
        self._live.stop()

    def render(self, tokens: list[int], masked: list[bool]) -> Text:
        """The prompt and the canvas, each run of equal kind decoded as a whole and styled."""
        eos = self.tokenizer.eos_token_id
        drawn = self._prompt.copy() if self._prompt is not None else Text()
        runs: list[tuple[str, list[int]]] = []
        for token, hidden in zip(tokens, masked, strict=True):
            if not hidden and token == eos:
                break
            kind = "known"
            if hidden:
                unknown = token == self.tokenizer.mask_token_id
                kind = "unknown" if unknown else "end" if token == eos else "draft"
            if not runs or runs[-1][0] != kind:
                runs.append((kind, []))
            runs[-1][1].append(token)
        block, dot = ("░", "·") if self.console.encoding.startswith("utf") else ("#", ".")
        for kind, run in runs:
            sign = {"unknown": block, "end": dot}.get(kind)
            drawn.append(self._decode(run) if sign is None else sign * len(run), STYLES[kind])
        return drawn

    def _decode(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
