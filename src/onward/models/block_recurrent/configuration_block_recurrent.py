"""The configuration of block-recurrent models, and the rows of the paper's tables as presets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from ...utils.fields import FieldError, require_choice, require_number
from ..checking import MODEL_TYPE_PREFIX, CheckedConfig
from .gates import CONFIGURATIONS, GATES, TANH_CHOICES

WHOLE_NUMBERS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "window",
    "segment_length",
    "relative_attention_num_buckets",
    "relative_attention_max_distance",
    "blocks_per_checkpoint",
)
CHOICES = {
    "gate": GATES,
    "gate_configuration": CONFIGURATIONS,
    "gate_tanh": TANH_CHOICES,
    "hidden_act": ACT2FN,
    "feedback": (True, False),
    "attends_to_itself": (True, False),
}


class BlockRecurrentConfig(CheckedConfig, PreTrainedConfig):
    """A decoder with sliding attention, some of whose layers carry state vectors from block to block.

    The defaults are the paper's "Rec:fixed:skip"; `preset(name)` gives every row of its tables.

    Args:
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size, hidden_act: as in other models.
        head_dim: by default hidden_size / num_attention_heads.
        window: how many tokens back a token sees, and the length of a block.
        segment_length: how many tokens of each document a training step sees; the model itself takes any length.
        recurrent_layers: the layers that carry states, counted from 1; an empty list for none.
        num_states: state vectors of a recurrent layer; by default as many as `window`.
        gate: "fixed" or "lstm".
        gate_configuration: "dual", "single" or "skip".
        gate_tanh: where the gate's input goes through tanh: "lstm", in that gate, as in the paper, or "single", in
            both gates of that configuration only, as in the authors' code.
        feedback: every layer attends to the states of the last recurrent layer; blocks are then processed one by one.
        memory_size: how many tokens one layer remembers as keys and values; 0 for none.
        memory_top_k: how many of them each token attends to; memory_layer: the layer, counted from 1; by default the
            9th of 12, or the one at that height.
        attends_to_itself: True: a token sees itself and the window-1 tokens before it; False, as in the authors'
            code: the window tokens before it, and not itself.
        relative_attention_num_buckets, relative_attention_max_distance: of T5's position bias.
        initial_attention_scale: queries and keys have length 1; this factor is learned, per head.
        dropout: on the embeddings, the input of attention, its weights, and the output of each half of a layer; none
            along the document.
        blocks_per_checkpoint: with gradient checkpointing, the state is kept after every Nth block; with feedback,
            after every block.
    """

    model_type = f"{MODEL_TYPE_PREFIX}block_recurrent"
    keys_to_ignore_at_inference: ClassVar = ["state"]

    vocab_size: int = 32_000
    hidden_size: int = 1024
    num_hidden_layers: int = 12
    num_attention_heads: int = 8
    head_dim: int | None = None
    intermediate_size: int = 4096
    hidden_act: str = "relu"
    window: int = 512
    segment_length: int = 4096
    recurrent_layers: list | tuple = (10,)
    num_states: int | None = None
    gate: str = "fixed"
    gate_configuration: str = "skip"
    gate_tanh: str = "lstm"
    feedback: bool = False
    memory_layer: int | None = None
    memory_size: int = 0
    memory_top_k: int = 32
    attends_to_itself: bool = True
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    initial_attention_scale: float = 1.0
    dropout: float = 0.05
    rms_norm_eps: float = 1e-6
    blocks_per_checkpoint: int = 1
    bos_token_id: int | None = None
    eos_token_id: int | list | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any):
        self.refuse_unknown(kwargs)
        self._check_values()
        if self.head_dim is None:
            self.head_dim = even_head_dim(self.hidden_size, self.num_attention_heads)
        if self.num_states is None:
            self.num_states = self.window
        super().__post_init__(**kwargs)
        self._check_recurrence()
        self._check_memory()

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> BlockRecurrentConfig:
        """A row of the paper's tables by its name: "Rec:fixed:skip", "Slide:13L", "XL:2048" and so on.

        Overridden sizes are those of the 12-layer base model, to which the row keeps its proportion, so that rows of
        one reduced size stay comparable: with `num_hidden_layers=6`, "Slide:13L" has 7 layers and "Rec:fixed:skip"
        its recurrent layer at 5; with `window=128`, "XL:1024" has a window of 256.
        """
        if not isinstance(name, str) or name not in PRESETS:
            raise ValueError(f"no preset {name!r}: choose one of {', '.join(PRESETS)}")
        return cls(**in_proportion(PRESETS[name], overrides))

    def _check_values(self) -> None:
        for name in WHOLE_NUMBERS:
            require_number(self, name, at_least=1, whole=True)
        for name in ("head_dim", "num_states", "memory_layer"):
            require_number(self, name, at_least=1, whole=True, or_none=True)
        require_number(self, "memory_size", at_least=0, whole=True)
        require_number(self, "initial_attention_scale")
        require_number(self, "rms_norm_eps", above=0)
        require_number(self, "dropout", at_least=0, below=1)
        for name, allowed in CHOICES.items():
            require_choice(self, name, allowed)
        buckets, distance = self.relative_attention_num_buckets, self.relative_attention_max_distance
        if buckets < 2:
            raise FieldError("relative_attention_num_buckets", buckets, "there must be at least 2 buckets")
        if distance <= buckets // 2:
            problem = f"half of the {buckets} buckets must lie within the distance; choose more than {buckets // 2}"
            raise FieldError("relative_attention_max_distance", distance, problem)

    def _check_recurrence(self) -> None:
        layers = self.recurrent_layers
        if not isinstance(layers, (list, tuple)):
            raise FieldError("recurrent_layers", layers, "it must be a list of layers, counted from 1")
        for layer in layers:
            if isinstance(layer, bool) or not isinstance(layer, int) or not 1 <= layer <= self.num_hidden_layers:
                raise FieldError(
                    "recurrent_layers",
                    layers,
                    f"layers are counted from 1 to {self.num_hidden_layers}, and {layer!r} is none of them; list some, "
                    "or none as [], or use preset(name, ...), which keeps the proportions",
                )
        self.recurrent_layers = sorted(set(layers))
        if self.feedback and not layers:
            raise FieldError(
                "feedback", True, "there is no recurrent layer whose states to attend to; set recurrent_layers"
            )

    def _check_memory(self) -> None:
        if not self.memory_size:
            if self.memory_layer is not None:
                raise FieldError("memory_layer", self.memory_layer, "it remembers nothing unless memory_size is set")
            return
        require_number(self, "memory_top_k", at_least=1, whole=True)
        if self.memory_layer is None:
            self.memory_layer = layer_at(9 / 12, self.num_hidden_layers)
        if self.memory_layer > self.num_hidden_layers:
            raise FieldError(
                "memory_layer", self.memory_layer, f"layers are counted from 1 to {self.num_hidden_layers}"
            )
        if self.memory_top_k > self.memory_size:
            raise FieldError("memory_top_k", self.memory_top_k, f"it must be at most memory_size={self.memory_size}")
        if self.memory_size % self.window:
            fitting = max(1, self.memory_size // self.window) * self.window
            problem = (
                f"it must be a multiple of window={self.window}, since whole blocks are remembered; {fitting} fits"
            )
            raise FieldError("memory_size", self.memory_size, problem)

    @property
    def reads_states(self) -> tuple[bool, ...]:
        """For each layer, whether its tokens attend to states."""
        return tuple(self.feedback or layer in self.recurrent_layers for layer in range(1, self.num_hidden_layers + 1))

    @property
    def attention_width(self) -> int:
        """H * D, the width of all heads of a layer together."""
        assert self.head_dim is not None
        return self.num_attention_heads * self.head_dim


# -- the rows of the paper's tables: what each changes in the base model, which has 12 layers and no recurrence

BASE: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "window": 512,
    "segment_length": 4096,
}


def recurrent(gate: str, configuration: str, **more: Any) -> dict[str, Any]:
    return {"recurrent_at": 10 / 12, "gate": gate, "gate_configuration": configuration, **more}


LARGE: dict[str, Any] = {"heads": 2, "mlp": 2}

PRESETS: dict[str, dict[str, Any]] = {
    "XL:512": {"one_block": True},
    "XL:1024": {"one_block": True, "windows": 2},
    "XL:2048": {"one_block": True, "windows": 4},
    "Slide:12L": {},
    "Slide:13L": {"more_layers": 1},
    **{f"Rec:{gate}:{form}": recurrent(gate, form) for gate in ("lstm", "fixed") for form in CONFIGURATIONS},
    "Feedback:lstm:single": recurrent("lstm", "single", feedback=True),
    "Feedback:fixed:skip": recurrent("fixed", "skip", feedback=True),
    "Memorizing:32k": {"one_block": True, "memory_windows": 64},
    "Slide:13L:large": {"more_layers": 1, **LARGE},
    "Rec:lstm:single:large": recurrent("lstm", "single", **LARGE),
    "Rec:fixed:skip:large": recurrent("fixed", "skip", **LARGE),
}


def in_proportion(row: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row's configuration if the base model has the sizes given in `overrides`."""
    base = BASE | {name: overrides[name] for name in (*BASE, "intermediate_size") if name in overrides}
    for name in base:
        require_number(SimpleNamespace(**base), name, at_least=1, whole=True)
    if "head_dim" not in overrides:
        even_head_dim(base["hidden_size"], base["num_attention_heads"])
    base.setdefault("intermediate_size", 4 * base["hidden_size"])
    if "window" in overrides and "segment_length" not in overrides:
        base["segment_length"] = BASE["segment_length"] // BASE["window"] * base["window"]
    depth, window = base["num_hidden_layers"], base["window"] * row.get("windows", 1)
    fields: dict[str, Any] = {
        "hidden_size": base["hidden_size"],
        "num_hidden_layers": depth + row.get("more_layers", 0),
        "num_attention_heads": base["num_attention_heads"] * row.get("heads", 1),
        "head_dim": base["hidden_size"] // base["num_attention_heads"],
        "intermediate_size": base["intermediate_size"] * row.get("mlp", 1),
        "window": window,
        "segment_length": window if row.get("one_block") else base["segment_length"],
        "recurrent_layers": [layer_at(row["recurrent_at"], depth)] if "recurrent_at" in row else [],
    }
    if "memory_windows" in row:
        fields["memory_size"] = row["memory_windows"] * window
    fields |= {name: row[name] for name in ("gate", "gate_configuration", "feedback") if name in row}
    return fields | {name: value for name, value in overrides.items() if name not in (*BASE, "intermediate_size")}


def even_head_dim(width: int, heads: int) -> int:
    if width % heads:
        problem = f"it cannot be shared by num_attention_heads={heads}; choose a multiple, or set head_dim"
        raise FieldError("hidden_size", width, problem)
    return width // heads


def layer_at(share: float, depth: int) -> int:
    """The 10th of 12 layers, the 5th of 6: at the same height in any stack."""
    return max(1, round(share * depth))
