"""One layer between the reader of a server's body (sse.py) and all else: it makes OpenAI's form of any answer. Pure.

kinds.py is the table of what servers send and what becomes of it. What the layer does not know, it passes on unchanged,
or it ends that one request with a sentence.
"""
