"""`python -m pgtrain …` is `pgtrain …`."""

from pgtrain.cli import entry

if __name__ == "__main__":
    entry()
