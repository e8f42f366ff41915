"""The command ``codila``: generate, evaluate, train.

torch and transformers are imported inside the commands, so that ``codila --help`` is quick.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import codila
from codila.cli_inputs import (
    DTYPES,
    generation_config,
    load_pair,
    read_config,
    read_prompt,
    recipe_changes,
    recipe_folder,
    wrong_types_are_values,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Locally coherent parallel decoding for diffusion language models.",
)
train = typer.Typer(no_args_is_help=True, help="Train a DLM, or AR models on a trained DLM.")
app.add_typer(train, name="train")

PairName = Annotated[str | None, typer.Option("--pair", help="A bundled pair.  [default: tiny]")]
DLMFolder = Annotated[str | None, typer.Option("--dlm", help="Folder of a DLM.")]
ARFolder = Annotated[
    str | None, typer.Option("--ar", help="Folder of an AR model (of --pair: ar, ar-top3, ar-top1)")
]
Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, ...")]
DType = Annotated[
    str | None, typer.Option(help=f"{', '.join(DTYPES)}.", show_default="float32 on cpu")
]
Base = Annotated[
    bool,
    typer.Option(
        "--base",
        help="The plain DLM, at equal parallelism: schedule entropy, as many tokens per step as "
        "a block has.",
    ),
]
BlockSize = Annotated[int | None, typer.Option(help="B, tokens of a block.", show_default="4")]
ScheduleName = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        help="static or dynamic; entropy, confidence, margin or threshold without the AR model.",
        show_default="static",
    ),
]
Tau = Annotated[
    float | None,
    typer.Option(
        "--tau", "--entropy-threshold", help="Nats, of schedule dynamic.", show_default="0.3"
    ),
]
ConfidenceThreshold = Annotated[
    float | None, typer.Option(help="Probability, of schedule threshold.", show_default="0.9")
]
BlocksPerStep = Annotated[int | None, typer.Option(help="m, of schedule static.", show_default="1")]
Scope = Annotated[
    int | None,
    typer.Option(
        "--scope",
        "--scope-blocks",
        help="Candidate blocks from the first unfinished one on; 0 is all.",
        show_default="10",
    ),
]
MaxNewTokens = Annotated[int | None, typer.Option(help="Canvas length.", show_default="64")]
TokensPerStep = Annotated[
    int | None,
    typer.Option(help="K, of the schedules without the AR model.", show_default="1"),
]
Temperature = Annotated[float | None, typer.Option(help="0 is arg-max.", show_default="0.1")]
TopP = Annotated[float | None, typer.Option(help="Nucleus; 1 is off.", show_default="0.8")]
Conditioning = Annotated[
    str | None,
    typer.Option(
        help="What the AR model is fed: soft or top-K.", show_default="what it was trained on"
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", help="Generation config (JSON); options given here win over it."),
]
Seed = Annotated[
    int, typer.Option(help="Same seed, same text; problem i of a task draws from seed + i.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


@contextlib.contextmanager
def _errors_on_one_line(debug: bool) -> Iterator[None]:
    """What the user can put right is told in one line, with exit code 2."""
    try:
        yield
    except (ValueError, OSError) as error:
        if debug:
            raise
        typer.echo(f"error: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from error


@contextlib.contextmanager
def _status(text: str) -> Iterator[Callable[[str], None]]:
    """A line that says what is going on, where standard error is a terminal; yields its update."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


GENERATION_OPTIONS = (
    "block_size",
    "schedule",
    "entropy_threshold",
    "confidence_threshold",
    "blocks_per_step",
    "scope_blocks",
    "max_new_tokens",
    "tokens_per_step",
    "temperature",
    "top_p",
    "conditioning",
)
"""Parameters of the commands that are fields of GenerationConfig, by the same name."""


def _given(context: typer.Context) -> dict[str, Any]:
    return {name: context.params[name] for name in GENERATION_OPTIONS}


