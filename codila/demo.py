"""Three prompts, each decoded by the plain DLM and by CoDiLA at the same tokens per step.

    python -m codila.demo

On a terminal the denoising is shown as it happens. What was written is executed on a few examples
(in child processes that guard against accidents) and compared with what it should return.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from codila.streaming import Decoded, decode

if TYPE_CHECKING:
    from codila.models.loading import Pair

BLOCK_SIZE = 4

METHODS: dict[str, dict[str, Any]] = {
    "plain DLM": {"schedule": "entropy", "tokens_per_step": BLOCK_SIZE, "block_size": BLOCK_SIZE},
    "CoDiLA": {"schedule": "static", "block_size": BLOCK_SIZE},
}
"""Generation options of the two decoders that are compared."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A prompt, and what the function that completes it returns for some arguments.

    ``held_out`` tells whether the composition is of the test split, so that no problem of this
    meaning was trained on.
    """

    prompt: str
    held_out: bool
    examples: tuple[tuple[str, Any], ...]
    entry_point: str = "f"


TASKS = (
    Task(
        'def f(nums):\n    """Return the sum of the squares of the even numbers in nums."""\n',
        False,
        (("[1, 2, 3, 4]", 20), ("[]", 0), ("[-2, 5, 7, 10]", 104)),
    ),
    Task(
        'def f(sentence):\n    """Return a sorted list of the first letters of the words of the '
        'string sentence shorter than 6 characters."""\n',
        True,
        (
            ("'the quick brown fox'", ["b", "f", "q", "t"]),
            ("''", []),
            ("'gather some rosebuds'", ["s"]),
        ),
    ),
    Task(
        'def f(n):\n    """Return the sorted list of the squares of the digits of n."""\n',
        True,
        (("3142", [1, 4, 9, 16]), ("0", [0]), ("905", [0, 25, 81])),
    ),
)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one example: the value or the error as text, and whether it is right."""

    passed: bool
    shown: str


def run_examples(task: Task, text: str) -> list[Outcome]:
    """Execute ``task.prompt + text`` on every example, each in a child process."""
    from codila.evaluation import run_programs

    programs = [
        f"{task.prompt}{text}\n\ngot = {task.entry_point}({arguments})\n"
        f"assert got == {expected!r}, repr(got)\n"
        for arguments, expected in task.examples
    ]
    results = run_programs(programs, timeout=10.0)
    outcomes = []
    for result, (_, expected) in zip(results, task.examples, strict=True):
        wrong = re.match(r"AssertionError: (.*) \(line \d+: assert got ==", result.detail)
        if result.passed:
            shown = repr(expected)
        elif result.status == "syntax":
            shown = "syntax error"
        elif wrong:
            shown = wrong[1]
        else:
            shown = result.detail.partition(" (line")[0] or result.status
        outcomes.append(Outcome(result.passed, shown))
    return outcomes


def show_values(console: Console, task: Task, outcomes: dict[str, list[Outcome]]) -> None:
    """The table of arguments, expected values, and what each method's program returned."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for heading in ("call", "expected", *outcomes):
        table.add_column(heading)
    for i, (arguments, expected) in enumerate(task.examples):
        cells = [Text(f"{task.entry_point}({arguments})"), Text(repr(expected))]
        for of_method in outcomes.values():
            outcome = of_method[i]
            cells.append(Text(outcome.shown, style="green" if outcome.passed else "red"))
        table.add_row(*cells)
    console.print(table)
    console.print()


def show_summary(console: Console, rows: list[tuple[Task, str, Decoded, list[Outcome]]]) -> None:
    """One line per prompt and method: tokens, steps, time, and the examples that came out right."""
    table = Table(title="Summary", title_justify="left", box=None, pad_edge=False)
    for heading in ("prompt", "decoder", "tokens", "steps", "time", "examples right"):
        justify = "right" if heading in ("tokens", "steps", "time") else "left"
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for task, method, result, outcomes in rows:
        split = "held out" if task.held_out else "trained on"
        right = sum(outcome.passed for outcome in outcomes)
        verdict = Text(f"{right} of {len(outcomes)}", "green" if right == len(outcomes) else "red")
        table.add_row(
            f"{TASKS.index(task) + 1} ({split})" if task in TASKS else split,
            method,
            str(result.tokens),
            str(result.num_function_evaluations),
            f"{result.seconds:.2f} s",
            verdict,
        )
    console.print(table)


NEXT = r'''
Three prompts prove nothing; these measure it (`source .venv/bin/activate` puts them on the path):
  codila evaluate --task toy --n 100             CoDiLA on held-out problems
  codila evaluate --task toy --n 100 --base      the plain DLM at the same parallelism
  python -m benchmarks.pareto --pair tiny --quick
Your own prompt:
  codila generate 'def f(words):\n    """Return the list of the words longer than 3 characters."""'
'''


def run(pair: Pair, console: Console, *, stream: bool) -> None:
    """Decode, execute and tabulate every task with ``pair``."""
    plain = dataclasses.replace(pair, ar=None)
    pairs = {"plain DLM": plain, "CoDiLA": pair}
    rows = []
    for name, options in METHODS.items():  # what is done once per process is not timed
        decode(pairs[name], TASKS[0].prompt, **options | {"max_new_tokens": BLOCK_SIZE})
    for number, task in enumerate(TASKS, start=1):
        outcomes = {}
        for name, options in METHODS.items():
            console.rule(f"prompt {number}, {name}, {BLOCK_SIZE} tokens per step", align="left")
            result = decode(
                pairs[name], task.prompt, console=console if stream else None, **options
            )
            if not stream:
                console.print(Text(result.prompt + result.text), soft_wrap=True)
            console.print(Text(result.figures, style="dim"))
            outcomes[name] = run_examples(task, result.text)
            rows.append((task, name, result, outcomes[name]))
        console.print()
        show_values(console, task, outcomes)
    show_summary(console, rows)
    console.print(Text(NEXT), soft_wrap=True)


def main() -> int:
    """Run the demo with the bundled pair; 2 if it cannot be loaded."""
    console = Console(highlight=False)
    try:
        import transformers

        import codila

        transformers.logging.set_verbosity_error()
        with console.status("loading the bundled pair"):
            pair = codila.load("tiny")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    run(pair, console, stream=sys.stdout.isatty())
    return 0


if __name__ == "__main__":
    sys.exit(main())
