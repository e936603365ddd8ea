"""The configuration of window recurrence."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, ClassVar

from transformers import AutoConfig, PreTrainedConfig
from transformers.activations import ACT2FN
from transformers.configuration_utils import SubConfigSpec

from ...ops import windows
from ...utils.fields import FieldError, require_choice, require_number
from ..checking import MODEL_TYPE_PREFIX, CheckedConfig
from .carriers import CARRIERS, POOLINGS, SCORES, Defaults
from .sizes import slots_in_equal_bytes

PRESETS: dict[str, dict[str, Any]] = {
    # The paper's language model: windows of 300 tokens, one vector into the second layer.
    "decoder": {"carrier": "pooled", "residual": False},
    # The paper's question answering encoder: last layer, two hidden layers of the backbone's width.
    "encoder": {
        "carrier": "pooled",
        "residual": False,
        "window": 512,
        "pooled_layers": "last",
        "hidden": ["width", "width"],
    },
}

CHOICES: dict[str, Collection[Any]] = {
    "carrier": CARRIERS,
    "pooling": POOLINGS,
    "pooled_layers": ("weighted", "last"),
    "pooled_positions": ("all", "before_next_window"),
    "activation": ACT2FN,
    "residual": (True, False),
    "score": SCORES,
}
TOKEN_IDS = tuple(f"{token}_token_id" for token in ("bos", "eos", "pad", "sep", "cls", "mask", "unk"))


class WindowRecurrenceConfig(CheckedConfig, PreTrainedConfig):
    """What is carried from window to window, and where it is inserted.

    The default carrier is the one that lost least on validation novels at every number of slots (docs/carriers.md).
    `preset("decoder")` and `preset("encoder")` are exactly the paper's; other defaults of `pooled` are the paper's
    except for `residual`, without which the memory's content hardly counts.

    Args:
        carrier: what is carried: "matched" (the tokens that each head needs most, and a few slots that stand for all
            others), "selected" (these tokens alone), "recent" (the last tokens), "pooled" (the paper's), "spans"
            (means), "constant" (a control that does not depend on the text) or "none" (plain windows).
        window: how many tokens the backbone sees at once.
        overlap: how many of them the next window repeats.
        slots: how many keys and values each head has beside its window, for every carrier but "pooled".
        sinks: how many of them are the document's first tokens, which models attend to when nothing else fits.
        score: by which "selected" and "matched" choose tokens: "attention" (what the next window would give them),
            "received" (the same, in the mean of all windows so far) or "key_difference".
        insert_at: the layer, counted from 1, whose attention gets the extra keys and values; a list of layers, or
            "all". By default the carrier's own: "all", and 2 for "pooled" without `residual`.
        vectors: how many vectors "pooled" inserts; by default 2 (the document's first token and one made of z), 1
            without `residual`. For "spans" it is another name of `slots`.
        pooling: "mean", "max" or "attention" (one learned key), for "pooled".
        pooled_layers: "weighted" (a learned mixture of all layers) or "last", for "pooled".
        pooled_positions: "all" positions of a window, or those "before_next_window" starts (which differ if windows
            overlap).
        residual: for "pooled": each layer of insertion has its own z, and h_prev = z + FF(z) enters its attention;
            False: one z for all, and h_prev = FF(z) enters the layer, as in the paper.
        hidden: widths of the hidden layers between z and h_prev, for "pooled"; "width" is the backbone's.
        activation: between those layers, by its name in transformers.
        rank: of the correction maps of slots and of "spans".
        history: how many windows "spans" remembers; each has (slots - 1) / history spans. Or a list of the number of
            spans of each, the last window first: [63, 32, 16] keeps less of older windows. By default as many windows
            as it takes to fill the slots with tokens.
        truncate_after: back-propagation goes through this many windows; None for all of a call.
        stands_for: the carrier that "constant" is the control of.
        tokens_at_once: how many tokens may run through the backbone at once, in several windows of each row. More are
            faster up to a point, and need more memory; results are the same.
        backbone, backbone_name, head, causal, slot_shapes: set by `add_recurrence`.
    """

    model_type = f"{MODEL_TYPE_PREFIX}window_recurrent"
    sub_configs_defaults: ClassVar = {"backbone": SubConfigSpec(AutoConfig, model_type="gpt2", optional=True)}
    keys_to_ignore_at_inference: ClassVar = ["state"]

    carrier: str = "matched"
    window: int = 300
    overlap: int = 0
    slots: int | None = None
    sinks: int = 1
    score: str = "received"
    insert_at: int | list | str | None = None
    vectors: int | None = None
    pooling: str = "mean"
    pooled_layers: str = "weighted"
    pooled_positions: str = "all"
    residual: bool = True
    hidden: list | tuple = (200, 200, 200)
    activation: str = "gelu"
    rank: int = 32
    history: int | list | None = None
    stands_for: str = "matched"
    truncate_after: int | None = None
    tokens_at_once: int = 2048
    backbone: Any = None
    backbone_name: str | None = None
    added_only: bool = False
    head: str | None = None
    causal: bool | None = None
    slot_shapes: Any = None  # by layer: key-value heads, features of a key, of a value

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
        """A configuration of the paper by name: "decoder" (language models) or "encoder" (question answering)."""
        if name not in PRESETS:
            raise ValueError(f"no preset {name!r}: choose one of {', '.join(map(repr, PRESETS))}")
        return cls(**{**PRESETS[name], **overrides})

    def with_carrier(self, carrier: str) -> WindowRecurrenceConfig:
        """The same windows and layers of insertion with another carrier, for controls.

        It carries as much: the same number of slots or vectors, and slots in a vector's place as many as have the same
        bytes, at least the sinks and one more.
        """
        values = {name: getattr(self, name) for name in self.own_fields()}
        for name in ("backbone", "backbone_name", "head", "causal", "added_only", "slot_shapes"):
            values.pop(name)
        values |= {"carrier": carrier, "insert_at": self._insert_at, "slots": None, "vectors": None}
        if carrier == "constant":
            values["stands_for"] = self._acts_as
        acts_as = self._acts_as if carrier == "constant" else carrier
        values["slots" if _counts_slots(acts_as) else "vectors"] = self.vector_count
        if acts_as != "spans":
            values["history"] = None
        if CARRIERS[acts_as].takes_slots:
            values["slots"] = slots_in_equal_bytes(self, self._acts_as)
        return type(self)(**values)

    def with_slots(self, slots: int | None) -> WindowRecurrenceConfig:
        """The same with another number of slots, for the same model; None for the carrier's own number."""
        if not self.takes_slots:
            counted = "carries nothing" if self._acts_as == "none" else "has as many vectors as it was made with"
            raise FieldError("slots", slots, f"carrier={self.carrier!r} {counted}; only memories of slots can change")
        changed = copy.copy(self)
        changed.slots = slots
        changed._check()
        return changed

    def _check(self) -> None:
        for name, allowed in CHOICES.items():
            require_choice(self, name, allowed)
        require_choice(self, "stands_for", [name for name in CARRIERS if name not in ("constant", "none")])
        require_number(self, "window", whole=True)
        require_number(self, "overlap", whole=True)
        windows.check(self.window, self.overlap)
        require_number(self, "rank", at_least=1, whole=True)
        for name in ("slots", "vectors", "truncate_after"):
            require_number(self, name, at_least=1, whole=True, or_none=True)
        require_number(self, "sinks", at_least=0, whole=True)
        require_number(self, "tokens_at_once", at_least=1, whole=True)
        if self.slots is not None and self._acts_as == "none":
            raise FieldError("slots", self.slots, f"carrier={self.carrier!r} carries nothing; leave it out")
        if self.slots is not None and not _counts_slots(self._acts_as):
            raise FieldError("slots", self.slots, f"carrier={self.carrier!r} inserts vectors; use vectors={self.slots}")
        if self.vectors is not None and self.takes_slots:
            raise FieldError("vectors", self.vectors, f"carrier={self.carrier!r} has slots; use slots={self.vectors}")
        for width in self.hidden:
            if width != "width" and not _is_count(width):
                raise FieldError(
                    "hidden", self.hidden, f"{width!r} is neither a width of at least 1 nor 'width', the backbone's"
                )
        self._check_history()
        self._check_insertion()
        least = self._defaults.at_least
        if self.takes_slots and self.vector_count < least:
            self._refuse_sinks()
        if self.vector_count < least:
            problem = f"{self.carrier} keeps the document's first token and more: there must be at least {least}"
            raise FieldError(self._counted, self.vector_count, problem)
        if self._acts_as == "spans":
            self._check_spans()

    def _refuse_sinks(self) -> None:
        count = self.vector_count
        if self.sinks == 1:
            raise FieldError("slots", count, "sinks=1 takes one of them; choose at least 2, or sinks=0")
        problem = f"they are a part of the {count} slots, and at least one must be left for other tokens"
        raise FieldError(
            "sinks", self.sinks, f"{problem}; choose at most {count - 1}, or at least {self.sinks + 1} slots"
        )

    def _check_insertion(self) -> None:
        wanted = self._insert_at
        if isinstance(wanted, str) and wanted == "all":
            return
        listed = list(wanted) if isinstance(wanted, (list, tuple)) else [wanted]
        if not listed:
            raise FieldError("insert_at", wanted, "it lists no layer; name at least one, or use carrier='none'")
        if not all(_is_count(layer) for layer in listed):
            raise FieldError("insert_at", wanted, "it must be a layer, counted from 1, a list of layers, or 'all'")
        if self.backbone is not None and max(listed) > self.num_hidden_layers:
            problem = f"the backbone has {self.num_hidden_layers} layers, counted from 1"
            raise FieldError("insert_at", wanted, problem)

    def _check_history(self) -> None:
        if self.history is None:
            return
        listed = self.history if isinstance(self.history, list) else [self.history]
        if not listed:
            raise FieldError("history", self.history, "it lists no window; name the spans of the last one, as in [16]")
        if not all(_is_count(number) for number in listed):
            raise FieldError("history", self.history, "it must be a whole number of at least 1, or a list of them")
        falling = sorted(listed, reverse=True)
        if listed != falling:
            problem = (
                f"it lists spans of windows, the last first, and none may have more than a later one, as in {falling}"
            )
            raise FieldError("history", self.history, problem)
        if self.history != 1 and self._acts_as == "pooled":
            raise FieldError("history", self.history, "it is for carrier='spans'; 'pooled' remembers one window")
        if self.takes_slots:
            raise FieldError("history", self.history, f"it is for carrier='spans'; {self._acts_as!r} has slots")

    def _check_spans(self) -> None:
        spans = self.spans_by_age
        if 1 + sum(spans) != self.vector_count and self.history is not None:
            problem = (
                f"with history={self.history} there must be {1 + sum(spans)}: the document's first token and "
                f"{sum(spans)} spans"
            )
            raise FieldError(self._counted, self.vector_count, problem)
        if 1 + spans[0] > self.window:
            problem = f"{1 + spans[0]} vectors of one window do not fit into its {self.window} tokens; use fewer"
            if isinstance(self.history, list):
                raise FieldError("history", self.history, problem)
            raise FieldError(self._counted, self.vector_count, problem)

    @property
    def _acts_as(self) -> str:
        return self.stands_for if self.carrier == "constant" else self.carrier

    @property
    def takes_slots(self) -> bool:
        """Whether keys and values are carried, and not hidden vectors."""
        return CARRIERS[self._acts_as].takes_slots

    @property
    def _counted(self) -> str:
        """The field that says how much is carried."""
        return "slots" if self.takes_slots or self.slots is not None else "vectors"

    @property
    def _defaults(self) -> Defaults:
        return CARRIERS[self.carrier].defaults(self)

    @property
    def space(self) -> str | None:
        """Whether inserted vectors are inputs of a "layer" or of its "attention"; None for keys and values."""
        return self._defaults.space

    @property
    def _insert_at(self) -> Any:
        return self._defaults.insert_at if self.insert_at is None else self.insert_at

    @property
    def vector_count(self) -> int:
        """How many keys and values stand in front of a window."""
        if self.slots is not None:
            return self.slots
        return self._defaults.vectors if self.vectors is None else self.vectors

    @property
    def spans_by_age(self) -> list[int]:
        """The number of spans of each window that "spans" remembers, the last window first."""
        if isinstance(self.history, list):
            return self.history
        spans = self.vector_count - 1
        if self.history is not None:
            return [spans // self.history] * self.history
        each = max(1, self.window - 1)
        return [each] * (spans // each) + [spans % each] * bool(spans % each)

    @property
    def insertion_layers(self) -> tuple[int, ...]:
        """The layers that get extra keys and values, counted from 1, in order."""
        self._check_insertion()
        return self._listed_layers or tuple(range(1, self.num_hidden_layers + 1))

    @property
    def _listed_layers(self) -> tuple[int, ...] | None:
        """The layers that `insert_at` lists, in order; None for all."""
        wanted = self._insert_at
        if wanted == "all":
            return None
        return tuple(sorted(set(wanted))) if isinstance(wanted, (list, tuple)) else (wanted,)

    @property
    def hidden_widths(self) -> list[int]:
        return [self.hidden_size if width == "width" else width for width in self.hidden]

    # Fields that transformers' own code (generate, Trainer, pipelines) needs.

    def _of_backbone(self, name: str) -> Any:
        if self.backbone is None:
            raise AttributeError(f"{name} is the backbone's, and this configuration has none yet: use add_recurrence")
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
        """Passes special tokens that were set before there was a backbone to its configuration."""
        for name in TOKEN_IDS:
            if self.backbone is not None and name in self.__dict__:
                setattr(self, name, self.__dict__.pop(name))


def _counts_slots(carrier: str) -> bool:
    """Whether `slots` says how much a carrier carries."""
    return CARRIERS[carrier].takes_slots or carrier == "spans"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _token_id(name: str) -> property:
    """A special token, stored in the backbone's configuration, where its heads look for it. Setting it on ours, as
    Trainer does, sets it there."""

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
