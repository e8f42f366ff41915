"""DiffusionGemma with its self-conditioning fused: a tiny random one, against itself unfused.

Its numbers are held to the definition in float64; its tokens to those of the unfused model.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    DiffusionGemmaConfig,
    DiffusionGemmaForBlockDiffusion,
    DiffusionGemmaTextConfig,
    DynamicCache,
    Gemma4VisionConfig,
)
from transformers.models.diffusion_gemma import modeling_diffusion_gemma as modeling
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)

from codila.integrations import diffusion_gemma
from codila.integrations.diffusion_gemma import fuse_self_conditioning

VOCAB = 97  # prime: no tile divides it
WIDTH = 32
CANVAS = 8
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def make_model(dtype: torch.dtype = torch.float32, seed: int = 0):
    """Weights so large that a token is seldom a close call, and hangs on the soft embeddings."""
    torch.manual_seed(seed)
    text = DiffusionGemmaTextConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, global_head_dim=16,
        num_experts=4, top_k_experts=2, moe_intermediate_size=16, sliding_window=16,
        max_position_embeddings=256, layer_types=["sliding_attention", "full_attention"],
        pad_token_id=0, eos_token_id=1, bos_token_id=2, initializer_range=0.2,
    )  # fmt: skip
    vision = Gemma4VisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, head_dim=16,
    )  # fmt: skip
    config = DiffusionGemmaConfig(
        text_config=text, vision_config=vision, canvas_length=CANVAS, boi_token_id=3,
        eoi_token_id=4, image_token_id=5,
    )  # fmt: skip
    model = DiffusionGemmaForBlockDiffusion(config)
    with torch.no_grad():
        model.model.decoder.embed_tokens.weight.normal_(0, 2)
        for name in ("gate_proj", "up_proj", "down_proj"):
            getattr(model.model.decoder.self_conditioning, name).weight.mul_(8)
    return model.to(dtype).eval()


@functools.cache
def shared_model(dtype: torch.dtype = torch.float32):
    """Tests that use it leave it unfused."""
    return make_model(dtype)


@pytest.fixture(scope="module")
def model():
    return shared_model()


def decoder_arguments(model, batch: int = 2) -> dict:
    """What the decoder needs beside its logits: a canvas and an encoded prompt."""
    decoder = model.model.decoder
    names = inspect.signature(decoder.forward).parameters
    cache_name = "cache" if "cache" in names else "past_key_values"
    generator = torch.Generator().manual_seed(5)
    prompt = torch.randint(6, VOCAB, (batch, 7), generator=generator)
    canvas = torch.randint(6, VOCAB, (batch, CANVAS), generator=generator)
    cache = DynamicCache()
    with torch.no_grad():
        model.model.encoder(input_ids=prompt, **{cache_name: cache})
    return {"decoder_input_ids": canvas, cache_name: cache}


def make_logits(dtype: torch.dtype = torch.float32, batch: int = 2, seed: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, CANVAS, VOCAB, generator=generator) * 4).to(dtype)


def signal_of(model, *args, **kwargs) -> Tensor:
    """The soft embeddings that reach the self-conditioning in a call of the decoder."""
    seen: list[Tensor] = []
    decoder = model.model.decoder
    hook = decoder.self_conditioning.register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[1])
    )
    try:
        with torch.no_grad():
            decoder(*args, **kwargs)
    finally:
        hook.remove()
    (signal,) = seen
    return signal


def hidden(model, logits: Tensor | None, **kwargs) -> Tensor:
    arguments = decoder_arguments(model)
    decoder = model.model.decoder
    with torch.no_grad():
        return decoder(**arguments, self_conditioning_logits=logits, **kwargs).last_hidden_state


def is_unfused(model) -> bool:
    modules = list(model.modules())
    return not any(module._forward_pre_hooks or module._forward_hooks for module in modules)


# --- equality ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype, temperatures, padded",
    [
        (torch.float32, (1e-4, 2e-4), False),
        (torch.float32, (0.3, 1.0), True),
        (torch.bfloat16, (1e-4, 2e-4), False),
        (torch.bfloat16, (0.005, 0.01), True),
    ],
    ids=["greedy", "sampled, padded", "greedy, bfloat16", "sampled, padded, bfloat16"],
)
def test_same_tokens(dtype, temperatures, padded):
    """Two canvases of four denoising steps; the first of each has no logits to condition on.

    Silencing the soft embeddings changes the tokens of each of twelve seeds. In bfloat16 tokens
    agree where none is a close call, hence the low temperature there.
    """
    model = shared_model(dtype)
    config = DiffusionGemmaGenerationConfig(
        max_new_tokens=2 * CANVAS, max_denoising_steps=4, t_min=temperatures[0],
        t_max=temperatures[1], sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.5),
        eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    prompt = torch.randint(6, VOCAB, (2, 7), generator=torch.Generator().manual_seed(5))
    masks = {}
    if padded:
        prompt[0, :3] = 0
        masks["attention_mask"] = (prompt != 0).long()

    def generate() -> Tensor:
        torch.manual_seed(5)
        return model.generate(prompt, generation_config=config, **masks).sequences

    plain = generate()
    with fuse_self_conditioning(model):
        fused = generate()
    assert torch.equal(fused, plain)
    assert plain[:, 7:].unique().numel() > CANVAS

    silenced = model.model.decoder.self_conditioning.register_forward_pre_hook(
        lambda module, inputs: (inputs[0], torch.zeros_like(inputs[1]))
    )
    try:
        assert not torch.equal(generate(), plain), "the tokens do not hang on the soft embeddings"
    finally:
        silenced.remove()


@DTYPES
@pytest.mark.parametrize("mask", [None, [True, False], [False, True]], ids=str)
@pytest.mark.parametrize("by_position", [False, True])
def test_soft_embeddings_within_the_budget(dtype, mask, by_position):
    """Both models against ``softmax(z) @ E * sqrt(D) * mask`` in float64.

    Relative to ``sum_v p_v |E_v|``, with u the roundoff of float32 and w that of the dtype: the
    exponent (|z - m| u), its exponential and the division (6 u), the sum of V exponentials and
    that of V products (2 V u); then the roundings of the probability, the product, the scale and
    the scaled product to the dtype (4 w).
    """
    model = shared_model(dtype)
    logits = make_logits(dtype)
    table = model.model.decoder.embed_tokens.weight.detach().double()
    p = logits.double().softmax(-1)
    keep = torch.ones(2) if mask is None else torch.tensor(mask)
    scale = math.sqrt(WIDTH) * keep.double()[:, None, None]
    exact = p @ table * scale
    spread = (logits.amax(-1) - logits.amin(-1)).max().item()
    u, w = 2.0**-24, torch.finfo(dtype).eps / 2
    budget = p @ table.abs() * scale * ((spread + 6 + 2 * VOCAB) * u + 4 * w) * 1.01

    arguments = decoder_arguments(model)
    conditions = [logits, None if mask is None else torch.tensor(mask)]
    if by_position:
        call = functools.partial(signal_of, model, *arguments.values(), *conditions)
    else:
        names = ("self_conditioning_logits", "self_conditioning_mask")
        call = functools.partial(
            signal_of, model, **arguments, **dict(zip(names, conditions, strict=True))
        )
    plain = call()
    with fuse_self_conditioning(model):
        fused = call()
    for signal in (plain, fused):
        assert signal.dtype == dtype
        assert ((signal.double() - exact).abs() <= budget).all()


def test_a_first_step_is_left_alone(model):
    arguments = decoder_arguments(model)
    with fuse_self_conditioning(model):
        assert not signal_of(model, **arguments).any()
        assert not signal_of(model, **arguments, self_conditioning_logits=None).any()
        without = hidden(model, None)
    assert torch.equal(without, hidden(model, None))


def test_a_row_without_a_distribution_is_nan_with_and_without(model):
    logits = make_logits()
    logits[0, 3] = -math.inf
    arguments = decoder_arguments(model) | {"self_conditioning_logits": logits}
    plain = signal_of(model, **arguments)
    with fuse_self_conditioning(model):
        fused = signal_of(model, **arguments)
    assert torch.equal(fused.isnan(), plain.isnan()) and plain[0, 3].isnan().all()


@pytest.mark.parametrize("train", [False, True])
def test_same_gradients(train):
    """Of the table and of the logits. Relative 1e-4: a few hundred float32 roundings of depth."""
    model = make_model().train(train)
    arguments = decoder_arguments(model)
    mask = torch.tensor([True, False])
    weights = make_logits(seed=9)[..., :WIDTH]

    def gradients() -> tuple[Tensor, ...]:
        logits = make_logits().requires_grad_()
        out = model.model.decoder(
            **arguments, self_conditioning_logits=logits, self_conditioning_mask=mask
        )
        loss = (out.last_hidden_state * weights).sum()
        return torch.autograd.grad(loss, (logits, model.model.decoder.embed_tokens.weight))

    plain = gradients()
    with fuse_self_conditioning(model):
        fused = gradients()
    for ours, theirs in zip(fused, plain, strict=True):
        assert theirs.abs().max() > 0
        assert (ours - theirs).norm() <= 1e-4 * theirs.norm()
    assert not fused[0][1].any(), "a masked row has no gradient"


def test_autocast_keeps_the_dtype_of_the_table(model):
    arguments = decoder_arguments(model) | {"self_conditioning_logits": make_logits()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        plain = signal_of(model, **arguments)
        with fuse_self_conditioning(model):
            fused = signal_of(model, **arguments)
    assert (plain.dtype, fused.dtype) == (torch.bfloat16, torch.float32)
    assert (fused - plain).norm() <= 2**-6 * plain.norm()  # four roundings to bfloat16


# --- coming and going -------------------------------------------------------------------------


def test_removing_gives_the_model_back():
    model = make_model()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    before = hidden(model, make_logits())
    handle = fuse_self_conditioning(model)
    assert not is_unfused(model)
    handle.remove()
    assert is_unfused(model)
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert torch.equal(hidden(model, make_logits()), before)
    handle.remove()  # again: nothing


def test_an_error_inside_the_context_removes(model):
    with pytest.raises(KeyError), fuse_self_conditioning(model):
        raise KeyError
    assert is_unfused(model)


def test_fusing_twice(model):
    with fuse_self_conditioning(model):
        with pytest.raises(RuntimeError, match="fused already"):
            fuse_self_conditioning(model.model)  # the same decoder by another way
        assert len(model.model.decoder._forward_pre_hooks) == 1
    with fuse_self_conditioning(model):
        pass


def test_two_models_at_once(model):
    other = make_model(seed=1)
    logits = make_logits()
    want = hidden(other, logits)
    with fuse_self_conditioning(model):
        with fuse_self_conditioning(other):
            ours = hidden(other, logits)
        assert not is_unfused(model) and is_unfused(other)
    torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-4)


def test_a_deep_copy_is_fused_too(model):
    with fuse_self_conditioning(model):
        twin = copy.deepcopy(model)
        want = hidden(model, make_logits())
    assert not is_unfused(twin)
    assert torch.equal(hidden(twin, make_logits()), want)


def test_an_exception_in_the_forward_leaves_nothing_behind(model):
    def fail(module, inputs):
        raise MemoryError

    for place in (model.model.decoder.self_conditioning, model.model.decoder.layers[0]):
        with fuse_self_conditioning(model):
            failing = place.register_forward_pre_hook(fail)
            with pytest.raises(MemoryError):
                hidden(model, make_logits())
            failing.remove()
            assert not signal_of(model, **decoder_arguments(model)).any()
    assert is_unfused(model)


def test_threads_do_not_meet(model):
    def run(seed: int) -> Tensor:
        return hidden(model, make_logits(seed=seed))

    with fuse_self_conditioning(model):
        alone = [run(seed) for seed in range(4)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(run, range(4)))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


# --- models that do not fit -------------------------------------------------------------------


def known(z: Tensor, table: Tensor) -> Tensor:
    return torch.matmul(z.softmax(dim=-1, dtype=torch.float32).to(table.dtype), table)


def tempered(z: Tensor, table: Tensor) -> Tensor:
    return known(z / 0.7, table)


def half_softmax(z: Tensor, table: Tensor) -> Tensor:
    return torch.matmul(z.softmax(dim=-1), table)


def by_function(z: Tensor, table: Tensor) -> Tensor:
    return torch.matmul(torch.softmax(z, -1), table)


def by_operator(z: Tensor, table: Tensor) -> Tensor:
    return z.softmax(dim=-1, dtype=torch.float32) @ table


def by_einsum(z: Tensor, table: Tensor) -> Tensor:
    return torch.einsum("nlv,vd->nld", z.softmax(dim=-1, dtype=torch.float32), table)


def largest_only(z: Tensor, table: Tensor) -> Tensor:
    return table[z.argmax(-1)]


def two_products(z: Tensor, table: Tensor) -> Tensor:
    return known(z, table) + known(z, table)


def no_product(z: Tensor, table: Tensor) -> Tensor:
    return table.new_ones(2, 1, WIDTH)


def change_decoder(monkeypatch, model, head):
    """Give the decoder the forward of another version: `head` makes its soft embeddings."""

    class Changed(modeling.DiffusionGemmaDecoderModel):
        def forward(
            self,
            decoder_input_ids,
            cache=None,
            self_conditioning_logits=None,
            self_conditioning_mask=None,
        ):
            embeds = self.embed_tokens(decoder_input_ids)
            soft = torch.zeros_like(embeds)
            if self_conditioning_logits is not None:
                soft = head(self_conditioning_logits, self)
            return self.self_conditioning(embeds, soft)

    monkeypatch.setattr(model.model.decoder, "__class__", Changed)


@pytest.mark.parametrize(
    "head",
    [tempered, half_softmax, by_function, by_operator, by_einsum, largest_only, two_products,
     no_product],
)  # fmt: skip
def test_other_code_is_not_fused(head, model, monkeypatch):
    change_decoder(monkeypatch, model, lambda z, decoder: head(z, decoder.embed_tokens.weight))
    with pytest.raises(RuntimeError, match="not known here .*use the model unfused"):
        fuse_self_conditioning(model)
    assert is_unfused(model)


def test_known_code_is_fused_whatever_follows(model, monkeypatch):
    """The control of the test above: the decoder's own scale, here another, stays its own."""
    change_decoder(monkeypatch, model, lambda z, decoder: known(z, decoder.embed_tokens.weight) * 3)
    canvas = torch.zeros(2, CANVAS, dtype=torch.int64)
    plain = signal_of(model, canvas, None, make_logits())
    with fuse_self_conditioning(model):
        fused = signal_of(model, canvas, None, make_logits())
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)


