"""The machinery of all studies: runs that are done once, trials, outcomes, intervals, reports."""
