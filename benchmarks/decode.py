"""Decoding speed, side by side: our modes, a naive CoDiLA loop, the published Dream loop.

    python -m benchmarks.decode --preset tiny|cpu|dream-7b [--json FILE] [--plot FILE]

Providers take turns within every round; figures are medians over the rounds with the 20th and 80th
percentile. Tokens/s never count the prompt: over the canvas (every committed position), and up to
the end token where a row has one. A step's time is split into the DLM's body, head with
conditioning, choice, and AR model; its floor is what its bytes and FLOPs need at the copy bandwidth
and the rate of a large product measured in the same run. Targets are printed as met or short.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import Qwen3Config, Qwen3ForCausalLM

import codila
from benchmarks.decode_providers import Run, Setting, dream, naive, ours
from benchmarks.memory import peak_bytes
from benchmarks.report import Point, environment, print_json_line, print_table, write_atomically
from codila.bridge import VocabularyBridge
from codila.demo import TASKS
from codila.models.ar import ARMetadata
from codila.models.dream import DreamConfig, DreamModel

COLUMNS = {
    "provider": "",
    "block_size": "",
    "step_ms": ".1f",
    "p20_ms": ".1f",
    "p80_ms": ".1f",
    "tokens_per_s": ".1f",
    "tokens_per_s_eos": ".1f",
    "nfe": "d",
    "tokens_per_forward": ".2f",
    "body_ms": ".1f",
    "head_ms": ".1f",
    "choice_ms": ".1f",
    "ar_ms": ".1f",
    "not_body": ".0%",
    "peak_extra_mb": ".0f",
    "over_floor": ".2f",
}

DREAM_VOCAB, QWEN3_ROWS, MASK, EOS = 152_064, 151_936, 151_666, 151_643


@dataclasses.dataclass(frozen=True)
class Preset:
    """Sizes of a pair of random weights; `steps` limits a run, None decodes to the end."""

    dlm: dict[str, int]
    ar: dict[str, int]
    prompt: int
    canvas: int
    steps: int | None
    dtype: torch.dtype
    device: str


PRESETS = {
    "cpu": Preset(
        dlm=dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=8,
                 num_attention_heads=8, num_key_value_heads=2),
        ar=dict(hidden_size=256, intermediate_size=768, num_hidden_layers=4,
                num_attention_heads=4, num_key_value_heads=2, head_dim=64),
        prompt=128, canvas=256, steps=8, dtype=torch.float32, device="cpu",
    ),
    "dream-7b": Preset(
        dlm=dict(hidden_size=3584, intermediate_size=18_944, num_hidden_layers=28,
                 num_attention_heads=28, num_key_value_heads=4),
        ar=dict(hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
                num_attention_heads=16, num_key_value_heads=8, head_dim=128),
        prompt=150, canvas=768, steps=16, dtype=torch.bfloat16, device="cuda",
    ),
}  # fmt: skip


def random_pair(preset: Preset) -> tuple[Any, Any]:
    """A Dream-architecture DLM and a Qwen3 with the real vocabularies and random weights."""
    torch.manual_seed(0)
    with torch.device(preset.device):
        default = torch.get_default_dtype()
        torch.set_default_dtype(preset.dtype)
        dlm = DreamModel(
            DreamConfig(
                vocab_size=DREAM_VOCAB, mask_token_id=MASK, eos_token_id=EOS, pad_token_id=EOS,
                max_position_embeddings=8192, tie_word_embeddings=False,
                initializer_range=0.05, **preset.dlm,
            )
        )  # fmt: skip
        ar = Qwen3ForCausalLM(
            Qwen3Config(vocab_size=QWEN3_ROWS, tie_word_embeddings=True, **preset.ar)
        )
        torch.set_default_dtype(default)
    bridge = VocabularyBridge(QWEN3_ROWS, (MASK,), tuple(range(151_665, 151_669)))
    ar.codila = ARMetadata.of(
        dlm, bridge, block_sizes=(1, 2, 4, 8, 16), boundaries=(151_667, 151_668)
    )
    return dlm.eval(), ar.eval()


def settings_of(preset_name: str, block_size: int, canvas: int | None) -> list[Setting]:
    """What is decoded: one random prompt, or the prompts of the demo with the bundled pair."""
    if preset_name == "tiny":
        pair = codila.load("tiny")
        return [
            Setting(
                pair.dlm, pair.ar, pair.tokenizer(task.prompt, return_tensors="pt").input_ids,
                canvas=64, block_size=block_size, scope_blocks=4, eos_fill=True,
            )
            for task in TASKS
        ]  # fmt: skip
    preset = PRESETS[preset_name]
    dlm, ar = random_pair(preset)
    prompt = torch.randint(1000, 100_000, (1, preset.prompt), device=preset.device)
    return [Setting(dlm, ar, prompt, canvas or preset.canvas, block_size, preset.steps)]


def providers(preset: str) -> dict[str, Callable[[Setting], Run]]:
    """Name -> decode; `base` is one schedule without the AR model at the same K.

    On a GPU the parts of a step are timed by waiting for it, so there are also runs that do not.
    """
    chosen: dict[str, Callable[[Setting], Run]] = {"exact": ours, "naive": naive, "dream": dream}
    for kind in ("prefix", "dual"):
        chosen[kind] = lambda s, kind=kind: ours(s, dlm_cache=kind, refresh_interval=8)
    chosen["base"] = lambda s: ours(s, schedule="entropy", tokens_per_step=s.block_size)
    if preset in PRESETS and PRESETS[preset].device == "cuda":
        chosen["exact, free"] = lambda s: ours(s, parts=False)
        chosen["dual, free"] = lambda s: ours(s, False, dlm_cache="dual", refresh_interval=8)
        chosen["graphs"] = lambda s: ours(s, parts=False, cuda_graphs=True)
    return chosen


def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Bytes per second of a large copy, FLOPs per second of a large product, measured."""
    size = 2048 if device.type == "cpu" else 8192
    a = torch.randn(size, size, device=device, dtype=dtype)
    source = torch.empty(2**27, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def median(call: Callable[[], Any]) -> float:
        seconds = []
        for _ in range(5):
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds)

    return 2 * source.numel() / median(lambda: target.copy_(source)), 2 * size**3 / median(
        lambda: a @ a
    )


