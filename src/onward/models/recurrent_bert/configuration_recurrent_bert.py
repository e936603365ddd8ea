"""The configuration of BERT with a light recurrence in the place of its feed-forward blocks."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, BertConfig, PreTrainedConfig

from ...ops.recurrence import ACTIVATIONS
from ...utils.fields import is_number
from ..checking import OURS, CheckedConfig

# What cannot be computed with is refused here, and not in a kernel of torch. A norm needs a little more than 0.
NUMBERS = (
    ("hidden_dropout_prob", 0, 1),
    ("attention_probs_dropout_prob", 0, 1),
    ("initializer_range", 0, 1e6),
    ("layer_norm_eps", 1e-38, 1),
)
DIRECTIONS = ("forward", "bidirectional", "alternating")


class RecurrentBertConfig(CheckedConfig, BertConfig):
    """All of BertConfig, and how its feed-forward blocks are replaced.

    Args:
        intermediate_size: of the feed-forward blocks that are not there; `recurrence_size` follows from it.
        recurrence_size: channels of the recurrence; by default two thirds of `intermediate_size`, with which a model
            has as many parameters as BERT, to the next multiple of 8, which processors like better.
        stride: a token's state comes from the one `stride` tokens before: so many fewer steps follow each other.
        direction: "forward"; "bidirectional": half of the channels run from the end to the beginning; "alternating":
            every second layer does.
        activation: "silu", the paper's Swish, or "relu", with which states are running maxima.
    """

    model_type = f"{OURS}recurrent_bert"

    recurrence_size: int | None = None
    stride: int = 1
    direction: str = "forward"
    activation: str = "silu"

    def __post_init__(self, **kwargs: Any):
        self.refuse_unknown(kwargs)
        for name in ("intermediate_size", "hidden_size", "num_attention_heads", "max_position_embeddings"):
            self.require_whole(name)
        self.require_whole("recurrence_size", or_none=True)
        self.require_whole("stride")
        for name, least, most in NUMBERS:
            value = getattr(self, name)
            if not is_number(value) or not least <= value <= most:
                raise ValueError(f"{name} must be a number from {least} to {most}, got {value!r}")
        if self.classifier_dropout is not None and not (
            is_number(self.classifier_dropout) and 0 <= self.classifier_dropout <= 1
        ):
            raise ValueError(f"classifier_dropout must be None or a share from 0 to 1, got {self.classifier_dropout!r}")
        self.require_whole("vocab_size")
        if self.pad_token_id is not None and self.pad_token_id not in range(self.vocab_size):
            raise ValueError(
                f"pad_token_id={self.pad_token_id!r}: the vocabulary has {self.vocab_size} ids, counted from 0"
            )
        self.require_choice("direction", DIRECTIONS)
        self.require_choice("activation", tuple(ACTIVATIONS))
        if self.recurrence_size is None:
            self.recurrence_size = _as_large_as(self.intermediate_size)
        super().__post_init__(**kwargs)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} cannot be shared by num_attention_heads={self.num_attention_heads}: "
                "choose a multiple"
            )
        if self.stride >= self.max_position_embeddings:
            raise ValueError(
                f"stride={self.stride} reaches beyond any text of max_position_embeddings="
                f"{self.max_position_embeddings} tokens: choose a smaller one"
            )
        if self.direction == "bidirectional" and self.recurrence_size < 2:
            raise ValueError(f"recurrence_size={self.recurrence_size} has no two halves: choose at least 2")
        if self.is_decoder or self.add_cross_attention:
            raise ValueError("a recurrent BERT is an encoder: leave is_decoder and add_cross_attention at False")
        if self.chunk_size_feed_forward:
            raise ValueError(
                f"chunk_size_feed_forward={self.chunk_size_feed_forward}: a recurrence cannot be cut into chunks; set 0"
            )

    @classmethod
    def from_bert(cls, bert: BertConfig | str, **changes: Any) -> RecurrentBertConfig:
        """The configuration of a BERT, by itself or by its name, with recurrence: with it

            RecurrentBertForMaskedLM.from_pretrained(name, config=RecurrentBertConfig.from_bert(name))

        starts from that BERT's embeddings and attention, and from recurrences that know nothing yet.
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
    """Three matrices of this size have as many numbers as BERT's two."""
    size = round(2 / 3 * intermediate_size)
    return max(1, size) if size < 64 else 8 * round(2 / 3 * intermediate_size / 8)
