"""The tables of "Block-Recurrent Transformers": Table 1, Table 2 and section 4.5."""
