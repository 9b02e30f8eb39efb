"""What of a model is trained, and what makes a large one fit and run fast.

All of it is opt-in by `model.*`: the tiny model needs none of it.
"""

import re
from types import MethodType
from typing import Any

import torch
import torch.distributed as dist

from flywheel.chat import Chat
from flywheel.modeling.attention import Kernel, attend_images, fastest
from flywheel.sections import ModelConfig
from flywheel.trainers.model import PolicyModel
from flywheel.trainers.sharding import shard

LANGUAGE_LAYERS = r".*language_model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)"
"""Where LoRA goes: every linear map of the language model's layers, and nothing under `visual`."""
SHAPES = 64
"""Row lengths that a layer may be compiled for before torch gives up; with the buckets of a profile about 20 occur."""


def tuned(model: Any, chat: Chat, config: ModelConfig) -> PolicyModel:
    """The policy to train, as the settings want it; `model` is changed in place, and sharded under a launcher."""
    kernel = fastest(model.device, model.dtype) if config.attention == "auto" else config.attention
    frozen = config.vision == "frozen"
    policy = PolicyModel(model, chat, frozen=frozen, kernel=kernel, bucket=config.bucket)
    if config.lora_rank:
        add_adapters(model, config.lora_rank, config.lora_alpha)
    if config.checkpointing:
        model.model.language_model.gradient_checkpointing_enable({"use_reentrant": False})
    if config.compile:
        compile_layers(model, kernel)
    if dist.is_initialized():
        shard(model)
    return policy


def compile_layers(model: Any, kernel: Kernel) -> None:
    """Compile each layer by itself: code of one is that of all. Attention stays outside, documents differ in length.

    Screens of one size are attended together, on the same kernel.
    """
    torch._dynamo.config.recompile_limit = max(SHAPES, torch._dynamo.config.recompile_limit)
    for layer in model.model.language_model.layers:
        layer.compile(dynamic=False)
    for block in model.model.visual.blocks:
        block.attn.forward = MethodType(attend_images(kernel), block.attn)
        block.compile()


def add_adapters(model: Any, rank: int, alpha: int) -> None:
    """LoRA (arXiv:2106.09685) on the language model; everything else is frozen. The adapters are float32."""
    from peft import LoraConfig, inject_adapter_in_model

    inject_adapter_in_model(LoraConfig(r=rank, lora_alpha=alpha, target_modules=LANGUAGE_LAYERS), model)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
        if "lora_" in name:
            parameter.data = parameter.data.float()


def merge_adapters(model: Any) -> None:
    """Add what the adapters have learned to the weights and take them out; a model without any stays as it is."""
    for name, module in list(model.named_modules()):
        if re.fullmatch(LANGUAGE_LAYERS, name) and hasattr(module, "merge"):
            module.merge()
            model.set_submodule(name, module.get_base_layer())
