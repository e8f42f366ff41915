"""Every feature on every family's exact layout; docs/families.md holds what passes here.

``python tests/runtime/test_families.py`` runs the cells and writes the table.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

import tiny_checkpoints  # noqa: E402
from foreign_modules import RemoteDream, RemoteLLaDA  # noqa: E402
from test_followers import Recorded  # noqa: E402

import codila  # noqa: E402
from codila.integrations import llada  # noqa: E402
from codila.models.ar import load_ar  # noqa: E402
from codila.models.loading import load_dlm  # noqa: E402

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "families.md"
FAMILIES = list(tiny_checkpoints.FAMILIES)


@pytest.fixture(scope="session")
def loaded(tmp_path_factory) -> Callable[[str], tuple[Any, Any]]:
    """(DLM, AR model) of a family, read from its folder once."""

    @functools.cache
    def load(family: str) -> tuple[Any, Any]:
        folder = tmp_path_factory.mktemp(family)
        dlm = tiny_checkpoints.write_dlm(folder / "dlm", family)
        ar = tiny_checkpoints.write_ar(folder / "ar", dlm)
        return load_dlm(dlm, dtype=torch.float64), load_ar(ar, dtype=torch.float64)

    return load


IDS = torch.tensor([[11, 12, 13, 14], [21, 22, 23, 24]])
SHORT: dict[str, Any] = {"max_new_tokens": 8, "seed": 3}


def done(dlm: Any, sequences: torch.Tensor) -> torch.Tensor:
    assert not (sequences == dlm.mask_token_id).any()
    return sequences


def coherent(dlm, ar):
    for schedule in ("static", "dynamic"):
        out = codila.generate(dlm, IDS, ar_model=ar, schedule=schedule, **SHORT)
        done(dlm, out.sequences)
    assert out.num_function_evaluations.max() <= 8


def baselines(dlm, ar):
    for schedule in ("entropy", "confidence", "margin", "threshold"):
        done(dlm, codila.generate(dlm, IDS, schedule=schedule, **SHORT).sequences)


def padded_batches(dlm, ar):
    ids, keep = IDS.clone(), torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    batch = codila.generate(dlm, ids, attention_mask=keep, ar_model=ar, **SHORT)
    alone = codila.generate(dlm, ids[:1, 2:], ar_model=ar, **SHORT)
    assert batch.sequences[0, 2:].tolist() == alone.sequences[0].tolist()


def infilling(dlm, ar):
    m = dlm.mask_token_id
    ids = torch.tensor([[11, m, m, 14, m, 16], [m, 22, 23, m, m, 26]])
    out = codila.generate(dlm, ids, ar_model=ar, max_new_tokens=0, seed=0)
    done(dlm, out.sequences)
    assert torch.equal(out.sequences[ids != m], ids[ids != m])


def unknown_length(dlm, ar):
    m, expand = dlm.mask_token_id, dlm.config.expand_token_id

    def first_expands(ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == 4:
            logits[:, expand] = 50.0
        return logits

    ids = torch.tensor([[11, m, m, 14]])
    options = dict(max_new_tokens=0, schedule="entropy", logits_processor=first_expands, seed=0)
    out = codila.generate(dlm, ids, ar_model=ar, expand_budget=2, **options)
    assert out.sequences.shape[1] > 4 and expand not in done(dlm, out.sequences)
    assert out.sequences[0, [0, -1]].tolist() == [11, 14]


def several_returns(dlm, ar):
    out = codila.generate(
        dlm, IDS[:1], ar_model=ar, num_return_sequences=3, temperature=1.0, top_p=1.0, **SHORT
    )
    assert len({tuple(row) for row in out.sequences.tolist()}) == 3


def streaming(dlm, ar):
    streamer = Recorded()
    out = codila.generate(dlm, IDS[:1], ar_model=ar, streamer=streamer, eos_fill=False, **SHORT)
    assert [t for piece in streamer.seen for t in piece] == out.sequences[0].tolist()


def through_transformers(dlm, ar):
    ours = codila.generate(dlm, IDS, ar_model=ar, **SHORT)
    theirs = dlm.generate(IDS, custom_generate=codila.generate, ar_model=ar, **SHORT)
    assert torch.equal(theirs.sequences, ours.sequences)


def drop_in(dlm, ar):
    model = codila.attach(dlm, ar)
    try:
        done(dlm, model.diffusion_generate(IDS, max_new_tokens=8))
        for compat in ("dream", None):
            out = model.diffusion_generate(
                IDS, max_new_tokens=8, alg="entropy", steps=8, compat=compat
            )
            done(dlm, out)
    finally:
        codila.detach(model)


def foreign_module(dlm, ar):
    foreign = (RemoteDream if dlm.shift else RemoteLLaDA)(dlm)
    options = dict(max_new_tokens=8, seed=2)
    got = codila.attach(foreign, ar).diffusion_generate(IDS, **options)
    want = codila.generate(dlm, IDS, ar_model=ar, **options)
    assert torch.equal(got, want.sequences)


def published_generate(dlm, ar):
    out = llada.generate(dlm, IDS, steps=4, gen_length=8, block_length=4)
    assert out.shape == (2, 12)
    done(dlm, out)


def half_precision(dlm, ar):
    dlm, ar = copy.deepcopy(dlm).bfloat16(), copy.deepcopy(ar).bfloat16()
    done(dlm, codila.generate(dlm, IDS, ar_model=ar, **SHORT).sequences)


FEATURES: dict[str, Callable[[Any, Any], None]] = {
    "CoDiLA, static and dynamic": coherent,
    "baselines without an AR model": baselines,
    "padded batches equal single runs": padded_batches,
    "infilling in place": infilling,
    "holes of unknown length (expand, delete)": unknown_length,
    "several continuations": several_returns,
    "streamers": streaming,
    "`model.generate` of transformers": through_transformers,
    "`attach`: `diffusion_generate`": drop_in,
    "`attach` on a module with logits only": foreign_module,
    "LLaDA's own `generate`": published_generate,
    "bfloat16": half_precision,
}

NOT_OF_THE_FAMILY = {
    **{("holes of unknown length (expand, delete)", f): "no expand token"
       for f in FAMILIES if f != "DreamOn"},
    **{("LLaDA's own `generate`", f): "other semantics"
       for f in FAMILIES if not f.startswith("LLaDA")},
}  # fmt: skip

CELLS = [(f, n) for n in FEATURES for f in FAMILIES if (n, f) not in NOT_OF_THE_FAMILY]


@pytest.mark.parametrize(("family", "feature"), CELLS)
def test_cell(loaded, family, feature):
    FEATURES[feature](*loaded(family))


def table(passed: set[tuple[str, str]]) -> str:
    lines = ["| feature | " + " | ".join(FAMILIES) + " |", "| --- |" + " :---: |" * len(FAMILIES)]
    for feature in FEATURES:
        cells = ["yes" if (f, feature) in passed else
                 NOT_OF_THE_FAMILY.get((feature, f), "fails") for f in FAMILIES]  # fmt: skip
        lines.append(f"| {feature} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_table_of_the_docs_is_what_passes():
    text = DOCS.read_text(encoding="utf-8")
    assert table(set(CELLS)) in text, f"run python {Path(__file__).relative_to(ROOT)}"


def test_the_readmes_lines_decode_a_folder_of_dream_coders_layout(tmp_path):
    dlm = tiny_checkpoints.write_dlm(tmp_path / "dlm", "Dream-Coder")
    tiny_checkpoints.write_dream_tokenizer(dlm)
    ar = tiny_checkpoints.write_ar(tmp_path / "ar", dlm, tokenizer=True)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n((?:(?!```).)*Dream-Coder.*?)```", readme, re.DOTALL).group(1)
    assert len(code.strip().splitlines()) <= 12
    for published, here in {
        '"Dream-org/Dream-Coder-v0-Instruct-7B"': repr(str(dlm)), '"runs/ar"': repr(str(ar)),
        '"cuda"': '"cpu"', '"bfloat16"': '"float32"', "max_new_tokens=768": "max_new_tokens=16",
    }.items():  # fmt: skip
        assert published in code
        code = code.replace(published, here)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    out = names["out"]
    assert out.sequences.shape[1] == names["prompt"].input_ids.shape[1] + 16
    assert not (out.sequences == tiny_checkpoints.MASK).any()


class _Outcomes:
    def __init__(self) -> None:
        self.passed: set[tuple[str, str]] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = re.search(r"test_cell\[(.*)\]$", report.nodeid)
        if report.when == "call" and report.passed and name:
            family = next(f for f in FAMILIES if name.group(1).startswith(f + "-"))
            self.passed.add((family, name.group(1)[len(family) + 1 :]))


def main() -> None:
    outcomes = _Outcomes()
    with contextlib.redirect_stdout(sys.stderr):
        pytest.main([__file__, "-q", "-k", "test_cell"], plugins=[outcomes])
    text = DOCS.read_text(encoding="utf-8")
    written = re.sub(
        r"\| feature \|.*?(?=\n\n)", lambda _: table(outcomes.passed), text, flags=re.S
    )
    DOCS.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
