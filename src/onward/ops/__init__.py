"""The maths of the models: fast versions, each tested against a plain reference."""
