"""The policy as trainers see it: packed rows in, logprobs of the trained tokens out.

The vision tower is frozen, so what it says about a screenshot is computed once and kept; only the language model is run
again. Shapes as in `packing`: N tokens, K trained positions, V vocabulary.
"""

import copy
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from flywheel.chat import Chat
from flywheel.errors import PackingError
from flywheel.modeling.attention import Kernel
from flywheel.modeling.features import FeatureCache, look
from flywheel.modeling.logits import log_policy
from flywheel.modeling.qwen import use_packed_attention
from flywheel.modeling.sending import sent
from flywheel.trainers.packing import PackedRow, check_sample, document_lengths, pack
from flywheel.trainers.sharding import copy_share, is_sharded, release
from flywheel.types import TrainingSample

DOCUMENT = 64
"""Documents are lengthened to a multiple of this where rows are: cuDNN plans its kernels for each length anew."""


class PolicyModel:
    """A Qwen3-VL with frozen vision, run on packed rows.

    Args:
        model: a prepared `Qwen3VLForConditionalGeneration`; its language model is switched to packed attention.
        chat: words and pixels of the same processor.
        frozen: freeze the vision tower, and look at each screenshot once.
        kernel: what attention runs on.
        bucket: rows are filled up to a multiple of this many tokens; 1 leaves them as they are.
    """

    def __init__(
        self, model: Any, chat: Chat, *, frozen: bool = True, kernel: Kernel = "sdpa", bucket: int = 1
    ) -> None:
        self.model, self.chat = model, chat
        if frozen:
            freeze_vision(model)
        self._kernel, self._bucket = kernel, bucket
        use_packed_attention(model, kernel)
        self._kept = FeatureCache(model, chat) if frozen else None
        self._ahead: tuple[Sequence[TrainingSample], PackedRow] | None = None

    def twin(self, start: Callable[[], "PolicyModel"]) -> "PolicyModel":
        """A copy that is not trained: reference or teacher. The frozen vision tower and what it has seen are shared.

        Args:
            start: loads the policy that training started from; spread weights are copied into it.
        """
        visual = self.model.model.visual
        if is_sharded(self.model):
            twin = start()
            twin.model.model.visual = visual
            copy_share(self.model, twin.model)
        else:
            model = copy.deepcopy(self.model, {id(visual): visual})
            twin = PolicyModel(model, self.chat, kernel=self._kernel, bucket=self._bucket)
        twin.model.requires_grad_(False)
        twin._kept = self._kept
        return twin

    @property
    def trainable(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]

    def pack(self, samples: Sequence[TrainingSample]) -> PackedRow:
        """One row of these documents, of a length that this model is fast at."""
        ahead, self._ahead = self._ahead, None
        return ahead[1] if ahead and ahead[0] is samples else self._packed(samples)

    def _packed(self, samples: Sequence[TrainingSample]) -> PackedRow:
        return pack(
            samples,
            image_id=self.chat.image_id,
            merge=self.chat.processor.image_processor.merge_size,
            document=min(DOCUMENT, self._bucket),
            bucket=self._bucket,
        )

    def check(self, sample: TrainingSample) -> None:
        """Raises `PackingError` for a document that this model cannot be trained on."""
        check_sample(sample, image_id=self.chat.image_id, merge=self.chat.processor.image_processor.merge_size)
        vocabulary = self.model.config.text_config.vocab_size
        if not 0 <= sample.input_ids.min() <= sample.input_ids.max() < vocabulary:
            raise PackingError(
                f"Trajectory {sample.trajectory_id} has ids beyond the vocabulary of {vocabulary}; it was made with "
                "another tokenizer."
            )

    def expect(self, samples: Iterable[TrainingSample]) -> None:
        """Begin to read the screenshots of a row that comes next; a CPU that computes has no time for that."""
        if self._on_gpu and self._kept:
            self._kept.expect(image for sample in samples for image in sample.images)

    def look_ahead(self, samples: Sequence[TrainingSample]) -> None:
        """Pack a row that comes next, and have a GPU look at its screenshots, before it is waited for: at the end of a
        step it would stand still until they are all on their way, a fourteenth of the time at 2B."""
        if self._on_gpu and self._kept and samples:
            self._kept([image for sample in samples for image in sample.images])
            self._ahead = samples, self._packed(samples)

    @property
    def _on_gpu(self) -> bool:
        return bool(self.model.device.type == "cuda")

    def logprobs(self, row: PackedRow, temperature: float = 1.0) -> Tensor:
        """Logprobs of the trained tokens, (K,), with gradient."""
        return _chosen(self.distribution(row, temperature), row)

    def logprobs_and_entropy(self, row: PackedRow, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """The same, and the entropy (nats) of the distribution at each trained token, (K,), with gradient too."""
        logp_KV = self.distribution(row, temperature)
        return _chosen(logp_KV, row), _entropy(logp_KV)

    def inspect(self, row: PackedRow, temperature: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """Both, and the hidden states that predicted the trained tokens, (K, D)."""
        logits_KV, hidden_KD = self._run(row)
        logp_KV = log_policy(logits_KV, temperature, self.chat.forbidden_ids)
        return _chosen(logp_KV, row), _entropy(logp_KV), hidden_KD

    def distribution(self, row: PackedRow, temperature: float = 1.0) -> Tensor:
        """Log-probabilities of every token at the trained positions, (K, V), with gradient."""
        return log_policy(self._run(row)[0], temperature, self.chat.forbidden_ids)

    def _run(self, row: PackedRow) -> tuple[Tensor, Tensor]:
        lengths = document_lengths(row.position_ids_4N)
        use_packed_attention(self.model, self._kernel)  # again: an engine that shares the model has switched it back
        images = [image for sample in row.samples for image in sample.images]
        features = self._kept(images) if self._kept else look(self.model, self.chat, images)
        integers = (torch.from_numpy(x) for x in (row.ids_N, row.position_ids_4N, row.predict_K))
        logits_KV, hidden_KD = self.model.packed_logits(*integers, lengths, features)
        if not torch.is_grad_enabled():
            release(self.model)
        return logits_KV, hidden_KD


def _chosen(logp_KV: Tensor, row: PackedRow) -> Tensor:
    return logp_KV.gather(1, sent(torch.from_numpy(row.targets_K), logp_KV.device)[:, None])[:, 0]


def _entropy(logp_KV: Tensor) -> Tensor:
    # A forbidden id has probability 0 and log-probability -inf; 0 * -inf would be NaN.
    return -(logp_KV.exp() * logp_KV.clamp(min=-1e4)).sum(-1)


def freeze_vision(model: Any) -> None:
    """Nothing under `model.visual` is trained: patch and position embeddings, blocks, merger, deepstack mergers."""
    model.model.visual.requires_grad_(False)


def fingerprint(parameters: Iterable[Tensor]) -> str:
    """16 hex digits that change with any bit of the weights."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]