def main() -> None:
    """Entry point of the ``codila`` command."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"codila {codila.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    pass


@app.command()
def generate(
    context: typer.Context,
    prompt: Annotated[
        str | None,
        typer.Argument(
            metavar="[PROMPT|FILE|-]",
            help="A text, in which \\n may stand for a newline; a file; or - for standard input.",
            show_default=False,
        ),
    ] = None,
    pair: PairName = None,
    dlm: DLMFolder = None,
    ar: ARFolder = None,
    device: Device = "cpu",
    dtype: DType = None,
    base: Base = False,
    block_size: BlockSize = None,
    schedule: ScheduleName = None,
    entropy_threshold: Tau = None,
    confidence_threshold: ConfidenceThreshold = None,
    blocks_per_step: BlocksPerStep = None,
    scope_blocks: Scope = None,
    max_new_tokens: MaxNewTokens = None,
    tokens_per_step: TokensPerStep = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    conditioning: Conditioning = None,
    config_file: ConfigFile = None,
    seed: Seed = 0,
    as_json: Json = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", help="Only the final text, on a terminal too.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Continue a prompt, and show the denoising as it happens.

    Options left out keep the pair's own configuration, else the defaults shown. The text goes to
    standard output, the figures to standard error.
    """
    with _errors_on_one_line(debug):
        text = read_prompt(prompt)
        from_file = read_config(config_file)
        with _status("loading the models"):
            models = load_pair(pair, dlm, ar, base, device, dtype)
        if dlm is None and not text.endswith("\n"):
            text += "\n"  # the bundled pair knows prompts that end with their docstring's line
        config = generation_config(models, from_file, _given(context), base)

        from rich.console import Console

        from codila.streaming import decode

        stream = sys.stdout.isatty() and not no_stream and not as_json
        console = Console(highlight=False) if stream else None
        result = decode(models, text, console=console, seed=seed, generation_config=config)
        if as_json:
            figures = dataclasses.asdict(result) | {"seed": seed}
            typer.echo(json.dumps(figures | {"config": config.to_dict()}))
            return
        if not stream:
            typer.echo(result.prompt + result.text, nl=not result.text.endswith("\n"))
        typer.echo(result.figures, err=True)