def floor_seconds(setting: Setting, bandwidth: float, flops: float) -> float:
    """The least time of an exact CoDiLA step: body, head on the candidates, soft tokens, AR."""
    dlm, ar, b = setting.dlm, setting.ar, setting.block_size
    width = next(dlm.parameters()).element_size()
    length = setting.prompt.shape[1] + setting.canvas
    c = dlm.config
    body = sum(p.numel() for p in dlm.model.layers.parameters())
    attention = 4 * length**2 * c.num_attention_heads * (c.hidden_size // c.num_attention_heads)
    rows = min(setting.scope_blocks or setting.canvas, setting.canvas // b) * b
    table = ar.codila.bridge.valid_vocab * ar.config.hidden_size
    layers = sum(p.numel() for p in ar.model.layers.parameters())
    pieces = [
        (body * width, 2 * body * length + attention * c.num_hidden_layers),
        (dlm.lm_head.weight.numel() * width, 2 * rows * dlm.lm_head.weight.numel()),
        (table * width, 2 * b * table),
        (b * (layers + table) * width, 2 * (2 * b + 1) * layers + 2 * b * table),
    ]
    return sum(max(bytes_ / bandwidth, work / flops) for bytes_, work in pieces)


def decode_all(settings: list[Setting], provider: Callable[[Setting], Run]) -> list[Run]:
    return [provider(setting) for setting in settings]


def peak_of(
    settings: list[Setting], provider: Callable[[Setting], Run], device: torch.device
) -> int:
    return peak_bytes(lambda: decode_all(settings, provider), device)[0]


def point_of(
    name: str, settings: list[Setting], rounds: list[list[Run]], peak: int, floor: float
) -> Point:
    """Medians over the rounds of one provider."""
    per_step = [sum(r.seconds for r in runs) / sum(r.forwards for r in runs) for runs in rounds]
    runs = rounds[0]
    forwards = sum(r.forwards for r in runs)
    committed = sum(sum(t >= 0 for t in r.tokens) for r in runs)
    until_end = sum(
        (r.tokens.index(s.dlm.eos_token_id) + 1 if s.dlm.eos_token_id in r.tokens else
         sum(t >= 0 for t in r.tokens)) for r, s in zip(runs, settings, strict=True)
    )  # fmt: skip
    seconds = statistics.median(sum(r.seconds for r in each) for each in rounds)
    spread = torch.tensor(per_step, dtype=torch.float64)
    point: Point = {
        "provider": name,
        "block_size": settings[0].block_size,
        "canvas": settings[0].canvas,
        "step_ms": statistics.median(per_step) * 1e3,
        "p20_ms": spread.quantile(0.2).item() * 1e3,
        "p80_ms": spread.quantile(0.8).item() * 1e3,
        "tokens_per_s": committed / seconds,
        "tokens_per_s_eos": until_end / seconds,
        "nfe": forwards,
        "tokens_per_forward": committed / forwards,
        "peak_extra_mb": peak / 1e6,
        "over_floor": statistics.median(per_step) / floor,
    }
    for part in ("body", "head", "choice", "ar") if any(r.parts for r in runs) else ():
        point[f"{part}_ms"] = (
            statistics.median(sum(r.parts.get(part, 0.0) for r in each) for each in rounds)
            / forwards
            * 1e3
        )
    if "body_ms" in point:
        point["not_body"] = 1 - point["body_ms"] / point["step_ms"]
    return point


def targets(preset: str, points: list[Point], same: dict[int, bool]) -> list[str]:
    """The targets that these points can show, each met or short, with its figure."""
    lines = []

    def line(met: bool, text: str) -> None:
        lines.append(f"{'met  ' if met else 'SHORT'} {text}")

    def ratio(size: int, of: Point | None, over: Point | None, least: float, key: str) -> None:
        if of is None or over is None:
            return
        value, names = of[key] / over[key], f"{of['provider']} over {over['provider']}"
        line(value >= least, f"B = {size}: {names}, {key}: {value:.2f} (>= {least:g})")

    for size in sorted({p["block_size"] for p in points}):
        at = {p["provider"]: p for p in points if p["block_size"] == size}
        exact, naive_, dual = (at.get(name) for name in ("exact", "naive", "dual"))
        if size in same:
            line(same[size], f"B = {size}: exact writes the naive loop's tokens")
        ratio(size, exact, naive_, 2.5 if preset == "cpu" else 1.0, "tokens_per_s")
        if preset == "cpu":
            ratio(size, exact, at.get("dream"), 6.0, "tokens_per_s")
            long = points[0]["canvas"] >= 1024
            ratio(size, dual, exact, 2.0 if long else 1.25, "tokens_per_s")
            ratio(size, naive_, exact, 5.0, "peak_extra_mb")
    return lines


def main(
    preset: Annotated[str, typer.Option(help="tiny, cpu or dream-7b.")] = "tiny",
    block_size: Annotated[
        list[int] | None, typer.Option(help="B; default 4 (tiny: 2, 4, 8).")
    ] = None,
    canvas: Annotated[int | None, typer.Option(help="Canvas length, of random weights.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds in which every provider decodes.")] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Only these providers.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Environment, points.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Bars of a step's parts, PNG.")] = None,
) -> None:
    """Decode in turns, print the table and the targets, end with the points as JSON."""
    if preset not in (*PRESETS, "tiny"):
        raise typer.BadParameter(f"--preset {preset}: expected one of {['tiny', *PRESETS]}")
    chosen = providers(preset)
    if only and not set(only) <= set(chosen):
        raise typer.BadParameter(f"--only {only}: the providers are {list(chosen)}")
    chosen = {name: call for name, call in chosen.items() if not only or name in only}
    if preset in PRESETS and PRESETS[preset].device == "cuda" and not torch.cuda.is_available():
        raise typer.BadParameter(f"--preset {preset} needs a GPU, and torch finds none here")
    points: list[Point] = []
    same: dict[int, bool] = {}
    about = environment() | {"preset": preset, "rounds": rounds}
    for size in block_size or ([2, 4, 8] if preset == "tiny" else [4]):
        settings = settings_of(preset, size, canvas)
        dlm = settings[0].dlm
        bandwidth, flops = machine_rates(dlm.device, dlm.dtype)
        about |= {"copy_gb_per_s": bandwidth / 1e9, "gflops": flops / 1e9}
        floor = statistics.mean(floor_seconds(s, bandwidth, flops) for s in settings)
        short = [dataclasses.replace(settings[0], steps=2)]
        peaks = {name: peak_of(short, call, dlm.device) for name, call in chosen.items()}
        done: dict[str, list[list[Run]]] = {name: [] for name in chosen}
        for _ in range(rounds):
            for name, call in chosen.items():
                done[name].append(decode_all(settings, call))
        for name in chosen:
            points.append(point_of(name, settings, done[name], peaks[name], floor))
        if {"exact", "naive"} <= set(chosen):
            pairs = zip(done["exact"][0], done["naive"][0], strict=True)
            same[size] = all(a.tokens == b.tokens for a, b in pairs)
        if json_file is not None:
            payload = {"environment": about, "points": points}
            write_atomically(json_file, json.dumps(payload, indent=1) + "\n")
    print_table(f"decoding, preset {preset}", points, COLUMNS)
    print(*targets(preset, points, same), sep="\n")
    if plot is not None:
        draw(points, plot, preset)
    print_json_line(points)


def draw(points: list[Point], path: Path, preset: str) -> None:
    """A bar for each provider and block size: the parts of a step."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.5 * len(points) + 1.5))
    points = [p for p in points if "body_ms" in p]
    names = [f"{p['provider']}, B = {p['block_size']}" for p in points]
    left = [0.0] * len(points)
    for part in ("body", "head", "choice", "ar"):
        width = [p[f"{part}_ms"] for p in points]
        axes.barh(names, width, left=left, label=part)
        left = [a + b for a, b in zip(left, width, strict=True)]
    rest = [p["step_ms"] - done for p, done in zip(points, left, strict=True)]
    axes.barh(names, rest, left=left, label="rest", color="lightgray")
    axes.set_xlabel("ms per step")
    axes.set_title(f"preset {preset}")
    axes.invert_yaxis()
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    typer.run(main)
