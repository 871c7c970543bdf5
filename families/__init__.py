"""One folder per family, with all of its Python; `specs.family` finds them by their folders."""
