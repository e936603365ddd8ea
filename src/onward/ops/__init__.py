"""The maths of the models: fast, and each with a plain reference in the tests or beside it."""