def test_other_arguments_and_other_attributes(model, monkeypatch):
    class Renamed(modeling.DiffusionGemmaDecoderModel):
        def forward(self, decoder_input_ids, previous_logits=None):
            raise NotImplementedError  # its signature alone has it refused: never run

    with monkeypatch.context() as patched:
        patched.setattr(model.model.decoder, "__class__", Renamed)
        with pytest.raises(RuntimeError, match="no argument self_conditioning_logits .*previous_l"):
            fuse_self_conditioning(model)
    with monkeypatch.context() as patched:
        change_decoder(patched, model, lambda z, decoder: known(z, decoder.soft_table))
        with pytest.raises(RuntimeError, match="not known here .*soft_table"):
            fuse_self_conditioning(model)
    assert is_unfused(model)


def test_a_product_that_is_off_is_not_fused(model, monkeypatch):
    right = diffusion_gemma.expected_embedding
    monkeypatch.setattr(
        diffusion_gemma, "expected_embedding", lambda *args, **kwargs: right(*args, **kwargs) * 1.05
    )
    with pytest.raises(RuntimeError, match="a trial signal off by"):
        fuse_self_conditioning(model)
    assert is_unfused(model)


def test_what_the_op_objects_to(model):
    with pytest.raises(ValueError, match="impl='fast', expected one of"):
        fuse_self_conditioning(model, impl="fast")
    with pytest.raises(RuntimeError, match="impl='triton' cannot run"):
        fuse_self_conditioning(model.to(torch.float64), impl="triton")
    model.to(torch.float32)
    assert is_unfused(model)


