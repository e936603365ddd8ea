"""The configuration of window recurrence: every choice by name, none misspelt."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import SubConfigSpec

from ...ops import windows
from ..checking import OURS, CheckedConfig
from .carriers import CARRIERS, POOLINGS, Defaults

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's language model: windows of 300 tokens, one vector into the second layer.
    "decoder": {"residual": False},
    # The paper's question answering encoder: last layer, two hidden layers of the backbone's width.
    "encoder": {"residual": False, "window": 512, "pooled_layers": "last", "hidden": ["width", "width"]},
}

TOKEN_IDS = tuple(f"{token}_token_id" for token in ("bos", "eos", "pad", "sep", "cls", "mask", "unk"))


class WindowRecurrenceConfig(CheckedConfig, PreTrainedConfig):
    """What to carry from window to window, and where to insert it.

    The defaults are the paper's but for `residual`, which is what its carrier needs before content counts;
    `preset("decoder")` and `preset("encoder")` are the paper's to the letter.

    Args:
        carrier: what is carried: "pooled" (the paper's), "spans" (more capacity), "constant" (a control that
            knows nothing of the text) or "none" (plain windows).
        window: how many tokens the backbone sees at once.
        overlap: how many of them the next window reads again.
        insert_at: the layer, counted from 1, whose attention gets the extra keys and values; a list of layers,
            or "all". By default the carrier's own: "all", and 2 for "pooled" without `residual`.
        vectors: how many vectors are inserted; by default 1 + 15 * history for "spans" (1 + those that `history`
            lists), 2 for "pooled" (the document's first token and one that is made of z), 1 without `residual`.
        pooling: "mean", "max" or "attention" (one learned key), for "pooled".
        pooled_layers: "weighted" (a learned mixture of all layers) or "last", for "pooled".
        pooled_positions: "all" positions of a window, or those "before_next_window" starts (they differ when
            windows overlap).
        residual: for "pooled": each layer of insertion has its own z, and h_prev = z + FF(z) enters its attention;
            False: one z for all, and h_prev = FF(z) enters the layer, as in the paper.
        hidden: widths of the hidden layers between z and h_prev, for "pooled"; "width" is the backbone's.
        activation: between those layers, by its name in transformers.
        rank: of the correction maps of "spans".
        history: how many windows "spans" remembers; each has (vectors - 1) / history spans. Or a list, of how many
            spans each has, the last window first: [63, 32, 16] keeps less of a window the older it is.
        truncate_after: back-propagation goes through this many windows; None for all of a call.
        stands_for: the carrier that "constant" is the control of.
        backbone, backbone_name, head, causal: filled in by `add_recurrence`.
    """

    model_type = f"{OURS}window_recurrent"
    sub_configs_defaults: ClassVar = {"backbone": SubConfigSpec(AutoConfig, model_type="gpt2", optional=True)}
    keys_to_ignore_at_inference: ClassVar = ["state"]

    carrier: str = "pooled"
    window: int = 300
    overlap: int = 0
    insert_at: int | list | str | None = None
    vectors: int | None = None
    pooling: str = "mean"
    pooled_layers: str = "weighted"
    pooled_positions: str = "all"
    residual: bool = True
    hidden: list | tuple = (200, 200, 200)
    activation: str = "gelu"
    rank: int = 32
    history: int | list = 1
    stands_for: str = "pooled"
    truncate_after: int | None = None
    backbone: Any = None
    backbone_name: str | None = None
    added_only: bool = False
    head: str | None = None
    causal: bool | None = None

    def __post_init__(self, **kwargs: Any):
        token_ids = {name: kwargs.pop(name) for name in TOKEN_IDS if name in kwargs}
        self.refuse_unknown(kwargs)
        super().__post_init__(**kwargs)
        for name, value in token_ids.items():
            setattr(self, name, value)
        self.hidden = list(self.hidden) if isinstance(self.hidden, (list, tuple)) else [self.hidden]
        self.history = list(self.history) if isinstance(self.history, tuple) else self.history
        self._check()

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> WindowRecurrenceConfig:
        """A recipe of the paper by name: "decoder" (language models) or "encoder" (question answering)."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}: choose one of {', '.join(map(repr, PRESETS))}")
        return cls(**{**PRESETS[name], **overrides})

    def with_carrier(self, carrier: str) -> WindowRecurrenceConfig:
        """The same windows and places of insertion with another carrier: how the controls are made."""
        values = {name: getattr(self, name) for name in self.own_fields()}
        for name in ("backbone", "backbone_name", "head", "causal", "added_only"):
            values.pop(name)
        values |= {"carrier": carrier, "insert_at": self._insert_at, "vectors": self.vector_count}
        if carrier == "constant":
            values["stands_for"] = self._acts_as
        return type(self)(**values)

    def _check(self) -> None:
        for name, allowed in (
            ("carrier", CARRIERS),
            ("stands_for", [name for name in CARRIERS if name not in ("constant", "none")]),
            ("pooling", POOLINGS),
            ("pooled_layers", ("weighted", "last")),
            ("pooled_positions", ("all", "before_next_window")),
            ("activation", ACT2FN),
        ):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise ValueError(f"{name}={value!r} is not known: choose one of {', '.join(sorted(allowed))}")
        for name in ("window", "overlap", "rank"):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} must be a whole number, got {getattr(self, name)!r}")
        if not isinstance(self.residual, bool):
            raise ValueError(f"residual must be True or False, got {self.residual!r}")
        windows.check(self.window, self.overlap)
        self._check_history()
        _ = self._listed_layers
        for name in ("vectors", "truncate_after"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        for width in self.hidden:
            if width != "width" and (isinstance(width, bool) or not isinstance(width, int) or width < 1):
                raise ValueError(f"hidden must list widths of at least 1, or 'width' for the backbone's, got {width!r}")
        least = self._defaults.at_least
        if self.vector_count < least:
            raise ValueError(
                f"{self.carrier} inserts the document's first token and at least one vector more: vectors must be "
                f"at least {least}, got {self.vector_count}"
            )
        if self._acts_as == "spans":
            self._check_spans()
        if self.backbone is not None:
            _ = self.insertion_layers

    def _check_history(self) -> None:
        listed = self.history if isinstance(self.history, list) else [self.history]
        for number in listed:
            if isinstance(number, bool) or not isinstance(number, int):
                raise ValueError(f"history must be a whole number, or a list of them, got {self.history!r}")
            if number < 1:
                raise ValueError(f"history must be at least 1, got {self.history!r}")
        if not listed:
            raise ValueError("history lists no window: name how many spans the last one has, as in [16]")
        falling = sorted(listed, reverse=True)
        if listed != falling:
            raise ValueError(
                f"history={self.history} lists how many spans windows have, the last first: none can have more than "
                f"the one before it in the list, as in {falling}"
            )
        if self.history != 1 and self._acts_as == "pooled":
            raise ValueError(f"history={self.history} is for carrier='spans': 'pooled' remembers one window")

    def _check_spans(self) -> None:
        spans = self.spans_by_age
        if 1 + sum(spans) != self.vector_count:
            cannot = "does not list" if isinstance(self.history, list) else "windows cannot share"
            raise ValueError(
                f"vectors={self.vector_count} are the document's first token and {self.vector_count - 1} spans, which "
                f"history={self.history} {cannot}: choose vectors={1 + sum(spans)}"
            )
        if 1 + spans[0] > self.window:
            raise ValueError(
                f"{1 + spans[0]} spans do not fit into a window of {self.window} tokens: use fewer "
                + ("of the last window in history" if isinstance(self.history, list) else "vectors")
            )

    @property
    def _acts_as(self) -> str:
        return self.stands_for if self.carrier == "constant" else self.carrier

    @property
    def _defaults(self) -> Defaults:
        return CARRIERS[self.carrier].defaults(self)

    @property
    def space(self) -> str:
        """What inserted vectors are: inputs of a "layer", or of its "attention"."""
        return self._defaults.space

    @property
    def _insert_at(self) -> Any:
        return self._defaults.insert_at if self.insert_at is None else self.insert_at

    @property
    def vector_count(self) -> int:
        return self._defaults.vectors if self.vectors is None else self.vectors

    @property
    def spans_by_age(self) -> list[int]:
        """How many spans "spans" keeps of each window that it remembers, the last one first."""
        if isinstance(self.history, list):
            return self.history
        return [(self.vector_count - 1) // self.history] * self.history

    @property
    def insertion_layers(self) -> tuple[int, ...]:
        """The layers that get extra keys and values, counted from 1, in order."""
        listed = self._listed_layers
        if listed is None:
            return tuple(range(1, self.num_hidden_layers + 1))
        if listed[-1] > self.num_hidden_layers:
            raise ValueError(
                f"insert_at={listed[-1]} is beyond the backbone's layers: it has {self.num_hidden_layers}, "
                "counted from 1"
            )
        return listed

    @property
    def _listed_layers(self) -> tuple[int, ...] | None:
        """What can be said of `insert_at` before there is a backbone; None for all layers."""
        wanted = self._insert_at
        if isinstance(wanted, str) and wanted == "all":
            return None
        listed = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
        for layer in listed:
            if isinstance(layer, bool) or not isinstance(layer, int):
                raise ValueError(f"insert_at must be a layer, a list of layers or 'all', got {wanted!r}")
            if layer < 1:
                raise ValueError(f"insert_at={layer} is no layer: they are counted from 1")
        if not listed:
            raise ValueError("insert_at lists no layer: name at least one, or use carrier='none'")
        return tuple(sorted(set(listed)))

    @property
    def hidden_widths(self) -> list[int]:
        return [self.hidden_size if width == "width" else width for width in self.hidden]

    # What transformers' own code (generate, Trainer, pipelines) asks a configuration for.

    def _of_backbone(self, name: str) -> Any:
        if self.backbone is None:
            raise AttributeError(f"{name} is the backbone's, and this configuration has none yet: add_recurrence")
        return getattr(self.backbone.get_text_config(), name)

    @property
    def hidden_size(self) -> int:
        return self._of_backbone("hidden_size")

    @property
    def num_hidden_layers(self) -> int:
        return self._of_backbone("num_hidden_layers")

    @property
    def num_attention_heads(self) -> int:
        return self._of_backbone("num_attention_heads")

    @property
    def vocab_size(self) -> int:
        return self._of_backbone("vocab_size")

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:  # resize_token_embeddings
        self.backbone.get_text_config().vocab_size = value

    @property
    def max_position_embeddings(self) -> int:
        return self._of_backbone("max_position_embeddings")

    def hand_on_token_ids(self) -> None:
        """Gives the backbone the special tokens that were named before there was one."""
        for name in TOKEN_IDS:
            if self.backbone is not None and name in self.__dict__:
                setattr(self, name, self.__dict__.pop(name))


def _token_id(name: str) -> property:
    """The backbone's configuration alone has a special token, as its heads look for it there. Whoever sets it on
    ours (Trainer does, from the tokenizer) sets it there."""

    def read(config: WindowRecurrenceConfig) -> Any:
        if name in config.__dict__ or config.backbone is None:
            return config.__dict__.get(name)
        return getattr(config.backbone.get_text_config(), name, None)

    def write(config: WindowRecurrenceConfig, value: Any) -> None:
        if config.backbone is None:
            config.__dict__[name] = value
        else:
            setattr(config.backbone.get_text_config(), name, value)

    return property(read, write)


for _name in TOKEN_IDS:
    setattr(WindowRecurrenceConfig, _name, _token_id(_name))
