"""accelerate collects garbage before every run: what was imported before the tests need not be searched each time."""

import gc

gc.collect()
gc.freeze()
