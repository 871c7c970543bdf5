"""`python -m kernwright` is the same as the `kernwright` command."""

from .cli import main

if __name__ == "__main__":
    main()
