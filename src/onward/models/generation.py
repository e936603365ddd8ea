"""Generation in constant memory, for every model whose `state` is all that it needs to continue."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from transformers import GenerationMixin

from .state import CarriedState

_NO_WAY_BACK = "a state cannot forget tokens that it has processed"
_OWN_CACHE = "the state is the cache, and of constant size"
NOT_SUPPORTED = {
    "assistant_model": _NO_WAY_BACK,
    "is_assistant": f"this model cannot be another one's assistant, as {_NO_WAY_BACK}",
    "prompt_lookup_num_tokens": _NO_WAY_BACK,
    "cache_implementation": _OWN_CACHE,
    "past_key_values": "pass the `state` of an earlier call instead",
    "prefill_chunk_size": "process the prompt in pieces with the model itself, and pass `state`",
    "guidance_scale": "it needs a second state, of the text without its prompt",
    "output_attentions": "there is never a whole attention map in memory",
}
"""Options of `generate` that need a growing cache, and what to do instead or why."""
NOT_OF_A_CALL = ("labels", "next_sequence_length")
"""Arguments that a single call does not take."""


class GeneratesOnward(GenerationMixin):
    """transformers' `generate` with the carried state in place of the cache.

    A model must list GenerationMixin among its own bases as well, where transformers looks for the name.
    """

    def generate(self, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """transformers' `generate`; with the `state` of an earlier call, `input_ids` are the new tokens only.

        With `return_dict_in_generate=True` the state after the text is the output's `past_key_values`.
        """
        config = kwargs.get("generation_config")
        for name, reason in NOT_SUPPORTED.items():
            value = kwargs.get(name, getattr(config, name, None))
            if value and not (name == "guidance_scale" and value == 1):
                raise ValueError(f"generate with {name} is not supported: {reason}")
        return super().generate(*args, **kwargs)  # type: ignore[misc]

    def prepare_inputs_for_generation(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        state: CarriedState | None = None,
        inputs_embeds: Tensor | None = None,
        is_first_iteration: bool = False,
        logits_to_keep: int = 1,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The arguments of the next call: the tokens that are not yet in the state, and everything else unchanged."""
        # After the first call everything but the last token is in the state.
        if not is_first_iteration:
            input_ids, attention_mask, inputs_embeds = input_ids[:, -1:], None, None
            kwargs.pop("prefix_length", None)  # the state keeps it
        elif attention_mask is not None:
            attention_mask = attention_mask[:, -(input_ids if inputs_embeds is None else inputs_embeds).shape[1] :]
            if not bool(attention_mask[:, -1].all()):
                raise ValueError(
                    "a prompt is padded at the right, where generation continues: pad at the left "
                    "(tokenizer.padding_side = 'left')"
                )
        if kwargs.get("token_type_ids") is not None:
            kwargs["token_type_ids"] = kwargs["token_type_ids"][:, -input_ids.shape[1] :]
        if inputs_embeds is not None:  # a prompt without ids; later tokens have them
            kwargs["inputs_embeds"] = inputs_embeds
        return {name: value for name, value in kwargs.items() if name not in NOT_OF_A_CALL} | {
            "input_ids": input_ids if inputs_embeds is None else None,
            "attention_mask": attention_mask,
            "state": state,
            "use_cache": True,
            "logits_to_keep": logits_to_keep,
        }

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False  # the state holds the cache

    def _reorder_cache(self, state: Any, beam_idx: Tensor) -> Any:
        return state.select(beam_idx)

    def _expand_inputs_for_generation(self, expand_size: int = 1, **kwargs: Any) -> Any:  # type: ignore[override]
        starts = kwargs.pop("starts_document", None)  # for the prompt only, and before rows are repeated for beams
        if starts is not None and kwargs.get("state") is not None:
            kwargs["state"] = kwargs["state"].reset(starts)
        if isinstance(kwargs.get("prefix_length"), (list, tuple)):
            kwargs["prefix_length"] = torch.tensor(
                kwargs["prefix_length"]
            )  # transformers repeats tensors with the rows
        expand = GenerationMixin._expand_inputs_for_generation
        input_ids, model_kwargs = expand(cast(Any, self), expand_size=expand_size, **kwargs)
        state = model_kwargs.get("state")
        if state is not None and expand_size > 1:
            model_kwargs["state"] = state.select([r for r in range(state.batch_size) for _ in range(expand_size)])
        return input_ids, model_kwargs
