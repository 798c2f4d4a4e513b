"""The processes of one machine: what `headgate serve`, `headgate local`, `headgate demo` and the doctor share."""
