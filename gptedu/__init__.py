"""Inside a GPT: the package behind the book. A module for each concept, from the ground up."""