def test_not_a_diffusion_gemma(model, monkeypatch):
    pair = nn.ModuleList([model, make_model()])
    for other, count in ((nn.Linear(2, 2), 0), ("google/gemma", 0), (pair, 2)):
        with pytest.raises(TypeError, match=f"holds {count} DiffusionGemma decoders"):
            fuse_self_conditioning(other)
    with torch.device("meta"):
        empty = DiffusionGemmaForBlockDiffusion(model.config)
    with pytest.raises(RuntimeError, match="load the weights first"):
        fuse_self_conditioning(empty)
    monkeypatch.setitem(sys.modules, modeling.__name__, None)
    with pytest.raises(RuntimeError, match="has no DiffusionGemma"):
        fuse_self_conditioning(model)


# --- what it is for ---------------------------------------------------------------------------


def is_tensor(value: object) -> bool:
    return isinstance(value, Tensor)


def storage_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class Tensors(TorchDispatchMode):
    """Sizes in bytes of all tensors that operators make; a view of an argument is none."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = {storage_of(leaf) for leaf in tree_leaves((args, kwargs)) if is_tensor(leaf)}
        made = [leaf for leaf in tree_leaves(out) if is_tensor(leaf)]
        self.sizes += [leaf.nbytes for leaf in made if storage_of(leaf) not in given]
        return out


def test_no_probability_matrix(monkeypatch):
    """A canvas at real sizes on fake tensors, the op standing for its kernel as on a device.

    What is claimed is that nothing of [positions, vocabulary] arises around the op. What its
    kernels allocate is a matter of their own tests; `impl="torch"` may hold larger pieces.
    """
    canvas, vocab, width = 256, 262_144, 2304
    monkeypatch.setattr("codila_kernels.ops._use_triton", lambda *args: True)
    forward = inspect.unwrap(modeling.DiffusionGemmaDecoderModel.forward)
    product = functools.partial(diffusion_gemma._soft_embeddings, impl="auto")
    largest = []
    with FakeTensorMode(), torch.no_grad():
        embed = modeling.DiffusionGemmaTextScaledWordEmbedding(vocab, width, 0, 48.0)
        logits = torch.empty(2, canvas // 2, vocab)
        for given in (logits, diffusion_gemma._Logits(logits, product)):
            with Tensors() as tensors:
                diffusion_gemma._self_conditioning_inputs(
                    forward, SimpleNamespace(embed_tokens=embed), given
                )
            largest.append(max(tensors.sizes))
    plain, fused = largest
    assert plain == canvas * vocab * 4, "the recorder saw the float32 probabilities"
    assert fused == canvas * width * 4, "nothing is larger than the soft embeddings"


def test_compiles_without_a_graph_break(monkeypatch):
    model = shared_model(torch.bfloat16)
    change_decoder(monkeypatch, model, lambda z, decoder: known(z, decoder.embed_tokens.weight))
    canvas = torch.zeros(2, CANVAS, dtype=torch.int64)
    logits = make_logits(torch.bfloat16)
    decoder = model.model.decoder

    def step(logits: Tensor) -> Tensor:
        return decoder(canvas, None, logits)

    with torch.no_grad():
        plain = step(logits)
        with fuse_self_conditioning(model):
            fused = step(logits)
            compiled = torch.compile(step, backend="eager", fullgraph=True)(logits)
    torch.compiler.reset()
    assert torch.equal(compiled, fused)
    assert not torch.equal(plain, fused), "in bfloat16 the two are told apart by their rounding"
