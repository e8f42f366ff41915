"""One process or many, started by torchrun (or anything that sets its variables): DDP and FSDP."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class World:
    """Which process this is, of how many, and the device that it trains on."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")

    @classmethod
    def join(cls, device: str | torch.device | None = None) -> World:
        """The world that torchrun's variables describe; a world of one without them."""
        cuda = torch.cuda.is_available() if device is None else torch.device(device).type == "cuda"
        local = int(os.environ.get("LOCAL_RANK", 0))
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return cls(device=torch.device(device or ("cuda" if cuda else "cpu")))
        own = torch.device("cuda", local) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(own)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if cuda else "gloo")
        return cls(dist.get_rank(), dist.get_world_size(), own)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def mean(self, values: Tensor) -> Tensor:
        """The mean over all processes, on each of them."""
        if self.size > 1:
            values = values.clone()
            dist.all_reduce(values)
            values /= self.size
        return values

    def largest(self, value: int) -> int:
        """The maximum over all processes, on each of them."""
        if self.size == 1:
            return value
        held = torch.tensor(value, device=self.device)
        dist.all_reduce(held, dist.ReduceOp.MAX)
        return int(held)

    def wait(self) -> None:
        """Until every process is here."""
        if self.size > 1:
            dist.barrier()

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def shard(module: nn.Module, layers: list[nn.Module], precision: str) -> None:
    """FSDP in place: every layer is a unit, what is left belongs to ``module``."""
    policy = MixedPrecisionPolicy()
    if precision == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(module, mp_policy=policy, reshard_after_forward=False)
    for name in ("nll",):  # what is called beside `forward`
        if hasattr(module, name):
            register_fsdp_forward_method(module, name)


def gathered(module: nn.Module) -> None:
    """Make the weights that belong to no layer whole, for a call past the module's own doors."""
    if isinstance(module, FSDPModule):
        module.unshard()


def whole_state(module: nn.Module) -> dict[str, Tensor]:
    """The state of a module on the CPU, whole, in the first process (empty in the others)."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return dict(get_model_state_dict(module, options=options))  # type: ignore[arg-type]


def shard_frozen(dlm: Any) -> None:
    """FSDP of a DLM that is only run: `body` gathers a layer at a time.

    The embeddings and the head, which may be tied, stay whole once they have been gathered.
    """
    for layer in dlm.model.layers:
        fully_shard(layer)
    fully_shard(dlm, reshard_after_forward=False)
    register_fsdp_forward_method(dlm, "body")


def data_parallel(module: nn.Module, world: World) -> nn.Module:
    """``module`` with its gradients averaged over the processes; itself in a world of one."""
    if world.size == 1:
        return module
    ids = [world.device.index] if world.device.type == "cuda" else None
    return DistributedDataParallel(module, device_ids=ids, broadcast_buffers=False)


@contextlib.contextmanager
def gradients_synchronised(module: nn.Module, wanted: bool) -> Iterator[None]:
    """Within it, a backward pass adds up gradients locally unless ``wanted``."""
    if isinstance(module, DistributedDataParallel) and not wanted:
        with module.no_sync():
            yield
        return
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(wanted)
    yield
