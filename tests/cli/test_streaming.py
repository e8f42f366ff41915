"""The live display, and the demo."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

import codila
from codila import demo
from codila.streaming import LiveStreamer, decode

PROMPT = "def f(n):\n"


@pytest.fixture(scope="module")
def pair(folders):
    return codila.load(dlm=folders[0], ar=folders[1])


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=80, height=40)


def styled(text) -> list[tuple[str, str]]:
    return [(text.plain[span.start : span.end], span.style) for span in text.spans]


def test_every_kind_of_position_is_drawn(pair):
    tokenizer = pair.tokenizer
    mask, eos = tokenizer.mask_token_id, tokenizer.eos_token_id
    known = tokenizer("return n", add_special_tokens=False).input_ids
    tokens = known + known + [mask, mask, eos]
    masked = [False] * len(known) + [True] * (len(known) + 3)
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="utf-8"))
    drawn = LiveStreamer(tokenizer, console).render(tokens, masked)
    assert styled(drawn) == [
        ("return n", "bold"),
        ("return n", "dim italic"),
        ("░░", "dim"),
        ("·", "dim"),
    ]


def test_nothing_is_drawn_behind_a_known_end(pair):
    tokenizer = pair.tokenizer
    known = tokenizer("pass", add_special_tokens=False).input_ids
    tokens = [*known, tokenizer.eos_token_id, *known]
    drawn = LiveStreamer(tokenizer, terminal()).render(tokens, [False] * len(tokens))
    assert drawn.plain == "pass"


def test_signs_without_unicode(pair):
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    drawn = LiveStreamer(pair.tokenizer, console).render([pair.tokenizer.mask_token_id], [True])
    assert drawn.plain == "#"


def test_streaming_ends_with_the_text_and_changes_nothing(pair):
    console = terminal()
    options = {"max_new_tokens": 12, "seed": 1, "scope_blocks": 1}
    silent = decode(pair, PROMPT, **options)
    shown = decode(pair, PROMPT, console=console, **options)
    assert (shown.text, shown.tokens) == (silent.text, silent.tokens)
    output = console.file.getvalue()
    assert "░" in output  # of blocks out of scope nothing is known
    assert "\x1b[2mdef f(n):" in output  # the prompt is dim
    assert "\x1b[1m" in output and "\x1b[1;2m" not in output  # what is known is firm
    assert output.endswith("\n") and "\x1b[?25h" in output  # the cursor is back


def test_an_error_leaves_the_display(pair):
    console = terminal()
    with pytest.raises(ValueError, match="exceed"):
        decode(pair, PROMPT, console=console, max_new_tokens=500)
    with console.status("another display can start"):
        pass


def test_empty_prompt(pair):
    with pytest.raises(ValueError, match="empty"):
        decode(pair, "")


@pytest.mark.parametrize("task", demo.TASKS)
def test_demo_examples_are_right(task):
    bodies = (
        "    return sum(x * x for x in nums if x % 2 == 0)\n",
        "    return sorted(w[0] for w in sentence.split() if len(w) < 6)\n",
        "    return sorted(int(c) ** 2 for c in str(n))\n",
    )
    outcomes = demo.run_examples(task, bodies[demo.TASKS.index(task)])
    assert all(outcome.passed for outcome in outcomes)
    assert [o.shown for o in outcomes] == [repr(expected) for _, expected in task.examples]


@pytest.mark.parametrize(
    ("body", "shown"),
    [
        ("    return -1\n", "-1"),
        ("    return (\n", "syntax error"),
        ("    return nums[99]\n", "IndexError: list index out of range"),
        ("    return total\n", "NameError: name 'total' is not defined"),
    ],
)
def test_demo_shows_what_came_out(body, shown):
    outcomes = demo.run_examples(demo.TASKS[0], body)
    assert not any(outcome.passed for outcome in outcomes)
    assert {outcome.shown for outcome in outcomes} == {shown}


def test_held_out_is_what_the_split_says():
    from codila.toy import split_of

    keys = ("list|even|square|sum", "split|shorter:6|initial|sorted", "digits|every|square|sorted")
    for task, key in zip(demo.TASKS, keys, strict=True):
        assert task.held_out == (split_of(key) == "test")


@pytest.mark.parametrize("stream", [False, True])
def test_demo_runs(folders, stream):
    roomy = codila.load(dlm=folders[0], ar=folders[1])
    console = terminal() if stream else Console(file=io.StringIO(), width=100)
    demo.run(roomy, console, stream=stream)
    output = console.file.getvalue()
    assert output.count("plain DLM") >= 7
    assert "held out" in output
    assert "codila evaluate" in output
