"""Weights spread over processes: FSDP2, sharded trainer states, and the whole policy gathered again in the end.

Kept from torch: `fully_shard`, `torch.distributed.checkpoint`. accelerate starts the processes and averages gradients
with them; its own preparation for FSDP2 knows no CPU, where the same code is tested.

Master weights, gradients and AdamW states are float32 and sharded; each layer is gathered in the model's dtype while it
runs. The frozen vision tower is held whole by every process: each looks at the screenshots of its own rows, and how
many those are need not agree.
"""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
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

from flywheel.errors import ConfigError
from flywheel.sections import Held

SHARDS = ".metadata"
"""The file that tells a sharded state from one that a single process wrote."""


def is_sharded(model: nn.Module) -> bool:
    return isinstance(model, FSDPModule)


def shard(model: Any) -> None:
    """Spread the language model over all processes, in place.

    Raises `ConfigError` where vision is trained, or adapters are: those fit into one process, which merges them.
    """
    visual = set(model.model.visual.parameters())
    if any(parameter.requires_grad for parameter in visual):
        raise ConfigError("Vision is trained in one process only; set model.vision=frozen or sft.processes=0.")
    if any(not parameter.requires_grad for parameter in set(model.parameters()) - visual):
        raise ConfigError("Adapters are trained in one process only; set model.lora_rank=0 or sft.processes=0.")
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


def gathered(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """Name -> whole weight on the CPU, tied ones once; empty in all processes but the first, and all must call it."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole: dict[str, Any] = get_model_state_dict(model, options=options)
    names = [name for name, _ in model.named_parameters()]
    return {name: whole[name].to(dtype) for name in names} if whole else {}


def save_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Every process writes its share."""
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)


def load_shards(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What `save_shards` wrote, by however many processes, into however many there are now."""
    weights, moments = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def spread(weights: dict[str, Any], model: nn.Module) -> None:
    """Whole weights into a sharded model; each process has all of them and keeps its share."""
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))


def spread_moments(state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A single process's optimiser state, which counts parameters, into a sharded optimiser, which names them."""
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    groups = [{**group, "params": [names[i] for i in group["params"]]} for group in state["param_groups"]]
    named: dict[str, Any] = {
        "state": {names[i]: moments for i, moments in state["state"].items()},
        "param_groups": groups,
    }
    set_optimizer_state_dict(model, optimizer, named, options=StateDictOptions(full_state_dict=True))
