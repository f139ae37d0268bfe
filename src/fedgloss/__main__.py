"""`python -m fedgloss`."""

from .cli import main

main()
