"""Settings from outside: files, variables, payloads and command lines, validated in one way."""
