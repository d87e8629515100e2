"""The built-in parts of a recipe: models, data sets, losses, optimizers."""