@app.command()
def evaluate(
    context: typer.Context,
    task: Annotated[str, typer.Option(help="toy: small Python problems with tests.")] = "toy",
    pair: PairName = None,
    dlm: DLMFolder = None,
    ar: ARFolder = None,
    device: Device = "cpu",
    dtype: DType = None,
    n: Annotated[int, typer.Option("-n", "--n", min=1, help="Problems.")] = 100,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "test",
    batch_size: Annotated[int, typer.Option(min=1, help="Problems decoded at a time.")] = 32,
    base: Base = False,
    block_size: BlockSize = None,
    schedule: ScheduleName = None,
    entropy_threshold: Tau = None,
    confidence_threshold: ConfidenceThreshold = None,
    blocks_per_step: BlocksPerStep = None,
    scope_blocks: Scope = None,
    max_new_tokens: MaxNewTokens = None,
    tokens_per_step: TokensPerStep = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    conditioning: Conditioning = None,
    config_file: ConfigFile = None,
    seed: Seed = 0,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Decode the problems of a task, run what was written, and count.

    The programs run in child processes that guard against accidents, not against attackers.
    """
    with _errors_on_one_line(debug):
        if task != "toy":
            raise ValueError(f"task={task!r}: expected 'toy'")
        from_file = read_config(config_file)
        with _status("loading the models"):
            models = load_pair(pair, dlm, ar, base, device, dtype)
        config = generation_config(models, from_file, _given(context), base)

        from codila.evaluation.toy import evaluate_toy

        with _status(f"decoding {n} problems") as update:
            result = evaluate_toy(
                models,
                n=n,
                split=split,
                batch_size=batch_size,
                seed=seed,
                progress=lambda done, of: update(f"decoded {done} of {of} problems"),
                generation_config=config,
            )
        names = ("n", "pass_at_1", "interval", "syntax_error", "nfe", "tokens_per_forward")
        figures = {name: getattr(result, name) for name in (*names, "seconds")}
        if as_json:
            what = {"task": task, "split": split, "seed": seed}
            typer.echo(json.dumps(what | figures | {"config": config.to_dict()}))
            return
        low, high = result.interval
        typer.echo(f"Pass@1              {result.pass_at_1:.1%}  (95 %: {low:.1%} to {high:.1%})")
        typer.echo(f"syntax errors       {result.syntax_error:.1%}")
        typer.echo(f"steps (NFE)         {result.nfe:.1f} per problem")
        typer.echo(f"tokens per forward  {result.tokens_per_forward:.2f}")
        typer.echo(f"problems            {result.n}, decoded in {result.seconds:.1f} s")


Recipe = Annotated[str, typer.Option("--config", help="A recipe's name, or its JSON file.")]
Output = Annotated[
    Path, typer.Option("--output", help="Folder of the run; resumed if it holds one.")
]
Steps = Annotated[int | None, typer.Option(min=1, help="Instead of the recipe's.")]
TrainSeed = Annotated[int | None, typer.Option("--seed", help="Instead of the recipe's.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Another value of the recipe; repeatable."),
]


@train.command("dlm")
def _train_dlm(
    output: Output,
    config: Recipe = "tiny",
    steps: Steps = None,
    seed: TrainSeed = None,
    assignments: Set = None,
    debug: Debug = False,
) -> None:
    """Train a DLM from scratch on the toy problems; the checkpoint is OUTPUT/dlm."""
    with _errors_on_one_line(debug):
        from codila.training.config import load_recipe
        from codila.training.dlm import DLMRecipe, train_dlm
        from codila.training.export import export_dlm

        changes = recipe_changes(assignments, steps=steps, seed=seed)
        with wrong_types_are_values("the recipe"):
            recipe = load_recipe(DLMRecipe, "dlm", config, changes)
        recipe = dataclasses.replace(recipe, tokenizer=recipe_folder("tokenizer", recipe.tokenizer))
        model = train_dlm(recipe, output)
        export_dlm(model, recipe.tokenizer, output / "dlm")
        typer.echo(f"checkpoint: {output / 'dlm'}")


@train.command("ar")
def _train_ar(
    output: Output,
    config: Recipe = "tiny",
    steps: Steps = None,
    seed: TrainSeed = None,
    assignments: Set = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show three examples with their masks and the first loss."),
    ] = False,
    estimate: Annotated[
        bool,
        typer.Option("--estimate", help="Memory and work of a step; reads configurations only."),
    ] = False,
    push: Annotated[
        str | None,
        typer.Option("--push-to-hub", metavar="REPO", help="Upload the model, REPO-NAME if many."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Train AR models on a DLM's soft tokens; the checkpoints are OUTPUT/ar, or one per variant.

    Many processes are started by torchrun: `torchrun --nproc-per-node 8 -m codila.cli train ar`.
    """
    with _errors_on_one_line(debug):
        from codila.models.ar import upload_ar
        from codila.training import dry_run as dry_runs
        from codila.training.ar import ARTraining, train_ar
        from codila.training.ar_recipe import ARRecipe
        from codila.training.config import load_recipe
        from codila.training.distributed import World
        from codila.training.export import export_ars

        changes = recipe_changes(assignments, steps=steps, seed=seed)
        with wrong_types_are_values("the recipe"):
            recipe = load_recipe(ARRecipe, "ar", config, changes)
        folders: dict[str, Any] = {
            key: recipe_folder(key, value)
            for key in ("dlm", "tokenizer")
            if (value := getattr(recipe, key)) is not None
        }
        recipe = dataclasses.replace(recipe, **folders)
        if estimate:
            typer.echo(dry_runs.sizes(recipe, int(os.environ.get("WORLD_SIZE", 1))))
            return
        world = World.join()
        try:
            if dry_run:
                typer.echo(dry_runs.examples(ARTraining(recipe, world)))
                return
            training = train_ar(recipe, output, world)
            for folder in export_ars(training, output):
                typer.echo(f"checkpoint: {folder}")
                if push is not None:
                    name = push if len(recipe.variants) == 1 else f"{push}-{folder.name}"
                    typer.echo(f"uploaded: {upload_ar(folder, name)}")
        finally:
            world.leave()


if __name__ == "__main__":
    main()
