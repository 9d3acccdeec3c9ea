"""How fast the package is, measured side by side with a plain GPT in one run: `make bench`."""
