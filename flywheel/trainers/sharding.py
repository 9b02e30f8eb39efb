"""Weights spread over processes: FSDP2, sharded trainer states, and the whole policy gathered again.

Kept from torch: `fully_shard`, `torch.distributed.checkpoint`. accelerate starts the processes and averages gradients
with them; its own preparation for FSDP2 knows no CPU, where the same code is tested.

Master weights, gradients and AdamW states are float32 and sharded; each layer is gathered in the model's dtype while it
runs. The frozen vision tower is held whole by every process: each looks at the screenshots of its own rows, and how
many those are need not agree.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map_only

from flywheel.errors import ConfigError
from flywheel.sections import Held

SHARDS = ".metadata"
"""The file that tells a sharded state from one that a single process wrote."""
ALONE = "sft.processes=0 and rl.processes=0"
"""What a user sets to train without any of this."""


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def shard(model: Any) -> None:
    """Spread the language model over all processes, in place.

    Raises `ConfigError` where vision is trained, or adapters are: those fit into one process, which merges them.
    """
    visual = set(model.model.visual.parameters())
    if any(parameter.requires_grad for parameter in visual):
        raise ConfigError(f"Vision is trained in one process only; set model.vision=frozen or {ALONE}.")
    if any(not parameter.requires_grad for parameter in set(model.parameters()) - visual):
        raise ConfigError(f"Adapters are trained in one process only; set model.lora_rank=0 or {ALONE}.")
    dtype = model.dtype
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    mesh = init_device_mesh(model.device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    for layer in model.model.language_model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy, ignored_params=visual)
    register_fsdp_forward_method(model, "packed_logits")


def hold(model: Any, held: Held, *, last: bool) -> None:
    """Say what of a sharded model stays whole on every process after the row that comes next.

    What is held need not be gathered again, or added up again, for each row of a step.

    Args:
        held: see `sft.held`.
        last: whether the row ends the step; gradients are added up then, and weights go back to who updates them.
    """
    if held == "layer" or not is_sharded(model):
        return
    model.set_reshard_after_forward(False)
    model.set_reshard_after_backward(last)
    model.set_requires_gradient_sync(last or held == "weights")


def release(model: nn.Module) -> None:
    """Let go of what a pass without gradient has gathered: only a backward pass does that by itself, and until then
    the model would neither see nor give new weights."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def gathered(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Name -> whole weight on the CPU, tied ones once; empty in all processes but the first, and all must call it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole: dict[str, Any] = get_model_state_dict(model, options=options)
    names = [name for name, _ in model.named_parameters()]
    return {name: whole[name].to(dtype) for name in names} if whole else {}


@torch.no_grad()
def copy_whole(model: nn.Module, into: nn.Module | None) -> None:
    """What is trained, weight by weight, into a model that is not sharded; every process must call it, with or without
    one."""
    targets = dict(into.named_parameters()) if into else {}
    for name, parameter in model.named_parameters():
        if isinstance(parameter, DTensor):
            weight = parameter.full_tensor()
            if into:
                targets[name].copy_(weight)


@torch.no_grad()
def copy_share(source: nn.Module, into: nn.Module) -> None:
    """This process's share of the weights of another model that is sharded in the same way."""
    for weight, target in zip(source.parameters(), into.parameters(), strict=True):
        if isinstance(weight, DTensor):
            target.copy_(weight)


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every process writes its share. Raises `OSError` in all of them when one of them cannot."""
    fresh = not optimizer.state
    weights, moments = get_state_dict(model, optimizer)
    if fresh:  # torch made the moments by a step without gradients, which must not count
        for own in optimizer.state.values():
            own["step"].zero_()
    with _told_plainly():
        dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What `save_shards` wrote, by however many processes, into however many there are now. Raises `OSError`."""
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments}
    with _told_plainly():
        dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


@contextmanager
def _told_plainly() -> Iterator[None]:
    """torch's own is a `BaseException`, the same in all processes, with what each of them met."""
    try:
        yield
    except CheckpointException as error:
        first = min(error.failures)
        raise OSError(str(error.failures[first][0])) from error


def whole(state: Any) -> Any:
    """Any nested state with what is sharded gathered to the CPU; every process must call it."""
    return tree_map_only(DTensor, lambda share: share.full_tensor().cpu(), state)


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model that is sharded or not, as one process would save it."""
    return dict(whole(model.state_dict()))


def load_whole(weights: Mapping[str, Tensor], model: nn.Module) -> None:
    """The opposite."""
    if is_sharded(model):
        spread(weights, model)
    else:
        model.load_state_dict(weights)


def load_part(state: dict[str, Any], model: nn.Module, part: Any) -> None:
    """A state as one process would save it, into an optimiser of this model, sharded or not, or its schedule."""
    if is_sharded(model) and isinstance(part, torch.optim.Optimizer):
        spread_moments(state, model, part)
    else:
        part.load_state_dict(state)


def share_like(weight: Tensor, like: Tensor) -> Tensor:
    """A whole weight, spread as another is."""
    if not isinstance(like, DTensor):
        return weight
    return distribute_tensor(weight.to(like.device), like.device_mesh, like.placements)


def spread(weights: Mapping[str, Any], model: nn.Module) -> None:
    """Whole weights into a sharded model; each process has all of them and keeps its share."""
    set_model_state_dict(model, dict(weights), options=StateDictOptions(full_state_dict=True, strict=False))


def spread_moments(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A single process's optimiser state, which counts parameters, into a sharded optimiser, which names them."""
    if not state["state"]:  # torch would make moments by a step without gradients, which must not count
        optimizer.state.clear()
        for group, given in zip(optimizer.param_groups, state["param_groups"], strict=True):
            group.update({**given, "params": group["params"]})
        return
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [{**group, "params": [names[i] for i in group["params"]]} for group in state["param_groups"]]
    named: dict[str, Any] = {
        "state": {names[i]: moments for i, moments in state["state"].items()},
        "param_groups": groups,
    }
    set_optimizer_state_dict(model, optimizer, named, options=StateDictOptions(full_state_dict=True))
