"""What a run of questions takes at the paper's scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import RobertaConfig

from onward.data.questions import SPAN
from onward.models.window_recurrent import WindowRecurrentForSequenceClassification

from ..engine.planning import Plan, plan_of
from ..engine.study import Setting
from .task import QuestionSizes, QuestionTask, variants


def plan(task: QuestionTask, setting: Setting, name: str) -> Plan:
    """Of the encoder, which does nearly all of the work. All windows of a question are kept for their gradients, unless
    there are checkpoints at the bottleneck."""
    sizes: QuestionSizes = setting.sizes
    config = variants(sizes)[name]
    config.backbone, config.head, config.causal = roberta(task.kinds), "sequence-classification", False
    with torch.device("meta"):
        reader = WindowRecurrentForSequenceClassification(config)
        mask = torch.zeros(1, 1, sizes.window, sizes.window)  # without one, transformers needs values to make it
    known = setting.corpora["train"] == task.planned_for
    tokens = sizes.epochs * task.tokens(setting, sizes.questions) if known else None
    read = plan_of(lambda: reader.backbone, sizes.window, sizes.rows, tokens, sizes.checkpointing, attention_mask=mask)
    room = sizes.window - task.question_tokens
    windows = 1 if sizes.checkpointing else -(-task.tokens(setting, 1) // room)
    of_span_head = 2 * config.hidden_size + 2 if SPAN in task.kinds else 0
    return replace(
        read,
        parameters=reader.num_parameters() + of_span_head,
        flops_per_token=read.flops_per_token * sizes.window / room,  # the question is in every window
        kept=windows * read.kept,
    )


def roberta(kinds: Sequence[str]) -> RobertaConfig:
    """The configuration of roberta-base, without downloading it."""
    return RobertaConfig(
        vocab_size=50_265,
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=3072,
        max_position_embeddings=514,
        type_vocab_size=1,
        layer_norm_eps=1e-5,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
        id2label=dict(enumerate(kinds)),
    )
