"""Block-Recurrent Transformers: state vectors, carried from block to block by a gated transformer cell."""

from .configuration_block_recurrent import PRESETS, BlockRecurrentConfig
from .language_model import BlockRecurrentForCausalLM
from .modeling_block_recurrent import BlockRecurrentLayer, BlockRecurrentModel, BlockRecurrentOutput
from .state import BlockState

__all__ = [
    "PRESETS",
    "BlockRecurrentConfig",
    "BlockRecurrentForCausalLM",
    "BlockRecurrentLayer",
    "BlockRecurrentModel",
    "BlockRecurrentOutput",
    "BlockState",
]
