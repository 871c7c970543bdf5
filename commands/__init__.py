"""What the commands of the command line share, and the commands that `cli.py` takes from here."""
