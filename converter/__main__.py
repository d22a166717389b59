"""`python -m converter` is `eagle3`."""

from converter.cli import main

main()
