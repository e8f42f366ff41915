"""``model.generate(..., custom_generate=codila.generate)``: what is handed over, and what is not.

The bundled pair is the model: a real tokenizer and a generation that takes a second.
"""

from __future__ import annotations

import inspect

import pytest
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
    StopStringCriteria,
    SuppressTokensLogitsProcessor,
    TextDiffusionStreamer,
    TextStreamer,
    pipeline,
)

import codila
from codila.demo import TASKS
from codila.integrations import custom_generate

SHORT = {"max_new_tokens": 16, "seed": 3}


@pytest.fixture(scope="module")
def pair():
    return codila.load("tiny")


@pytest.fixture(scope="module")
def ids(pair):
    return pair.tokenizer(TASKS[0].prompt, return_tensors="pt").input_ids


@pytest.fixture
def call(pair, ids):
    def run(**options):
        options = {"ar_model": pair.ar, "custom_generate": codila.generate} | SHORT | options
        options = {name: value for name, value in options.items() if value is not None}
        return pair.dlm.generate(options.pop("ids", ids), **options)

    return run


def own(pair, ids, **options):
    return codila.generate(pair.dlm, ids, ar_model=pair.ar, **(SHORT | options))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"schedule": "dynamic", "entropy_threshold": 0.5, "block_size": 2, "scope_blocks": 3},
        {"temperature": 1.0, "top_p": 1.0, "top_k": 50},  # given by name: these are not fill-ins
        {"temperature": 0.0},
        {"schedule": "entropy", "tokens_per_step": 2, "suppress_tokens": [17, 220]},
        {"eos_token_id": [307, 5], "min_new_tokens": 9},
        {"num_return_sequences": 2, "temperature": 1.0},
        {"conditioning": "top-3", "eos_fill": False, "output_history": True},
    ],
)
def test_options_arrive(call, pair, ids, options):
    theirs, ours = call(**options), own(pair, ids, **options)
    assert torch.equal(theirs.sequences, ours.sequences)
    assert torch.equal(theirs.num_function_evaluations, ours.num_function_evaluations)
    assert (theirs.history is None) == (ours.history is None)


def test_every_option_is_named_or_read_from_transformers_config():
    named = inspect.signature(codila.generate).parameters
    left = set(custom_generate.LEFT_TO_TRANSFORMERS)
    fields = set(codila.GenerationConfig.__dataclass_fields__)
    assert fields - set(named) == left
    for name in left:
        assert hasattr(GenerationConfig(), name)


def test_a_transformers_config_is_read_and_its_fillers_are_not(call, pair, ids):
    asked = GenerationConfig(max_new_tokens=12, do_sample=True, temperature=0.7, top_p=0.9)
    out = call(generation_config=asked, max_new_tokens=None)
    ours = own(pair, ids, max_new_tokens=12, temperature=0.7, top_p=0.9)
    assert torch.equal(out.sequences, ours.sequences)
    filled = GenerationConfig(max_new_tokens=12, do_sample=True)
    out = call(generation_config=filled, max_new_tokens=None)
    assert torch.equal(out.sequences, own(pair, ids, max_new_tokens=12).sequences)


def test_a_length_with_the_prompt_is_a_length(call, pair, ids):
    out = call(max_new_tokens=None, max_length=ids.shape[1] + 9)
    assert torch.equal(out.sequences, own(pair, ids, max_new_tokens=9).sequences)


def test_a_named_argument_beats_the_config(call, pair, ids):
    asked = GenerationConfig(max_new_tokens=12, do_sample=True, temperature=0.7)
    out = call(generation_config=asked, max_new_tokens=None, temperature=0.2)
    assert torch.equal(out.sequences, own(pair, ids, max_new_tokens=12, temperature=0.2).sequences)


def test_generation_config_files_are_read(call, pair, ids, tmp_path):
    GenerationConfig(max_new_tokens=12, do_sample=True, temperature=0.7).save_pretrained(tmp_path)
    loaded = GenerationConfig.from_pretrained(tmp_path)
    out = call(generation_config=loaded, max_new_tokens=None)
    ours = own(pair, ids, max_new_tokens=12, temperature=0.7)
    assert torch.equal(out.sequences, ours.sequences)


def test_padded_prompts_keep_their_mask(call, pair):
    prompts = [task.prompt for task in TASKS[:2]]
    batch = pair.tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
    out = call(ids=batch.input_ids, attention_mask=batch.attention_mask, temperature=0.0)
    for row, prompt in enumerate(prompts):
        alone = pair.tokenizer(prompt, return_tensors="pt").input_ids
        one = own(pair, alone, temperature=0.0)
        assert out.sequences[row, -16:].tolist() == one.sequences[0, -16:].tolist()


def test_stop_strings_and_processors(call, pair, ids):
    plain = own(pair, ids).sequences[0, ids.shape[1] :].tolist()
    word = pair.tokenizer.decode([plain[6]])
    # transformers keeps the tokenizer that stop_strings= would need from a callable
    criteria = StoppingCriteriaList([StopStringCriteria(pair.tokenizer, [word])])
    out = call(stopping_criteria=criteria)
    assert torch.equal(out.sequences, own(pair, ids, stopping_criteria=criteria).sequences)
    assert out.sequences[0, -1] == pair.dlm.eos_token_id
    never = LogitsProcessorList([SuppressTokensLogitsProcessor([plain[1]])])
    out = call(logits_processor=never, schedule="entropy")
    assert plain[1] not in out.sequences[0, ids.shape[1] :].tolist()


def test_streamers_go_by_a_name_of_their_own(call, pair, capsys):
    call(diffusion_streamer=TextStreamer(pair.tokenizer, skip_prompt=True))
    assert capsys.readouterr().out.strip().startswith("return")
    call(diffusion_streamer=TextDiffusionStreamer(pair.tokenizer, skip_prompt=True))
    assert "return" in capsys.readouterr().out


def test_a_misspelt_option_is_an_error(call):
    with pytest.raises(ValueError, match="blok_size"):
        call(blok_size=4)


def test_pipelines_and_chats(pair):
    """A pipeline samples at temperature 0.7 unless told otherwise; a chat brings its template."""
    run = pipeline("text-generation", model=pair.dlm, tokenizer=pair.tokenizer)
    options = dict(custom_generate=codila.generate, ar_model=pair.ar, temperature=0.1, **SHORT)
    text = run(TASKS[0].prompt, **options)[0]["generated_text"]
    assert text.startswith(TASKS[0].prompt) and len(text) > len(TASKS[0].prompt)
    tokenizer = pair.tokenizer
    tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    chat = [{"role": "user", "content": TASKS[0].prompt}]
    encoded = tokenizer.apply_chat_template(chat, return_tensors="pt", return_dict=True)
    out = pair.dlm.generate(**encoded, **options)
    assert tokenizer.decode(out.sequences[0], skip_special_tokens=True) == text
