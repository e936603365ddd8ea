"""Whether the Hugging Face Hub answers, and which names it can have."""

from __future__ import annotations

import os

import huggingface_hub
from huggingface_hub import constants as hub_constants
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

PROBE_SECONDS = 5.0


class HubUnreachable(ConnectionError):
    """Something must be downloaded from the Hub, and the Hub does not answer."""


def is_hub_name(name: str) -> bool:
    """Whether a repository can have this name: name or owner/name, and nothing that leads to other folders."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def hub_is_reachable(timeout: float = PROBE_SECONDS) -> bool:
    """Asks the Hub once. Its own client retries every file for 23 seconds before it gives up."""
    if hub_constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return False
    try:
        # The client's own session respects proxies, certificates and HF_ENDPOINT, as a download does.
        huggingface_hub.get_session().head(hub_constants.ENDPOINT, timeout=timeout)
    except Exception:  # the HTTP library, and so its errors, depend on the version of huggingface_hub
        return False
    return True
