"""One call from submission to its answer, in the process of its caller. It uses ports and no AWS."""
