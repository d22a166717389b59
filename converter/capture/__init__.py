"""Makes samples: runs a target with transformers and records its residual stream.

prompts -> tokens -> (loading, decoder, answer) -> parts -> the file; `make` does them in order. torch and transformers
are imported only by loading, decoder and answer, and by `make` late: when the request has been checked.
"""
