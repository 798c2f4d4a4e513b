"""Pure policies: state and `now` in, a frozen decision out. Standard library only."""
