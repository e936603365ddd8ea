"""The other tables and figures of "Adding Recurrence to Pretrained Transformers", and ours."""
