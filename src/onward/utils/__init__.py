"""Files, JSON, locks, processes and fields: nothing here knows of models or texts."""
