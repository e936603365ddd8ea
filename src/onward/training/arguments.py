"""What all trainings here ask of transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import TrainingArguments

from ..utils.processes import on_cpu


def base_arguments(output_dir: str | Path, seed: int, **more: Any) -> TrainingArguments:
    arguments = TrainingArguments(
        output_dir=str(output_dir),
        seed=seed,
        data_seed=seed,
        use_cpu=on_cpu(),
        dataloader_pin_memory=torch.accelerator.is_available(),
        remove_unused_columns=False,
        restore_callback_states_from_checkpoint=True,
        include_num_input_tokens_seen="non_padding",
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        log_level="passive",
        log_level_replica="passive",
        **{"report_to": "none", **more},
    )
    # Several GPUs without a launcher would multiply the batch, in threads that share one model and cannot carry states.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments
