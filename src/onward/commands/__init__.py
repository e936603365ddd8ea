"""The verbs of the command line, a file each. What they need is imported when they run, so that help comes at once."""
