"""The configuration of BERT with a light recurrence in place of its feed-forward blocks."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, BertConfig, PreTrainedConfig

from ...ops.recurrence import ACTIVATIONS
from ...utils.fields import FieldError, require_choice, require_number
from ..checking import MODEL_TYPE_PREFIX, CheckedConfig

# Values that fail later, inside a kernel, are refused here. A norm needs an epsilon above 0.
NUMBERS = (
    ("hidden_dropout_prob", 0, 1),
    ("attention_probs_dropout_prob", 0, 1),
    ("initializer_range", 0, 1e6),
    ("layer_norm_eps", 1e-38, 1),
)
DIRECTIONS = ("forward", "bidirectional", "alternating")


class RecurrentBertConfig(CheckedConfig, BertConfig):
    """All fields of BertConfig, and those of the recurrence that replaces its feed-forward blocks.

    Args:
        intermediate_size: of the feed-forward blocks that are replaced; `recurrence_size` follows from it.
        recurrence_size: channels of the recurrence; by default two thirds of `intermediate_size`, rounded to a
            multiple of 8, which gives as many parameters as BERT has.
        stride: a token's state comes from the one `stride` tokens before, which divides the number of sequential
            steps by it.
        direction: "forward"; "bidirectional": half of the channels run from the end to the beginning; "alternating":
            every second layer does.
        activation: "silu", the paper's Swish, or "relu", with which states are running maxima.
    """

    model_type = f"{MODEL_TYPE_PREFIX}recurrent_bert"

    recurrence_size: int | None = None
    stride: int = 1
    direction: str = "forward"
    activation: str = "silu"

    def __post_init__(self, **kwargs: Any):
        self.refuse_unknown(kwargs)
        self._check_values()
        if self.recurrence_size is None:
            self.recurrence_size = _as_large_as(self.intermediate_size)
        super().__post_init__(**kwargs)
        self._check_together()

    def _check_values(self) -> None:
        sizes = ("intermediate_size", "hidden_size", "num_attention_heads", "max_position_embeddings", "vocab_size")
        for name in (*sizes, "stride"):
            require_number(self, name, at_least=1, whole=True)
        require_number(self, "recurrence_size", at_least=1, whole=True, or_none=True)
        for name, least, most in NUMBERS:
            require_number(self, name, at_least=least, at_most=most)
        require_number(self, "classifier_dropout", at_least=0, at_most=1, or_none=True)
        if self.pad_token_id is not None and self.pad_token_id not in range(self.vocab_size):
            raise FieldError(
                "pad_token_id", self.pad_token_id, f"the vocabulary has {self.vocab_size} ids, counted from 0"
            )
        require_choice(self, "direction", DIRECTIONS)
        require_choice(self, "activation", ACTIVATIONS)

    def _check_together(self) -> None:
        if self.hidden_size % self.num_attention_heads:
            heads = f"num_attention_heads={self.num_attention_heads}"
            raise FieldError("hidden_size", self.hidden_size, f"it cannot be shared by {heads}; choose a multiple")
        if self.stride >= self.max_position_embeddings:
            longest = f"max_position_embeddings={self.max_position_embeddings}"
            raise FieldError("stride", self.stride, f"it must be less than {longest}")
        if self.direction == "bidirectional" and self.recurrence_size == 1:
            raise FieldError("recurrence_size", 1, "two directions need at least 2 channels")
        for name in ("is_decoder", "add_cross_attention"):
            if getattr(self, name):
                raise FieldError(name, getattr(self, name), "a recurrent BERT is an encoder; leave it at False")
        if self.chunk_size_feed_forward:
            raise FieldError(
                "chunk_size_feed_forward", self.chunk_size_feed_forward, "a recurrence cannot be chunked; set 0"
            )

    @classmethod
    def from_bert(cls, bert: BertConfig | str, **changes: Any) -> RecurrentBertConfig:
        """The configuration of a BERT, given itself or by name, with recurrence:

            RecurrentBertForMaskedLM.from_pretrained(name, config=RecurrentBertConfig.from_bert(name))

        starts from that BERT's embeddings and attention, and from untrained recurrences.
        """
        config: PreTrainedConfig = AutoConfig.from_pretrained(bert) if isinstance(bert, str) else bert
        if config.model_type != "bert":
            raise ValueError(f"only a BERT can be given recurrence this way, got a {config.model_type}")
        given = config.to_dict()
        for name in ("model_type", "architectures", "transformers_version", "_name_or_path"):
            given.pop(name, None)
        cls.refuse_unknown(changes)
        return cls.from_dict({**given, **changes})


def _as_large_as(intermediate_size: int) -> int:
    """Three matrices of this size have as many parameters as the two of BERT."""
    size = round(2 / 3 * intermediate_size)
    return max(1, size) if size < 64 else 8 * round(2 / 3 * intermediate_size / 8)
