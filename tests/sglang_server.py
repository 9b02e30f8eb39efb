"""A server that speaks sglang's own protocol on loopback, with the tiny model behind it."""

import base64
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from flywheel.chat import Chat
from flywheel.config import Config
from flywheel.modeling.features import look
from flywheel.modeling.positions import rope_positions
from flywheel.modeling.qwen import embed, hidden_states, load_model, use_standard_attention
from flywheel.types import Screenshot
from tests.loopback import loopback
from tests.tiny import Tiny


@dataclass
class Engine:
    """What sglang does with a request, one at a time. `loaded` are the folders that it was handed, with their marks."""

    chat: Chat
    model: Any = None
    mark: str = "default"
    loaded: list[tuple[Path, str]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    miscounts: int = 0

    def respond(self, path: str, body: dict[str, Any], _: Mapping[str, str]) -> tuple[int, Any]:
        if path == "/update_weights_from_disk":
            folder = Path(body["model_path"])
            if not (folder / "model.safetensors").is_file():
                return 400, {"success": False, "message": "no weights there"}
            self.model, self.mark = load_model(str(folder)), body["weight_version"]
            self.loaded.append((folder, self.mark))
            use_standard_attention(self.model)
            return 200, {"success": True, "message": "Succeeded to update model weights."}
        if path != "/generate":
            return 404, {"error": "no such path"}
        self.requests.append(body)
        return 200, self.generate(body)

    @torch.inference_mode()
    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        images = [_read(data) for data in body.get("image_data", [])]
        grids = [self.chat.grid(image.size) for image in images]
        ids = self.chat.expand(body["input_ids"], grids).tolist()
        features, asked, drawn = look(self.model, self.chat, images) if images else None, len(ids), []
        sampling = body["sampling_params"]
        random = torch.Generator().manual_seed(sampling["sampling_seed"])
        while len(drawn) < sampling["max_new_tokens"] and (not drawn or drawn[-1][1] not in sampling["stop_token_ids"]):
            row = np.array(ids)
            positions, _ = rope_positions(row, grids, image_id=self.chat.image_id)
            embeds, places = embed(self.model, torch.from_numpy(row)[None], features)
            hidden = hidden_states(self.model, embeds, places, features, torch.from_numpy(positions)[:, None])
            logits = self.model.lm_head(hidden[0, -1]).float() / (sampling["temperature"] or 1.0)
            for token, bias in sampling["logit_bias"].items():
                logits[int(token)] += bias
            logp = logits.log_softmax(-1)
            token = int(logp.argmax() if sampling["temperature"] == 0 else logp.exp().multinomial(1, generator=random))
            drawn.append([float(logp[token]), token, None])
            ids.append(token)
        about = {"weight_version": self.mark, "prompt_tokens": asked + self.miscounts, "output_token_logprobs": drawn}
        return {"text": "", "output_ids": [token for _, token, _ in drawn], "meta_info": about}


def _read(data: str) -> Screenshot:
    return Screenshot.from_array(np.asarray(Image.open(BytesIO(base64.b64decode(data))).convert("RGB")))


@contextmanager
def sglang(tiny: Tiny) -> Iterator[tuple[Engine, Config]]:
    """The engine, and the configuration of one who plays with it."""
    engine = Engine(tiny.chat)
    with loopback(engine.respond) as url:
        rollout = tiny.config.rollout.model_copy(update={"engine": "sglang"})
        server = tiny.config.sglang.model_copy(update={"url": url, "patience": 1.0})
        yield engine, tiny.config.model_copy(update={"rollout": rollout, "sglang": server})
